"""Settings that differ between data sets come by themselves, chosen ones from a file; and where they are searched."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pytest

from onepass.bench.presets import PRESETS, read_presets, write_preset
from onepass.bench.result import Result
from onepass.bench.run_config import RunConfig
from onepass.config import LearnerConfig, option
from onepass.data.catalog import STREAMS
from onepass.errors import UsageError
from onepass.methods.registry import METHODS, method_class
from onepass.tuning.space import Range, Space, default_space, parse_search


def test_every_preset_is_of_a_stream_a_method_and_a_setting_and_differs_from_the_default() -> None:
    for stream, rows in PRESETS.items():
        assert stream in STREAMS
        for method, settings in rows.items():
            assert method in METHODS
            defaults = {entry.name: entry.default for entry in fields(method_class(method).Config)}
            for name, value in settings.items():
                assert value != defaults[name]
                assert type(value) is type(defaults[name])


@pytest.mark.parametrize(
    ("method", "setting", "cifar10", "cifar100", "mini"),
    [
        ("derpp", "alpha", 0.2, 0.1, 0.1),
        ("derpp", "beta", 0.5, 1.0, 1.0),
        ("gmed", "stride", 0.1, 0.1, 0.1 / 4),  # theirs is for pixels in [-1, 1] there: half the slope, half the way
        ("aser", "per_class", 9, 2, 3),
        ("er-dvc", "dl_weight", 2.0, 4.0, 4.0),
        ("ocm", "scale", 0.5, 1.0, 1.0),
        ("er-lode", "rho", 0.1, 0.05, 0.05),
        ("er-cba", "adaptor_lr", 1e-3, 1e-2, 1e-2),
        ("onpro", "scale", 0.5, 1.0, 1.0),
        ("onpro", "mix", 0.6, 0.2, 0.2),
        ("onpro", "at_random", 0.75, 0.9, 0.9),
    ],
)
def test_settings_follow_the_data_set(method: str, setting: str, cifar10: float, cifar100: float, mini: float) -> None:
    names = {"cifar10": cifar10, "split-cifar100": cifar100, "mini_imagenet": mini, "digits": cifar10}
    for stream, value in names.items():
        assert getattr(RunConfig(method, stream=stream).settings, setting) == value


def test_what_is_given_wins_over_the_preset_and_the_rest_of_it_stays() -> None:
    settings = RunConfig("der++", stream="cifar100", settings={"alpha": 0.7}).learner_config.to_json()
    assert (settings["alpha"], settings["beta"]) == (0.7, 1.0)


def test_a_stored_run_keeps_the_settings_it_ran_with() -> None:
    config = RunConfig("derpp", stream="cifar100", settings={"alpha": 0.2, "beta": 0.5})
    stored = Result(config=config, accuracy_matrix=[[1.0]], fingerprint="", data={}, host={}).to_json()
    assert Result.from_json(stored).config == config
    assert config.key != RunConfig("derpp", stream="cifar100").key


FORWARD = ("separate", "joint")
SPACE = ("task", "used", "first", "all")


@pytest.mark.parametrize(
    ("method", "stream", "space"),
    [
        ("finetune", "digits", {"lr": Range(0.01, 1.0, log=True)}),
        ("er", "digits", {"lr": Range(0.01, 1.0, log=True), "combine": ("mean", "sum"), "forward": FORWARD}),
        (
            "er-fsl",
            "digits",
            {
                "lr": Range(0.01, 1.0, log=True),
                "gamma": Range(0.0, 1.0),
                "forward": FORWARD,
            },
        ),
        (
            "derpp",
            "digits",
            {
                "lr": Range(0.01, 1.0, log=True),
                "alpha": Range(0.02, 2.0, log=True),
                "beta": Range(0.05, 5.0, log=True),
                "draws": ("two", "one"),
            },
        ),
        (
            "derpp",  # around the preset of the stream
            "cifar100",
            {
                "lr": Range(0.01, 1.0, log=True),
                "alpha": Range(0.01, 1.0, log=True),
                "beta": Range(0.1, 10.0, log=True),
                "draws": ("two", "one"),
            },
        ),
        (
            "ocm",
            "digits",
            {
                "lr": Range(0.0001, 0.01, log=True),
                "temperature": Range(0.007, 0.7, log=True),
                "scale": Range(0.05, 5.0, log=True),
            },
        ),
        (
            "gss",
            "digits",
            {
                "lr": Range(0.01, 1.0, log=True),
                "combine": ("mean", "sum"),
                "forward": FORWARD,
                "subsets": Range(2, 40, log=True),
                "subset": Range(2, 40, log=True),
            },
        ),
    ],
)
def test_a_methods_own_settings_are_searched_around_their_defaults(method: str, stream: str, space: Space) -> None:
    found = default_space(RunConfig(method, stream=stream).learner_config)
    assert list(found) == list(space)
    for name, part in space.items():
        ours = found[name]
        if isinstance(part, tuple):
            assert ours == part
        else:
            assert isinstance(ours, Range)
            assert (ours.low, ours.high) == pytest.approx((part.low, part.high))
            assert (ours.log, type(ours.low), type(ours.high)) == (part.log, type(part.low), type(part.high))


@dataclass(frozen=True)
class Odd(LearnerConfig):
    small: float = option(0.005, "clipped", low=0.001)
    capped: float = option(0.5, "clipped", high=2)
    one: int = option(1, "whole numbers start at 1", low=0)
    few: int = option(10, "clipped", low=4, high=12)
    nothing: float = option(0.0, "no logarithm", low=0)
    below: int = option(-3, "no logarithm")
    switch: bool = option(True, "on or off")
    open: int | None = option(None, "no default", low=1)


def test_ranges_stay_within_the_limits_and_what_has_none_is_left_alone() -> None:
    assert default_space(Odd(), fixed=["lr"]) == {
        "small": Range(0.001, 0.05, log=True),
        "capped": Range(0.05, 2, log=True),
        "one": Range(1, 4, log=True),
        "few": Range(4, 12, log=True),
        "switch": (False, True),
    }
    assert "memory" not in default_space(RunConfig("er").learner_config)


def test_a_search_is_exactly_what_is_named() -> None:
    words = "lr=0.01:0.3:log gamma=0.1:0.9 forward=joint,separate subspace=10:40 replay-in memory=50,90"
    assert parse_search(words.split(), RunConfig("er-fsl").learner_config) == {
        "lr": Range(0.01, 0.3, log=True),
        "gamma": Range(0.1, 0.9),
        "forward": ("joint", "separate"),
        "subspace": Range(10, 40),
        "replay_in": SPACE,
        "memory": (50, 90),
    }
    assert parse_search(["switch=false,true", "open=2:8:log"], Odd()) == {
        "switch": (False, True),
        "open": Range(2, 8, log=True),
    }
    found = parse_search(["gamma=0:1"], RunConfig("er-fsl").learner_config)["gamma"]
    assert isinstance(found, Range)
    assert isinstance(found.low, float), "a real number is not drawn from whole ones"


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("gama=0:1", "unknown setting 'gama'; did you mean 'gamma'"),
        ("gamma=0.9:0.1", "--search gamma=0.9:0.1: allowed are gamma=A,B,C .* gamma=LOW:HIGH"),
        ("gamma=0.5:0.5", "to fix it: --gamma VALUE"),
        ("gamma=0.5", "to fix it: --gamma VALUE"),
        ("gamma=0.5,0.6,0.5", "values that differ"),
        ("gamma=0:1:log", "LOW above 0"),
        ("gamma=0.5:log", "to fix it"),
        ("gamma=0.1:0.2:0.3", "allowed are"),
        ("gamma=0.1:0.2:lin", "allowed are"),
        ("gamma=low:high", "allowed are"),
        ("gamma=", "allowed are"),
        ("gamma=0.5:2", "gamma=2.0: must be at least 0 and at most 1"),
        ("lr=0.1:inf", "must be a finite number"),
        ("lr=nan:1", "must be a finite number"),
        ("subspace=0:4", "subspace=0: must be at least 1"),
        ("subspace=1.5:4", "allowed are"),
        ("subspace", "its default None suggests no range"),
        ("forward=joint,both", "forward='both': allowed are separate, joint"),
        ("forward=joint:separate", "allowed are forward=A,B,C"),
    ],
)
def test_a_search_that_cannot_be_is_refused_with_what_is_allowed(word: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_search([word], RunConfig("er-fsl").learner_config)


def test_a_setting_is_fixed_or_searched_once() -> None:
    config = RunConfig("er-fsl").learner_config
    for words, fixed in ((["lr"], ["lr"]), (["lr", "lr=0.1:0.2"], [])):
        with pytest.raises(UsageError, match="lr is given twice"):
            parse_search(words, config, fixed)


def saved(path: Path, **changed: Any) -> Path:
    facts = {"method": "er-fsl", "stream": "digits", "settings": {"gamma": 0.4, "subspace": None}}
    write_preset(path, {**facts, **changed})
    return path


def test_a_saved_preset_comes_back_as_it_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = saved(tmp_path / "new" / "p.json", settings={"gamma": 0.1 + 0.2, "forward": "joint", "subspace": 7})
    settings = read_presets([path], ["er-fsl"], "digits")["er-fsl"]
    assert settings == {"gamma": 0.1 + 0.2, "forward": "joint", "subspace": 7}
    config = RunConfig("er-fsl", settings={**settings, "gamma": 0.9}).learner_config.to_json()
    assert (config["gamma"], config["forward"], config["subspace"]) == (0.9, "joint", 7)
    assert capsys.readouterr().err == ""


def test_a_preset_chosen_on_another_stream_is_used_and_said_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = saved(tmp_path / "p.json")
    assert read_presets([path], ["er-fsl"], "cifar10")["er-fsl"] == {"gamma": 0.4, "subspace": None}
    assert capsys.readouterr().err == f"{path}: its settings were chosen on digits, not on cifar10\n"


def test_a_preset_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"is a preset of er-fsl, not of er$"):
        read_presets([saved(tmp_path / "a.json")], ["er"], "digits")
    with pytest.raises(UsageError, match=r"b\.json: unknown setting 'gama'; did you mean 'gamma'"):
        read_presets([saved(tmp_path / "b.json", settings={"gama": 0.4})], ["er-fsl"], "digits")
    with pytest.raises(UsageError, match=r"c\.json: gamma=4: must be at least 0 and at most 1"):
        read_presets([saved(tmp_path / "c.json", settings={"gamma": 4})], ["er-fsl"], "digits")
    with pytest.raises(UsageError, match=r"no preset at .*d\.json; onepass tune METHOD --save NAME"):
        read_presets([tmp_path / "d.json"], ["er-fsl"], "digits")


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"method": "er"}', '{"method":"er","stream":"x","settings":4}'])
def test_a_file_that_is_no_preset_is_named(text: str, tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"p\.json: expected a preset, JSON with method, stream and settings; got"):
        read_presets([path], ["er-fsl"], "digits")
    with pytest.raises(UsageError, match="expected a preset"):
        read_presets([tmp_path], ["er-fsl"], "digits")
