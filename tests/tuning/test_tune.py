"""Settings are chosen on images held back from training, and every trial survives whatever happens to the process."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import create_trial

import forked
from data_helpers import some_classes
from onepass.bench import runner, store
from onepass.bench.metrics import average_accuracies
from onepass.bench.presets import read_presets
from onepass.bench.result import Result
from onepass.bench.run_config import RunConfig
from onepass.cli.progress import Display
from onepass.cli.tune import tune
from onepass.data import digits
from onepass.errors import RunError, UsageError
from onepass.tuning.search import Pruned, Pruner, Search, Tuning
from onepass.tuning.space import Range, Space

LR: Space = {"lr": Range(0.02, 0.5, log=True)}
WORDS = ["er", "--memory", "30", "--batch", "20", "--fraction", "0.2", "--search", "lr=0.02:0.5:log"]


def tuning(space: Space = LR, method: str = "er", **options: Any) -> Tuning:
    """Runs of 15 steps."""
    return Tuning(RunConfig(method, batch=20, fraction=0.2, settings={"memory": 30}), space, **options)


def search(out: Path, n: int, **options: Any) -> dict[str, Any]:
    return Search(tuning(**options), out).run(n)


def states(out: Path) -> list[str]:
    [path] = out.rglob("tune.db")
    return [trial.state.name for trial in optuna.load_study(study_name="tune", storage=f"sqlite:///{path}").trials]


@pytest.mark.system
def test_the_first_trial_is_the_defaults_and_the_others_are_not(tmp_path: Path) -> None:
    space: Space = {**LR, "combine": ("mean", "sum")}
    first, *others = search(tmp_path, 4, space=space)["trials"]
    assert first["settings"] == {"lr": 0.1, "combine": "mean"}
    assert len({json.dumps(trial["settings"]) for trial in others}) == 3
    for trial in others:
        assert 0.02 <= trial["settings"]["lr"] <= 0.5
        assert trial["settings"]["lr"] != 0.1
        assert trial["settings"]["combine"] in ("mean", "sum")


def test_of_choices_alone_each_is_tried_once_and_then_the_search_is_over(tmp_path: Path) -> None:
    space: Space = {"lr": (0.05, 0.1, 0.2), "combine": ("mean", "sum")}
    made = Search(replace(tuning(space), base=replace(tuning().base, fraction=0.05)), tmp_path)
    some = made.run(4)["trials"]
    assert some[0]["settings"] == {"lr": 0.1, "combine": "mean"}
    all_of_them = made.run(30)["trials"]
    assert all_of_them[:4] == some
    assert sorted((one["settings"]["lr"], one["settings"]["combine"]) for one in all_of_them) == [
        (lr, how) for lr in (0.05, 0.1, 0.2) for how in ("mean", "sum")
    ]


@pytest.mark.system
def test_defaults_outside_of_the_search_come_first_all_the_same(tmp_path: Path) -> None:
    space: Space = {"subspace": (10, 20), "gamma": Range(0.5, 0.9), "lr": Range(0.05, 0.2)}
    trials = search(tmp_path, 3, space=space, method="er-fsl")["trials"]
    assert trials[0]["settings"] == {"subspace": None, "gamma": 0.3, "lr": 0.1}
    for trial in trials[1:]:
        assert trial["settings"]["subspace"] in (10, 20)
        assert 0.5 <= trial["settings"]["gamma"] <= 0.9


class Untouchable:
    def refuse(self, *given: object) -> Any:
        raise AssertionError("a test image was looked at")

    __getattr__ = __getitem__ = __len__ = refuse


@pytest.mark.system
def test_no_test_image_is_ever_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hidden: Any = Untouchable()
    data = replace(digits.load(), x_test=hidden, y_test=hidden)
    monkeypatch.setattr(digits, "load", lambda: data)
    base = tuning().base
    assert not base.validate
    with pytest.raises(AssertionError, match="test image"):
        runner.run(base)
    trials = search(tmp_path, 3, runs=2)["trials"]
    results = store.load_all(tmp_path)
    assert len(results) == 6
    for result in results:
        assert result.config.validate
        assert result.protocol["measured_on"] == "a tenth of the training images"
    known = {(r.config.learner_config.to_json()["lr"], r.config.seed): r.final_accuracy for r in results}
    for trial in trials:
        assert trial["seeds"] == [0, 1]
        assert trial["accuracies"] == [known[trial["settings"]["lr"], seed] for seed in (0, 1)]
        assert trial["accuracy"] == pytest.approx(sum(trial["accuracies"]) / 2)


@pytest.mark.system
def test_more_trials_run_only_what_is_missing_and_are_those_of_one_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    space: Space = {**LR, "replay": Range(2, 40, log=True), "forward": ("separate", "joint")}
    whole = search(tmp_path / "whole", 14, space=space)  # the sampler learns from the eleventh on
    trained: list[RunConfig] = []
    run = runner.run

    def counted(config: RunConfig, out: Path, **options: Any) -> Result:
        trained.append(config)
        return run(config, out, **options)

    monkeypatch.setattr(runner, "run", counted)
    for n, new in ((1, 1), (5, 4), (5, 0), (12, 7), (14, 2)):
        trained.clear()
        parts = search(tmp_path / "parts", n, space=space)
        assert (len(parts["trials"]), len(trained)) == (n, new)
    assert parts == whole
    [stored] = (tmp_path / "parts").rglob("tune.json")
    assert json.loads(stored.read_text()) == parts
    assert len(search(tmp_path / "parts", 2, space=space)["trials"]) == 14, "what was tried stays recorded"


@pytest.mark.system
def test_the_seed_decides_the_proposals(tmp_path: Path) -> None:
    def settings(seed: int) -> list[Any]:
        base = replace(tuning().base, seed=seed)
        return [trial["settings"] for trial in Search(Tuning(base, LR), tmp_path / "out").run(3)["trials"]]

    assert settings(0)[0] == settings(1)[0]
    assert settings(0)[1:] != settings(1)[1:]


def test_a_search_of_another_space_or_stream_is_another_search(tmp_path: Path) -> None:
    searches = [
        tuning(),
        tuning({"lr": Range(0.02, 0.4, log=True)}),
        tuning({"lr": (0.02, 0.5)}),
        tuning(runs=2),
        Tuning(replace(tuning().base, batch=10), LR),
        Tuning(replace(tuning().base, settings={"memory": 40}), LR),
    ]
    assert len({entry.name for entry in searches}) == len(searches)
    assert tuning().name == tuning().name


@pytest.mark.system
def test_a_trial_stopped_in_mid_run_is_continued_and_counted_once(tmp_path: Path) -> None:
    whole = search(tmp_path / "whole", 3)
    out = tmp_path / "stopped"

    def step(trial: int, done: int, total: int) -> None:
        if trial == 1 and done == 7:
            raise KeyboardInterrupt

    stopped = Search(tuning(), out)
    stopped.step = step
    with pytest.raises(KeyboardInterrupt):
        stopped.run(3)
    assert states(out) == ["COMPLETE", "RUNNING"]
    assert len(list(out.rglob("checkpoint.safetensors"))) == 1
    seen: list[tuple[int, int]] = []
    again = Search(tuning(), out)
    again.step = lambda trial, done, total: seen.append((trial, done))
    assert again.run(3) == whole
    assert seen[0] == (1, 8), "it goes on in mid-stream"
    assert states(out) == ["COMPLETE", "FAIL", "COMPLETE", "COMPLETE"]
    assert len(list(out.rglob("result.json"))) == 3


@pytest.mark.system
def test_a_bad_trial_is_stopped_early(tmp_path: Path) -> None:
    hopeless: Space = {"lr": Range(1e-9, 1e-8)}
    base = RunConfig("er", batch=10, settings={"memory": 100}, fraction=0.4)
    good, bad = Search(Tuning(base, hopeless, startup=1), tmp_path / "early").run(2)["trials"]
    assert (good["state"], bad["state"]) == ("complete", "pruned")
    assert bad["accuracy"] is None
    assert len(bad["after_tasks"][0]) == 2
    assert bad["after_tasks"][0][1] < good["after_tasks"][0][1]
    assert bad["note"] == "behind after task 2 of run 1"
    assert len(list((tmp_path / "early").rglob("result.json"))) == 1
    assert not list((tmp_path / "early").rglob("checkpoint.safetensors"))
    assert states(tmp_path / "early") == ["COMPLETE", "PRUNED"]
    patient = Search(Tuning(base, hopeless, startup=2), tmp_path / "late").run(2)["trials"]
    assert [trial["state"] for trial in patient] == ["complete", "complete"]
    assert len(patient[1]["after_tasks"][0]) == 5
    again = Search(Tuning(base, hopeless, startup=1), tmp_path / "late").run(2)["trials"]
    assert again[1] == bad, "whether its run is stored or not does not matter"


def test_where_tasks_are_domains_their_number_is_that_of_the_data(tmp_path: Path) -> None:
    for domain in ("art", "photo", "sketch"):
        some_classes(tmp_path / "photos" / domain)
    base = RunConfig("er", stream=str(tmp_path / "photos"), net="small-cnn", scenario="domain-incremental")
    searching = Search(Tuning(base, LR, runs=2), tmp_path / "out", data_dir=tmp_path / "data")
    [only] = searching.run(1)["trials"]
    assert [len(curve) for curve in only["after_tasks"]] == [3, 3]
    study = optuna.load_study(study_name="tune", storage=f"sqlite:///{searching.place / 'tune.db'}")
    assert sorted(study.trials[0].intermediate_values) == [0, 1, 2, 3, 4, 5]


def test_what_a_killed_run_wrote_beyond_its_checkpoint_is_not_believed(tmp_path: Path) -> None:
    place = store.folder(tmp_path, tuning().config({}, 0))
    store.save_evaluations(place, [{"step": 10_000, "accuracy": [0.123], "after_task": 0}])
    [first] = search(tmp_path, 1)["trials"]
    [result] = store.load_all(tmp_path)
    assert first["after_tasks"] == [average_accuracies(result.accuracy_matrix)]


def watch(runs: int, *finished: list[float]) -> Pruner:
    """Beside trials that finished with these accuracies after each task, run after run."""
    study = optuna.create_study(direction="maximize")
    for values in finished:
        study.add_trial(create_trial(value=values[-1], intermediate_values=dict(enumerate(values))))
    base = RunConfig("er", tasks=3)
    watching = Pruner(study, study.ask(), Tuning(base, LR, runs=runs, startup=2), base.tasks)
    watching.curves.append([])
    return watching


def test_behind_is_below_the_median_after_the_same_task() -> None:
    watching = watch(1, [0.8, 0.6, 0.5], [0.9, 0.4, 0.3])
    watching.report([0.1])  # after a first task nothing can be forgotten: it does not count
    watching.report([0.1, 0.5])  # the median itself is not behind
    watching.report([0.1, 0.5, 0.0])  # the end: there is nothing left to save
    falls = watch(1, [0.8, 0.6, 0.5], [0.9, 0.4, 0.3])
    with pytest.raises(Pruned):
        falls.report([1.0, 0.49])  # its best so far is above every other
    assert falls.curves == [[1.0, 0.49]]
    watch(1, [0.8, 0.6, 0.5]).report([0.1, 0.1, 0.1])  # too few are finished


def test_a_later_run_is_judged_by_the_mean_of_the_runs_so_far() -> None:
    others = [0.9, 0.5, 0.4, 0.9, 0.5, 0.4]
    watching = watch(2, others, others)
    watching.report([0.9, 0.7, 0.6])
    watching.curves.append([])
    watching.report([0.9, 0.3])  # (0.7 + 0.3) / 2
    reported = watching.study.trials[-1].intermediate_values
    assert reported == pytest.approx({0: 0.9, 1: 0.7, 2: 0.6, 3: 0.9, 4: 0.5})
    second = watch(2, others, others)
    with pytest.raises(Pruned):
        second.report([0.9, 0.5, 0.3])  # after the last task of a run that is not the last


@pytest.mark.system
def test_what_diverges_or_cannot_be_built_is_recorded_and_the_search_goes_on(tmp_path: Path) -> None:
    trials = search(tmp_path / "a", 3, space={"lr": Range(1e36, 1e37)})["trials"]
    assert [trial["state"] for trial in trials] == ["complete", "diverged", "diverged"]
    assert "try a smaller one" in trials[1]["note"]
    document = search(tmp_path / "b", 2, space={"subspace": (200, 300)}, method="er-fsl")
    assert document["trials"][1]["state"] == "refused"
    assert "features" in document["trials"][1]["note"]
    assert document["best"]["trial"] == 0
    assert document["gain"] == {"mean": 0.0, "interval": None, "n": 1, "values": [0.0]}


def test_defaults_that_cannot_be_built_are_misuse(tmp_path: Path) -> None:
    base = RunConfig("er-fsl", settings={"subspace": 200})
    with pytest.raises(UsageError, match="100 features"):
        Search(Tuning(base, LR), tmp_path).run(2)


def trial(number: int, *accuracies: float) -> dict[str, Any]:
    state, accuracy = ("complete", sum(accuracies) / len(accuracies)) if accuracies else ("pruned", None)
    return {"trial": number, "state": state, "accuracy": accuracy, "accuracies": list(accuracies)}


def test_the_answer_says_what_was_gained_and_how_sure_that_is() -> None:
    trials = [trial(0, 0.5, 0.55, 0.6), trial(1), trial(2, 0.7, 0.7, 0.7), trial(3, 0.7, 0.7, 0.7)]
    document = tuning(runs=3).document([*trials, trial(4, 0.9, 0.1, 0.1)])
    assert document["best"]["trial"] == 2
    half = 4.3026527 * 0.05 / 3**0.5  # t(0.975, 2) * s / sqrt(3)
    for found, mean, interval in (
        (document["default"]["summary"], 0.55, half),
        (document["best"]["summary"], 0.7, 0.0),
        (document["gain"], 0.15, half),
    ):
        assert (found["mean"], found["interval"], found["n"]) == pytest.approx((mean, interval, 3))
    diverged = tuning().document([trial(0), trial(1, 0.4)])
    assert (diverged["default"], diverged["gain"], diverged["best"]["trial"]) == (None, None, 1)
    assert tuning().document([])["best"] is None


@pytest.mark.system
def test_a_damaged_database_is_named_and_made_again_from_the_stored_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = search(tmp_path, 3)
    [path] = tmp_path.rglob("tune.db")
    path.write_bytes(b"no database at all" * 100)
    with pytest.raises(RunError, match=r"tune\.db.*remove it"):
        search(tmp_path, 3)
    path.unlink()
    monkeypatch.setattr(runner, "_train", lambda *a, **o: pytest.fail("nothing is to be trained again"))
    assert search(tmp_path, 3) == whole


@pytest.mark.system
def test_the_command_prints_one_document_and_saves_a_preset_that_makes_the_best_config(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*WORDS, "combine", "--out", str(tmp_path), "--trials", "3", "--runs", "2", "--save", "mine", "--json"]
    tune("tune", words)
    said = capsys.readouterr()
    document = json.loads(said.out)
    assert [line.split(",")[0] for line in said.err.splitlines()] == ["trial 0", "trial 1", "trial 2"]
    assert said.err.endswith("done (3 of 3)\n")
    assert set(document["search"]) == {"lr", "combine"}
    best = max(document["trials"], key=lambda trial: trial["accuracy"])
    assert document["best"]["settings"] == best["settings"]
    path = tmp_path / "mine.json"
    assert document["preset"] == str(path)
    preset = json.loads(path.read_text())
    assert preset == {
        "method": "er",
        "stream": "digits",
        "settings": best["settings"],
        "command": "onepass tune " + " ".join(words),
        "validation_accuracy": best["accuracy"],
        "n": 2,
    }
    config = RunConfig(
        "er",
        batch=20,
        fraction=0.2,
        validate=True,
        settings={"memory": 30, **read_presets([path], ["er"], "digits")["er"]},
    )
    assert store.load_result(store.folder(tmp_path, config), config) is not None


@pytest.mark.system
def test_a_trial_that_keeps_an_average_is_judged_by_it(tmp_path: Path) -> None:
    trials = search(tmp_path, 3, space={"average": (0.5, 0.9, 0.99)})["trials"]
    kept = [trial for trial in trials if trial["settings"].get("average")]
    assert len(kept) >= 2
    otherwise = []
    for trial in kept:
        config = RunConfig("er", batch=20, fraction=0.2, validate=True, settings={"memory": 30, **trial["settings"]})
        result = store.load_result(store.folder(tmp_path, config), config)
        assert result is not None
        assert trial["accuracy"] == average_accuracies(result.accuracy_matrix)[-1]
        assert trial["after_tasks"] == [average_accuracies(result.accuracy_matrix)]
        otherwise.append(trial["after_tasks"] != [average_accuracies(result.accuracy_matrix_last)])
    assert any(otherwise)


def test_a_preset_holds_what_was_given_too_but_for_the_conditions(tmp_path: Path) -> None:
    words = [
        "er",
        "--memory",
        "30",
        "--batch",
        "20",
        "--fraction",
        "0.2",
        "--lr",
        "0.02",
        "--search",
        "combine=mean,sum",
    ]
    tune("tune", [*words, "--trials", "2", "--out", str(tmp_path), "--save", "mine"])
    settings = json.loads((tmp_path / "mine.json").read_text())["settings"]
    assert settings.keys() == {"lr", "combine"}
    assert settings["lr"] == 0.02


@pytest.mark.system
def test_the_table_shows_every_trial_the_noise_and_where_all_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    preset = tmp_path / "elsewhere" / "p.json"
    tune("tune", [*WORDS, "--out", str(tmp_path), "--trials", "2", "--save", str(preset)])
    shown = capsys.readouterr().out
    for words in ("0 defaults", "lr", "by seed:", "gain", "one seed says nothing about the noise", "tune.json"):
        assert words in shown
    assert str(preset) in shown
    assert json.loads(preset.read_text())["method"] == "er"


@pytest.mark.system
def test_ctrl_c_stops_between_two_steps_and_the_same_command_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    report = Display.report

    def interrupted(self: Display, index: int, done: int, total: int) -> None:
        if (index, done) == (1, 7):
            signal.raise_signal(signal.SIGINT)
        report(self, index, done, total)

    words = [*WORDS, "--out", str(tmp_path), "--trials", "2", "--json"]
    monkeypatch.setattr(Display, "report", interrupted)
    with pytest.raises(KeyboardInterrupt):
        tune("tune", words)
    monkeypatch.setattr(Display, "report", report)
    assert len(list(tmp_path.rglob("checkpoint.safetensors"))) == 1
    capsys.readouterr()
    tune("tune", words)
    assert len(json.loads(capsys.readouterr().out)["trials"]) == 2
    assert not list(tmp_path.rglob("checkpoint.safetensors"))


MISUSE = [
    (["er", "--trials", "0"], "argument --trials: expected a whole number from 1 on, got '0'"),
    (["er", "--runs", "0"], "argument --runs: expected a whole number from 1 on, got '0'"),
    (["er", "--trails", "3"], "did you mean '--trials'"),
    (["erx"], "did you mean 'er'"),
    ([], "METHOD"),
    (["er", "--stream", "cifar11"], "did you mean 'cifar10'"),
    (["er", "--search", "gama=0:1"], "unknown setting 'gama'"),
    (["er", "--search", "lr=0.5:0.1"], "allowed are"),
    (["er", "--lr", "0.2", "--search", "lr"], "given twice"),
    (["finetune", "--lr", "0.2"], "leave one to be searched"),
]


@pytest.mark.parametrize(("words", "message"), MISUSE)
def test_misuse_is_refused_before_anything_is_written(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=message):
        tune("tune", words)
    assert not list(tmp_path.iterdir())


def test_without_optuna_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UsageError, match="pip install optuna"):
        tune("tune", [*WORDS, "--out", str(tmp_path)])


def test_help_imports_neither_torch_nor_optuna() -> None:
    program = "import sys\nfrom onepass.cli.tune import tune\ntry: tune('tune', ['--help'])\n"
    program += "except SystemExit: print({'torch', 'optuna'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("set()\n")
    assert "--search" in done.stdout


@pytest.mark.system
def test_a_killed_search_loses_no_trial_and_counts_none_twice(tmp_path: Path) -> None:
    words = ["tune", "er", "--memory", "50", "--trials", "3", "--search", "lr", "--checkpoint-seconds", "0", "--out"]

    def start(out: Path) -> ForkServerProcess:
        return forked.start([*words, str(out)], tmp_path)

    def trials(out: Path) -> list[dict[str, Any]]:
        return [entry for path in out.rglob("tune.json") for entry in json.loads(path.read_text())["trials"]]

    out = tmp_path / "killed"
    process = start(out)
    while process.is_alive() and not (len(trials(out)) == 1 and list(out.rglob("checkpoint.safetensors"))):
        time.sleep(0.01)
    process.kill()
    assert forked.code(process) == -signal.SIGKILL
    assert len(trials(out)) == 1
    assert len(list(out.rglob("checkpoint.safetensors"))) == 1, "it was hit in the middle of the second trial"
    assert states(out) == ["COMPLETE", "RUNNING"]
    assert forked.code(start(out)) == 0
    assert forked.code(start(tmp_path / "whole")) == 0
    assert trials(out) == trials(tmp_path / "whole")
    assert len(trials(out)) == len(list(out.rglob("result.json"))) == 3
    assert sorted(states(out)) == ["COMPLETE", "COMPLETE", "COMPLETE", "FAIL"]
