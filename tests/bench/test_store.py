"""Stored runs: names that last, results that explain themselves, damage that is named, one process for each run."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import platform
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

import onepass
from onepass.bench import store
from onepass.bench.result import Result
from onepass.bench.run import Run
from onepass.bench.run_config import RunConfig
from onepass.bench.runner import run
from onepass.errors import RunError

STORED = Path(__file__).resolve().parents[2] / "results"
SHORT = RunConfig("finetune", batch=20, fraction=0.2)  # five tasks of three steps
LATER = {"protocol", "anytime", "prequential", "facts", "losses", "accuracy_matrix_last"}
LATER |= {"accuracy_before", "accuracy_untrained", "confusion"}


@functools.cache
def undisturbed() -> Result:
    return run(SHORT)


def stop_at_four(done: int, total: int) -> None:
    if done == 4:
        raise KeyboardInterrupt


# Names: what older versions stored is found under the same keys.


@pytest.mark.parametrize("name", ["digits", "cifar10", "protocol"])
def test_the_repositorys_results_load_and_lie_where_they_are_looked_for(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    files = sorted((STORED / name).rglob("result.json"))
    assert files
    for file in files:
        values = json.loads(file.read_text())
        result = Result.from_json(values)
        assert store.folder(STORED / name, result.config) == file.parent
        assert store.load_result(file.parent, result.config) == result
        assert (result.accuracy_matrix, result.fingerprint) == (values["accuracy_matrix"], values["fingerprint"])
        assert result.config.seed == values["seed"]
        assert result.final_accuracy == pytest.approx(values["final_accuracy"])
    assert len(store.load_all(STORED / name)) == len(files)
    assert capsys.readouterr().err == ""


def test_keys_are_those_of_the_first_version() -> None:
    assert RunConfig("er", settings={"memory": 100}).key == "76d6d36ae9"
    assert RunConfig("er-fsl", seed=7, settings={"memory": 100}).key == "0719742555"
    assert RunConfig("finetune", anytime=0, prequential=False).key == "c2335e3fa1"


def test_runs_that_measure_more_are_other_runs() -> None:
    plain = RunConfig("er")
    asked = [replace(plain, anytime=5), replace(plain, anytime=6), replace(plain, prequential=True)]
    assert len({config.key for config in [plain, *asked, replace(plain, anytime=5, prequential=True)]}) == 5


def test_a_result_without_the_later_fields_has_none_of_what_they_hold() -> None:
    values = undisturbed().to_json()
    old = {name: value for name, value in values.items() if name not in LATER}
    old["config"] = {name: value for name, value in values["config"].items() if name not in ("anytime", "prequential")}
    result = Result.from_json(old)
    assert (result.protocol, result.anytime, result.prequential, result.facts) == ({}, [], [], [])
    assert result == replace(undisturbed(), protocol={}, anytime=[], prequential=[], facts=[], losses=[], confusion=[])
    assert (result.class_accuracies, result.forward_transfer) == ([], None)
    assert result.backward_transfer == undisturbed().backward_transfer is not None


def test_a_row_of_counts_is_one_line_and_a_confusion_is_no_larger_than_its_images_are_many() -> None:
    """A hundred classes, a hundred images of each, predicted as twenty different ones."""
    rows = [[number for answer in range(c % 80, c % 80 + 20) for number in (answer, 5)] for c in range(100)]
    plain, more = (store.sign(one.to_json()) for one in (undisturbed(), replace(undisturbed(), confusion=rows)))
    assert len(more) - len(plain) < 100 * 20 * 6
    assert json.loads(more)["confusion"] == rows
    assert f"  [{','.join(map(str, rows[7]))}],\n" in more


def test_what_looks_like_a_list_inside_of_a_text_stays_as_it_is() -> None:
    values = {**undisturbed().to_json(), "facts": [{"odd": "[\n 1,\n 2\n]", "more": [3, 4]}]}
    assert json.loads(store.sign(values))["facts"] == values["facts"]


# Results that explain themselves.


def protocol(method: str, **settings: Any) -> dict[str, Any]:
    return Run(RunConfig(method, **settings)).protocol()


def assert_says(found: dict[str, Any], **expected: Any) -> None:
    assert {name: found[name] for name in expected} == expected


def test_the_protocol_of_er_fsl_on_digits_is_the_one_worked_out_by_hand() -> None:
    """Small-cnn without the head's bias: 9 * (32 + 32 * 64 + 64 * 100) + 2 * (32 + 64 + 100) + 100 * 10 weights."""
    config = RunConfig(
        "er-fsl", seed=3, batch=200, class_order="fixed", settings={"memory": 70, "replay": 6, "lr": 0.05}
    )
    assert_says(
        run(config).protocol,
        scenario="class-incremental",
        tasks=[["0", "1"], ["2", "3"], ["4", "5"], ["6", "7"], ["8", "9"]],
        class_order=list(range(10)),
        batch=200,
        replay=6,
        memory=70,
        optimizers={"optimizer": {"kind": "SGD", "lr": 0.05, "momentum": 0, "weight_decay": 0}},
        net="small-cnn",
        features=100,
        parameters=77_712,
        augment="digits",
        scope="seen",
        seed=3,
        measured_on="the test images",
    )


def test_the_protocol_says_what_was_asked_for_instead() -> None:
    config = {"net": "slim-resnet18", "tasks": 3, "class_order": "7,1,2,3,4,5,6,0,8,9", "validate": True}
    found = protocol("finetune", **config, settings={"scope": "all"})
    assert_says(found, net="slim-resnet18", features=160, scope="all", memory=0, replay=0, batch=10, seed=0)
    assert_says(found, class_order=[7, 1, 2, 3, 4, 5, 6, 0, 8, 9], measured_on="a tenth of the training images")
    assert found["tasks"] == [["7", "1", "2", "3"], ["4", "5", "6"], ["0", "8", "9"]]


def test_tasks_in_the_protocol_are_the_classes_that_really_came() -> None:
    state = Run(RunConfig("finetune", seed=5))
    found = state.protocol()
    came = [{state.data.classes[c] for c in state.data.y[task.train].tolist()} for task in state.tasks]
    assert [set(names) for names in found["tasks"]] == came
    assert [name for names in found["tasks"] for name in names] == [str(c) for c in found["class_order"]]
    assert found["class_order"] != list(range(10))


@pytest.mark.parametrize(
    "scenario", ["class-incremental", "task-incremental", "task-free", "iid", "iid++", "i-blurry-50-10"]
)
def test_a_class_order_names_every_class_once(scenario: str) -> None:
    assert sorted(protocol("finetune", scenario=scenario)["class_order"]) == list(range(10))


def test_every_optimizer_is_named_with_its_rate() -> None:
    plain = {"kind": "SGD", "lr": 0.2, "momentum": 0, "weight_decay": 0}
    assert_says(protocol("obc", settings={"lr": 0.2}), optimizers={"optimizer": plain, "corrector": plain})
    outer = protocol("er-cba", settings={"adaptor_lr": 0.03})["optimizers"]["outer"]
    assert (outer["kind"], outer["lr"], list(outer["betas"])) == ("Adam", 0.03, [0.9, 0.999])


def test_a_result_names_the_versions_and_the_machine() -> None:
    assert_says(
        undisturbed().host,
        onepass=onepass.__version__,
        torch=torch.__version__,
        numpy=numpy.__version__,
        python=platform.python_version(),
        machine=platform.machine(),
        device="cpu",
        threads=torch.get_num_threads(),
    )


@pytest.mark.parametrize("method", ["finetune", "er-fsl", "obc", "er-cba"])
def test_a_result_is_the_same_when_it_is_found_again(method: str, tmp_path: Path) -> None:
    config = RunConfig(method, batch=20, fraction=0.1, anytime=2, prequential=True)
    assert run(config, tmp_path) == run(config, tmp_path)


# Damage: named and left out, or named and trained again; never used.


def edited(**changes: Any) -> Callable[[dict[str, Any]], str]:
    return lambda values: store.sign({**values, **changes})


def last_row(row: list[float]) -> Callable[[dict[str, Any]], str]:
    return lambda values: store.sign({**values, "accuracy_matrix": [*values["accuracy_matrix"][:-1], row]})


def without(name: str) -> Callable[[dict[str, Any]], str]:
    return lambda values: store.sign({key: value for key, value in values.items() if key != name})


DAMAGES: dict[str, Callable[[dict[str, Any]], str]] = {
    "nothing": lambda values: "",
    "cut off": lambda values: json.dumps(values)[:-40],
    "zeros, as a crash of the machine leaves them": lambda values: "\0" * len(json.dumps(values)),
    "another kind of document": lambda values: "[1, 2]",
    "endless brackets": lambda values: "[" * 100_000,
    "no fingerprint": without("fingerprint"),
    "no config": edited(config=None),
    "a config that is a list": edited(config=[["method", "er"]]),
    "no matrix": edited(accuracy_matrix=None),
    "an empty matrix": edited(accuracy_matrix=[]),
    "a row too few": lambda values: store.sign({**values, "accuracy_matrix": values["accuracy_matrix"][:-1]}),
    "a short row": last_row([0.5, 0.5]),
    "an accuracy of 93": last_row([93.0, 0.5, 0.5, 0.5, 0.5]),
    "an accuracy that is no number": last_row([float("nan"), 0.5, 0.5, 0.5, 0.5]),
    "accuracies that are not those of its final accuracy": last_row([1.0, 1.0, 1.0, 1.0, 1.0]),
    "transfer of two tasks": edited(accuracy_before=[0.1, 0.2], accuracy_untrained=[0.1, 0.2]),
    "transfer from nothing": edited(accuracy_before=[0.1, 0.2, 0.3, 0.4]),
    "transfer beyond all": edited(accuracy_before=[0.1] * 4, accuracy_untrained=[0.1, 0.1, 2.0, 0.1]),
    "a class without a count": edited(confusion=[[0, 3, 1], [1, 2]]),
    "a class that is none": edited(confusion=[[0, 3], [2, 2]]),
    "a class before the first": edited(confusion=[[-1, 3], [1, 2]]),
    "a class twice": edited(confusion=[[0, 3, 0, 2], [1, 2]]),
    "a count of none": edited(confusion=[[0, 0], [1, 2]]),
    "a count that is a share": edited(confusion=[[0, 0.5], [1, 2]]),
}


@pytest.fixture
def copies(tmp_path: Path) -> Path:
    """The fifteen results of three methods on digits."""
    return Path(shutil.copytree(STORED / "digits", tmp_path / "digits"))


def spoil(file: Path, damage: str) -> RunConfig:
    values = json.loads(file.read_text())
    file.write_text(DAMAGES[damage](values))
    return RunConfig(**values["config"])


def test_all_results_of_a_store_come_in_the_order_of_methods_and_seeds(copies: Path) -> None:
    found = [(result.config.method, result.config.seed) for result in store.load_all(copies)]
    assert found == [(method, seed) for method in ("finetune", "er", "er-fsl") for seed in range(5)]
    assert store.load_all(copies / "nothing here") == []


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_result_among_many_is_named_and_left_out(
    damage: str, copies: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = store.load_all(copies)
    file = copies / "digits-er-76d6d36ae9" / "seed-2" / "result.json"
    spoil(file, damage)
    found = store.load_all(copies)
    assert found == [result for result in whole if (result.config.method, result.config.seed) != ("er", 2)]
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{file} is damaged (")
    assert line.endswith("left out")


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_result_that_is_asked_for_is_named_and_not_used(
    damage: str, copies: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = copies / "digits-er-76d6d36ae9" / "seed-2" / "result.json"
    assert store.load_result(file.parent, spoil(file, damage)) is None
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{file} is damaged (")
    assert line.endswith("it does not count")


@pytest.mark.parametrize("config", [{"colour": "red"}, {"method": "er-fsl-9"}])
def test_a_result_of_what_is_not_known_here_is_left_out_and_not_called_damaged(
    config: dict[str, str], copies: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = copies / "digits-er-76d6d36ae9" / "seed-2" / "result.json"
    values = json.loads(file.read_text())
    settings = values["config"]["settings"]
    changed = {"settings": {**settings, **config}} if "colour" in config else config
    file.write_text(store.sign({**values, "config": {**values["config"], **changed}}))
    assert len(store.load_all(copies)) == 14
    assert f"{file} cannot be used here (" in capsys.readouterr().err


def test_any_other_byte_in_a_result_is_noticed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = store.folder(tmp_path, SHORT)
    place.mkdir(parents=True)
    store.save_result(place, undisturbed())
    file = place / "result.json"
    text = file.read_text()
    assert store.load_all(tmp_path) == [undisturbed()]
    file.write_bytes(text.replace("\n", "\r\n").encode())  # as git may hand it out on Windows
    assert store.load_all(tmp_path) == [undisturbed()]
    first, last = text.index('"accuracy_matrix"'), text.rindex("}")
    digits = [place for place in range(first, last) if text[place].isdigit()][::20]
    assert len(digits) > 10
    for digit in digits:
        file.write_text(text[:digit] + str((int(text[digit]) + 1) % 10) + text[digit + 1 :])
        assert store.load_all(tmp_path) == []
        assert f"{file} is damaged (its text does not give its hash)" in capsys.readouterr().err


def test_a_result_in_another_runs_folder_does_not_count_twice(copies: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = copies / "digits-er-76d6d36ae9"
    shutil.copy(place / "seed-0" / "result.json", place / "seed-3" / "result.json")
    seeds = [result.config.seed for result in store.load_all(copies) if result.config.method == "er"]
    assert seeds == [0, 1, 2, 4]
    assert f"{place / 'seed-3' / 'result.json'} is damaged (" in capsys.readouterr().err


def test_temporary_files_of_killed_processes_are_no_results(copies: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (copies / "digits-er-76d6d36ae9" / "seed-0" / ".result.json.x7k2").write_text("{")
    assert len(store.load_all(copies)) == 15
    assert capsys.readouterr().err == ""


# A full disk.


@contextlib.contextmanager
def no_file_larger_than(size: int) -> Iterator[None]:
    """Writing fails in the middle of a file, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.mark.parametrize(
    ("file", "size", "seconds"),
    [("evaluations.jsonl", 50, 1000), ("checkpoint.safetensors", 100_000, 0), ("result.json", 1000, 1000)],
)
def test_a_file_that_cannot_be_written_is_named_and_the_run_continues_later(
    file: str, size: int, seconds: float, tmp_path: Path
) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(SHORT, tmp_path, progress=stop_at_four)
    place = store.folder(tmp_path, SHORT)
    before = contents(place)
    assert set(before) == {"checkpoint.safetensors", "evaluations.jsonl"}
    with no_file_larger_than(size), pytest.raises(RunError) as caught:
        run(SHORT, tmp_path, checkpoint_seconds=seconds)
    assert f"cannot write {place / file}: " in str(caught.value)
    assert "too large" in str(caught.value)
    after = contents(place)
    if file == "result.json":  # by then there was more to say
        assert after.pop("evaluations.jsonl").startswith(before.pop("evaluations.jsonl"))
    assert after == before
    result = run(SHORT, tmp_path)
    assert replace(result, seconds=0) == replace(undisturbed(), seconds=0)
    assert set(contents(place)) == {"evaluations.jsonl", "result.json"}


FULL = """
import json, pathlib, sys
from onepass.bench import store
from onepass.errors import RunError
from onepass.bench.run_config import RunConfig
from onepass.bench.runner import run

disk = pathlib.Path(sys.argv[1])
config, other = RunConfig(**json.loads(sys.argv[2])), RunConfig("finetune", batch=30, fraction=0.2)


def stop(done, total):
    if done == 4:
        raise KeyboardInterrupt


def attempt(config):
    try:
        return run(config, disk / "out", checkpoint_seconds=0).fingerprint
    except RunError as error:
        return f"RunError: {error}"


def files():
    return {str(file): file.read_bytes() for file in sorted((disk / "out").rglob("*")) if file.is_file()}


try:
    run(config, disk / "out", progress=stop)
except KeyboardInterrupt:
    before = files()
try:
    with (disk / "filler").open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass
except OSError:
    pass
full, new, same = attempt(config), attempt(other), files() == before
(disk / "filler").unlink()
print(json.dumps({"full": full, "new": new, "same": same, "later": attempt(config)}))
"""


@pytest.mark.system
def test_on_a_full_disk_a_run_fails_by_name_and_with_room_again_ends_with_the_same_bits(tmp_path: Path) -> None:
    own = ["unshare", "-m" if os.geteuid() == 0 else "-rm", "sh", "-ec"]  # mounted for that process alone
    mount = 'mount -t tmpfs -o size=1m tmpfs "$1"; '
    if shutil.which("unshare") is None or subprocess.run([*own, mount, "sh", tmp_path], capture_output=True).returncode:
        pytest.skip("mounting is not allowed here; the tests with a limit on files' sizes stand in")
    words = [str(tmp_path), json.dumps(SHORT.to_json()), sys.executable, FULL]
    done = subprocess.run(
        [*own, mount + 'exec "$3" -c "$4" "$1" "$2"', "sh", *words],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    place = store.folder(tmp_path / "out", SHORT)
    assert found["full"].startswith(f"RunError: cannot write {place / 'checkpoint.safetensors'}: ")
    assert "No space left on device" in found["full"]
    assert found["new"].startswith("RunError: cannot write ")
    assert "No space left on device" in found["new"]
    assert found["same"], "what was there before must be untouched"
    assert found["later"] == undisturbed().fingerprint


# One process for each run.


def interrupt() -> None:
    raise KeyboardInterrupt


def test_a_claimed_folder_makes_others_wait_until_it_is_free(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = tmp_path / "out" / "seed-0", tmp_path / "out" / "seed-1"
    with store.claim(first, interrupt):
        assert first.is_dir()
        with store.claim(second, interrupt):  # of another run
            assert capsys.readouterr().err == ""
        with pytest.raises(KeyboardInterrupt), store.claim(first, interrupt):
            pytest.fail("claimed twice")
        assert str(first) in capsys.readouterr().err
    with store.claim(first, interrupt):
        assert list(first.iterdir()) == []


def test_a_claim_is_given_back_when_its_run_fails(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a bug"), store.claim(tmp_path, interrupt):
        raise ValueError("a bug")
    with store.claim(tmp_path, interrupt):
        pass


def test_who_waits_is_told_once_and_gets_the_folder_when_it_is_free(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = []
    with contextlib.ExitStack() as held:
        held.enter_context(store.claim(tmp_path, interrupt))

        def waiting() -> None:
            calls.append(1)
            if len(calls) == 3:
                held.close()

        with store.claim(tmp_path, waiting):
            assert len(calls) == 3
    assert capsys.readouterr().err.count("waiting") == 1


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    place = tmp_path / "file" / "seed-0"
    with pytest.raises(RunError, match=f"cannot write to {place}: "), store.claim(place, interrupt):
        pytest.fail("claimed")


COUNTED = """
import os, time
from onepass.methods.er import ER


class Counted(ER):
    def learn(self, batch, replay):
        with open("steps", "a") as file:
            file.write(f"{os.getpid()} {self.steps}\\n")
        time.sleep(0.05)
        return super().learn(batch, replay)
"""
ASKED = """
import pathlib, sys, time
from onepass.bench.run_config import RunConfig
from onepass.bench.runner import run

config = RunConfig("counted:Counted", batch=20, fraction=0.4, anytime=4, prequential=True, settings={"memory": 30})
print("ready", flush=True)
while not pathlib.Path("go").exists():
    time.sleep(0.002)
print(run(config, "out", checkpoint_seconds=0).fingerprint)
"""


def two_processes(here: Path) -> list[subprocess.Popen[str]]:
    """Two that ask for the same run at the same moment; every step of it is written down."""
    (here / "counted.py").write_text(COUNTED)
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(here)}
    pipe, command = subprocess.PIPE, [sys.executable, "-c", ASKED]
    pair = [subprocess.Popen(command, cwd=here, env=env, stdout=pipe, stderr=pipe, text=True) for _ in range(2)]
    for process in pair:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    (here / "go").touch()
    return pair


def steps(here: Path) -> list[tuple[int, int]]:
    """Process and number of every step made."""
    file = here / "steps"
    words = [line.split() for line in file.read_text().splitlines()] if file.exists() else []
    return [(int(pid), int(step)) for pid, step in words]


def same_by_er() -> str:
    config = RunConfig("er", batch=20, fraction=0.4, settings={"memory": 30})
    return run(config).fingerprint + "\n"


@pytest.mark.system
def test_two_processes_that_ask_for_the_same_run_train_it_once(tmp_path: Path) -> None:
    pair = two_processes(tmp_path)
    said = [process.communicate(timeout=600) for process in pair]
    assert [process.returncode for process in pair] == [0, 0]
    pids, numbers = zip(*steps(tmp_path), strict=True)
    assert numbers == tuple(range(30))
    assert len(set(pids)) == 1
    assert [out for out, _ in said] == [same_by_er()] * 2
    waited = ["is being trained by another process; waiting for its result" in err for _, err in said]
    assert waited == [process.pid != pids[0] for process in pair]


@pytest.mark.system
def test_when_the_first_process_is_killed_the_second_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    pair = two_processes(tmp_path)
    while len(steps(tmp_path)) < 10:
        assert all(process.poll() is None for process in pair)
        time.sleep(0.01)
    pid = steps(tmp_path)[0][0]
    [first], [second] = ([p for p in pair if (p.pid == pid) is mine] for mine in (True, False))
    first.send_signal(signal.SIGKILL)
    first.wait()
    out, err = second.communicate(timeout=600)
    assert (out, second.returncode) == (same_by_er(), 0)
    assert "waiting" in err
    before = [step for process, step in steps(tmp_path) if process == first.pid]
    after = [step for process, step in steps(tmp_path) if process == second.pid]
    assert before == list(range(len(before)))
    assert after[0] in (before[-1], before[-1] + 1), "a state is saved after every step"
    assert after == list(range(after[0], 30))
