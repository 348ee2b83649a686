"""Settings go to JSON and back, and what is not allowed is refused by name."""

from __future__ import annotations

import dataclasses
import json
import re
import typing
from dataclasses import FrozenInstanceError, dataclass
from typing import Any, Literal

import pytest

from onepass.bench.run_config import RunConfig
from onepass.cli.flags import Parser, add_settings
from onepass.config import LearnerConfig, ReplayConfig, choices, option, plain, stored_options
from onepass.errors import UsageError
from onepass.methods.er import ERConfig
from onepass.methods.er_fsl import ERFSLConfig
from onepass.methods.registry import METHODS, canonical, method_class


def unlike_the_default(entry: dataclasses.Field[Any], kind: Any) -> Any:
    """Another value that the setting allows."""
    if choices(kind):
        return next(choice for choice in choices(kind) if choice != entry.default)
    if plain(kind) is bool:
        return not entry.default
    low, high = entry.metadata["low"], entry.metadata["high"]
    start: Any = (low or 0) if entry.default is None else entry.default
    if plain(kind) is int:
        return start + 1 if high is None or start + 1 <= high else start - 1
    return start + 0.125 if high is None else (low + high) / 2 if start == high else (start + high) / 2


@pytest.mark.parametrize("name", METHODS)
def test_every_methods_settings_go_to_json_and_back(name: str) -> None:
    cls = method_class(name).Config
    kinds = typing.get_type_hints(cls)
    other = {entry.name: unlike_the_default(entry, kinds[entry.name]) for entry in dataclasses.fields(cls)}
    if "momentum" in other:  # of one optimizer alone
        other["optimizer"] = "sgd"
    for config in (cls(), cls(**other)):
        back = cls.from_json(json.loads(json.dumps(config.to_json())))
        assert back == config
        assert type(back) is cls
    assert all(getattr(cls(), entry) != value for entry, value in other.items() if entry != "optimizer")


@pytest.mark.parametrize("name", METHODS)
def test_every_setting_has_a_help_text_and_cannot_be_assigned(name: str) -> None:
    config = method_class(name).Config()
    for entry in dataclasses.fields(config):
        assert len(entry.metadata["help"]) > 10
        with pytest.raises(FrozenInstanceError):
            setattr(config, entry.name, getattr(config, entry.name))


def test_defaults_are_the_papers() -> None:
    assert ERConfig().to_json() == {
        "lr": 0.1,
        "scope": "seen",
        "average": None,
        "optimizer": "sgd",
        "momentum": 0.0,
        "weight_decay": 0.0,
        "updates": 1,
        "expert": False,
        "precision": "fp32",
        "compile": False,
        "memory": 1000,
        "replay": 10,
        "forward": "separate",
        "combine": "mean",
    }
    assert (ERFSLConfig().gamma, ERFSLConfig().subspace) == (0.3, None)
    assert (ERFSLConfig().learn_in, ERFSLConfig().replay_in, ERFSLConfig().test_in) == ("task", "used", "used")
    assert (ERFSLConfig().new_weight, ERFSLConfig().replay_weight) == (None, None)


def test_momentum_is_of_sgd_alone() -> None:
    assert LearnerConfig(momentum=0.9).momentum == 0.9
    with pytest.raises(UsageError, match=r"momentum=0\.9 is of sgd: adam has moments of its own"):
        LearnerConfig(momentum=0.9, optimizer="adam")


def test_settings_missing_from_json_have_their_defaults() -> None:
    assert ERFSLConfig.from_json({"gamma": 0.5}) == ERFSLConfig(gamma=0.5)
    assert ERFSLConfig.from_json({}) == ERFSLConfig()


# Otherwise store.key() ("equal settings, equal key") would put lr=1 and lr=1.0 in two folders and train twice.
@pytest.mark.parametrize(("cls", "name"), [(LearnerConfig, "lr"), (ERFSLConfig, "gamma"), (ERFSLConfig, "new_weight")])
def test_equal_settings_are_equal_as_json_text(cls: type[LearnerConfig], name: str) -> None:
    ones: list[dict[str, Any]] = [{name: 1}, {name: 1.0}]
    whole, fraction = (cls(**one) for one in ones)
    assert whole == fraction
    assert json.dumps(whole.to_json()) == json.dumps(fraction.to_json())


@pytest.mark.parametrize(
    ("cls", "values", "message"),
    [
        (LearnerConfig, {"lr": -0.1}, "lr=-0.1: must be at least 0"),
        (LearnerConfig, {"lr": float("nan")}, "lr=nan: must be a finite number"),
        (LearnerConfig, {"lr": float("inf")}, "lr=inf: must be a finite number"),
        (LearnerConfig, {"lr": "0.1"}, "lr='0.1': needs a value of type float"),
        (LearnerConfig, {"lr": True}, "lr=True: needs a value of type float"),
        (LearnerConfig, {"lr": None}, "lr=None: needs a value of type float"),
        (LearnerConfig, {"scope": "some"}, "scope='some': allowed are seen, all"),
        (LearnerConfig, {"scope": None}, "scope=None: allowed are seen, all"),
        (ReplayConfig, {"memory": 0}, "memory=0: must be at least 1; finetune is the method without a memory"),
        (ReplayConfig, {"memory": 10.0}, "memory=10.0: needs a value of type int"),
        (ReplayConfig, {"memory": True}, "memory=True: needs a value of type int"),
        (ReplayConfig, {"replay": 0}, "replay=0: must be at least 1"),
        (ERConfig, {"forward": "both"}, "forward='both': allowed are separate, joint"),
        (ERConfig, {"combine": "max"}, "combine='max': allowed are mean, sum"),
        (ERFSLConfig, {"gamma": 1.5}, "gamma=1.5: must be at least 0 and at most 1"),
        (ERFSLConfig, {"gamma": -0.01}, "gamma=-0.01: must be at least 0 and at most 1"),
        (ERFSLConfig, {"subspace": 0}, "subspace=0: must be at least 1"),
        (ERFSLConfig, {"subspace": 5.5}, "subspace=5.5: needs a value of type int"),
        (ERFSLConfig, {"new_weight": -1.0}, "new_weight=-1.0: must be at least 0"),
        (ERFSLConfig, {"learn_in": "some"}, "learn_in='some': allowed are task, used, first, all"),
    ],
)
def test_a_value_that_is_not_allowed_is_refused_with_what_is(
    cls: type[LearnerConfig], values: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=f"^{re.escape(message)}$"):
        cls(**values)
    with pytest.raises(UsageError, match=f"^{re.escape(message)}$"):
        cls.from_json(values)


def test_the_ends_of_a_range_are_allowed() -> None:
    assert ERFSLConfig(gamma=0).gamma == 0
    assert ERFSLConfig(gamma=1).gamma == 1
    assert ERFSLConfig(subspace=1, new_weight=0.0, replay_weight=0.0).subspace == 1
    assert ReplayConfig(memory=1, replay=1).memory == 1
    assert LearnerConfig(lr=0.0).lr == 0


def test_a_config_of_your_own_is_checked_in_the_same_way() -> None:
    @dataclass(frozen=True)
    class Config(LearnerConfig):
        flag: bool = option(False, "a switch")
        kind: Literal["a", "b"] = option("a", "a choice")
        share: float = option(0.5, "a part", low=0.25, high=0.75)

    assert Config.from_json({"flag": True, "kind": "b"}).to_json() == {
        "lr": 0.1,
        "scope": "seen",
        "average": None,
        "optimizer": "sgd",
        "momentum": 0.0,
        "weight_decay": 0.0,
        "updates": 1,
        "expert": False,
        "precision": "fp32",
        "compile": False,
        "flag": True,
        "kind": "b",
        "share": 0.5,
    }
    with pytest.raises(UsageError, match="flag=1: needs a value of type bool"):
        Config.from_json({"flag": 1})
    with pytest.raises(UsageError, match=r"share=0\.8: must be at least 0\.25 and at most 0\.75"):
        Config.from_json({"share": 0.8})


@dataclass(frozen=True)
class SwitchConfig(LearnerConfig):
    warm: bool = option(True, "a switch")


def test_a_switch_is_true_or_false_on_the_command_line() -> None:
    parser = Parser()
    add_settings(parser, {"mine": SwitchConfig})
    assert [parser.parse_args(["--warm", word]).warm for word in ("true", "False")] == [True, False]
    assert parser.parse_args([]).warm is None
    with pytest.raises(UsageError, match="--warm: '1': allowed are true and false"):
        parser.parse_args(["--warm", "1"])
    assert "--warm {true,false}" in parser.format_help()


def test_an_old_word_for_a_value_is_taken_with_a_note_and_is_the_new_one(capsys: pytest.CaptureFixture[str]) -> None:
    config, parser = method_class("er-fsl+").Config, Parser()
    add_settings(parser, {"er-fsl+": config})
    assert parser.parse_args(["--images", "view"]).images == "augmented"
    assert capsys.readouterr().err == "--images view is called augmented now\n"
    assert "--images {augmented,both}" in parser.format_help()
    assert config.from_json({"images": "view"}) == config()
    assert stored_options(config())["images"] == "view"  # the keys of runs that are stored already


def test_an_unknown_setting_names_the_nearest_and_all() -> None:
    shared = "lr, scope, average, optimizer, momentum, weight_decay, updates, expert, precision, compile"
    message = f"unknown setting 'gama'; did you mean 'gamma'? (its settings: {shared}, memory, replay, gamma, "
    with pytest.raises(UsageError, match=re.escape(message)):
        ERFSLConfig.from_json({"gama": 0.3})
    with pytest.raises(UsageError, match=re.escape(f"unknown setting 'zzz' (its settings: {shared})")):
        LearnerConfig.from_json({"zzz": 1})


def test_a_setting_of_another_method_is_unknown() -> None:
    with pytest.raises(UsageError, match="unknown setting 'gamma'"):
        ERConfig.from_json({"gamma": 0.3})
    with pytest.raises(UsageError, match="unknown setting 'memory'"):
        method_class("finetune").Config.from_json({"memory": 10})


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("er_ace", "er-ace"),
        ("erace", "er-ace"),
        ("ER-ACE", "er-ace"),
        ("der++", "derpp"),
        ("DER++", "derpp"),
        ("erfsl", "er-fsl"),
        ("fine-tune", "finetune"),
        ("FINE-TUNE", "finetune"),
        ("iidpp", "iid++"),
        ("IID++", "iid++"),
        ("ss_il", "ss-il"),
        ("ssil", "ss-il"),
        ("gss", "gss"),
        ("er-fsl-plus", "er-fsl+"),
        ("ER-FSL+", "er-fsl+"),
        ("AGEM", "a-gem"),
        ("ewc_pp", "ewc++"),
        ("EWC++", "ewc++"),
        ("onepass.methods.er:ER", "onepass.methods.er:ER"),
    ],
)
def test_a_method_may_be_written_as_people_write_it(given: str, meant: str) -> None:
    assert canonical(given) == meant
    assert RunConfig(given).method == meant


def test_every_title_is_a_spelling_of_its_method() -> None:
    assert [canonical(method.title) for method in METHODS.values()] == list(METHODS)


@pytest.mark.parametrize("given", ["der", "DER"])
def test_a_bare_der_means_two_methods_and_is_refused(given: str) -> None:
    with pytest.raises(UsageError, match=r"'der' means two methods: the table's row is derpp \(DER\+\+\)"):
        method_class(given)


@pytest.mark.parametrize(("given", "meant"), [("er-fls", "er-fsl"), ("finetunes", "finetune"), ("ocn", "ocm")])
def test_an_unknown_method_names_the_nearest(given: str, meant: str) -> None:
    message = f"unknown method '{given}'; did you mean '{meant}'? (one of your own is MODULE:CLASS; ours: "
    with pytest.raises(UsageError, match=f"^{re.escape(message)}"):
        method_class(given)


def test_a_method_of_your_own_is_named_by_module_and_class() -> None:
    assert method_class("onepass.methods.er:ER") is method_class("er")
    with pytest.raises(UsageError, match="cannot load 'nowhere:Thing'"):
        method_class("nowhere:Thing")
    with pytest.raises(UsageError, match=r"cannot load 'onepass\.methods\.er:Nothing'"):
        method_class("onepass.methods.er:Nothing")
    with pytest.raises(UsageError, match=r"expected a subclass of onepass\.Learner"):
        method_class("onepass.methods.er:ERConfig")
