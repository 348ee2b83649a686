"""The paper's rows need no further flag: settings that differ between data sets come by themselves."""

from __future__ import annotations

from dataclasses import fields

import pytest

from onepass.data.catalog import STREAMS
from onepass.methods import METHODS, method_class
from onepass.presets import PRESETS
from onepass.results import Result, RunConfig
from onepass.store import key


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
        ("aser", "per_class", 9, 2, 3),
        ("er-dvc", "dl_weight", 2.0, 4.0, 4.0),
        ("ocm", "scale", 0.5, 1.0, 1.0),
        ("er-lode", "rho", 0.1, 0.05, 0.05),
        ("er-cba", "adaptor_lr", 1e-3, 1e-2, 1e-2),
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
    stored = Result(config, [[1.0]], 1, 1.0, "", {}, {}).to_json()
    assert Result.from_json(stored).config == config
    assert key(config) != key(RunConfig("derpp", stream="cifar100"))
