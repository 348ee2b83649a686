"""The file of a model: whole or not at all, its owner's alone, bounded; what predicts without the model; autosave."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from helpers import linux_only
from onepass.errors import BadCheckpoint, RunError, UsageError
from onepass.learner.checkpoint import fingerprint, load_tree, save_tree
from onepass.live import state
from onepass.live.model import Model
from onepass.live.program import Program, load_program, save_program
from onepass.live.state import load_model, model_tree, older_copy, open_snapshot, save_model


def digits(n: int) -> tuple[Tensor, list[str]]:
    data = load_digits()
    return (torch.from_numpy(data.images[:n]) * 15).byte()[:, None], [f"d{c}" for c in data.target[:n]]


def small(method: str = "er", **more: Any) -> Model:
    return Model.create((1, 8, 8), method=method, net="small-cnn", augment="digits", **more)


@pytest.mark.parametrize("method", ["er", "er-ace", "slda", "derpp"])
def test_a_loaded_model_goes_on_as_the_saved_one(method: str, tmp_path: Path) -> None:
    x, y = digits(400)
    model = small(method, memory=50)
    model.learn(x[:200], y[:200])
    model.cursor.tree["place"] = 7
    save_model(model, tmp_path / "m.onepass")
    loaded = load_model(tmp_path / "m.onepass")
    assert loaded.cursor.tree == {"place": 7}
    assert fingerprint(model_tree(loaded)) == fingerprint(model_tree(model))
    for one in (model, loaded):
        one.learn(x, y)
    assert model.learned == loaded.learned == 400
    for part in ("learner", "journal", "names", "counts"):
        assert fingerprint(model_tree(loaded)[part]) == fingerprint(model_tree(model)[part]), part


def test_a_model_that_has_learned_nothing_is_saved_too(tmp_path: Path) -> None:
    save_model(small("slda"), tmp_path / "m.onepass")
    assert load_model(tmp_path / "m.onepass").learned == 0


def test_three_copies_are_kept_and_all_are_their_owners(tmp_path: Path) -> None:
    x, y = digits(50)
    model, path = small("slda"), tmp_path / "m.onepass"
    for n in range(5):
        model.learn(x[10 * n : 10 * n + 10], y[10 * n : 10 * n + 10])
        save_model(model, path)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["m.onepass", "m.onepass.1", "m.onepass.2"]
    assert [load_model(file).learned for file in (path, older_copy(path, 1), older_copy(path, 2))] == [50, 40, 30]
    assert {stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()} == {0o600}
    content = bytearray(path.read_bytes())
    content[-20] ^= 1
    path.write_bytes(content)
    with pytest.raises(BadCheckpoint, match=r"damaged.*older copies: .*m\.onepass\.1, .*m\.onepass\.2"):
        load_model(path)
    (tmp_path / ".m.onepass.before").write_bytes(content)  # of a process that was killed
    state.remove_older(path)
    assert [file.name for file in tmp_path.iterdir()] == ["m.onepass"]


CHANGES: list[dict[str, Any]] = [
    {"version": 2},
    {"kind": "x"},
    {"batch": 0},
    {"names": ["a"]},
    {"names": [1.5, None]},
    {"counts": [-1] * 10},
    {"cursor": 5},
    {"journal": 5},
    {"prequential": {}},
    {"learner": 5},
    {"learner": {"method": "er"}},
    {"learner": None},
    {"names": ["a", 1, *"bcdefghi"]},
    {"batch": 10**9},
]


@pytest.mark.parametrize("changes", CHANGES, ids=str)
def test_a_file_that_claims_something_odd_is_refused(changes: dict[str, Any], tmp_path: Path) -> None:
    x, y = digits(30)
    model = small()
    model.learn(x, y)
    save_tree(tmp_path / "m", {**model_tree(model), **changes})
    with pytest.raises(BadCheckpoint):
        load_model(tmp_path / "m")


def test_a_file_imports_only_what_is_allowed(tmp_path: Path) -> None:
    x, y = digits(30)
    model = small()
    model.learn(x, y)
    tree = model_tree(model)
    tree["learner"]["method"] = "antigravity:Learner"
    save_tree(tmp_path / "m", tree)
    with pytest.raises(UsageError, match="names a method of its own"):
        load_model(tmp_path / "m")
    assert "antigravity" not in sys.modules


@linux_only
def test_a_full_disk_leaves_the_old_file_and_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from onepass.live.autosave import Autosave

    x, y = digits(60)
    model, path = small("slda"), tmp_path / "m.onepass"
    model.learn(x[:30], y[:30])
    saving = Autosave(model, path, seconds=1000)
    assert saving.save()
    before = path.read_bytes()
    model.learn(x[30:], y[30:])

    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        assert not saving.save()
    assert "No space left" in saving.failure
    assert path.read_bytes() == before
    assert saving.save()
    saving.close()
    assert load_model(path).learned == 60
    assert {file.name for file in tmp_path.iterdir()} == {"m.onepass", "m.onepass.1"}
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(RunError, match="untouched"):
            save_model(model, path)


PROGRAM = """
import sys, time, numpy as np
from onepass import StreamClassifier
x = np.random.default_rng(0).normal(size=(2000, 6))
y = ["a" if row[0] > 0 else "b" for row in x]
model = StreamClassifier(autosave=sys.argv[1])
for n in range(int(sys.argv[2])):
    model.partial_fit(x[n : n + 1], y[n : n + 1], sample_ids=[str(n)])
    print(n, flush=True)
    time.sleep(0.01)
"""


@pytest.mark.system
def test_the_end_of_the_process_and_sigterm_save(tmp_path: Path) -> None:
    path = tmp_path / "m.onepass"
    subprocess.run([sys.executable, "-c", PROGRAM, str(path), "5"], check=True, stdout=subprocess.DEVNULL)
    assert load_model(path).learned == 5
    path.unlink()
    running = subprocess.Popen([sys.executable, "-c", PROGRAM, str(path), "2000"], stdout=subprocess.PIPE, text=True)
    assert running.stdout is not None
    for line in running.stdout:
        if int(line) == 20:
            break
    running.send_signal(signal.SIGTERM)
    last = int((running.stdout.read().split() or ["20"])[-1])
    assert running.wait(timeout=60) == -signal.SIGTERM
    assert load_model(path).learned in (last + 1, last + 2), "all that was told, and perhaps the one after it"


def test_threads_ask_while_another_learns() -> None:
    import threading

    x, y = digits(600)
    model = small("slda")
    model.learn(x[:100], y[:100])
    model.snapshot()
    failures: list[Exception] = []
    done = threading.Event()

    def ask() -> None:
        try:
            while not done.is_set():
                snapshot = model.latest
                assert snapshot is not None
                assert torch.allclose(snapshot.probabilities(x[:5]).sum(1), torch.ones(5, dtype=torch.float64))
                model.class_counts()
                model.snapshot()
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    before = model.latest
    assert before is not None
    answers = before.probabilities(x[:20])
    for start in range(100, 600, 20):
        model.learn(x[start : start + 20], y[start : start + 20])
    done.set()
    for thread in threads:
        thread.join()
    assert not failures
    assert torch.equal(before.probabilities(x[:20]), answers), "a snapshot never changes"


# What predicts alone.


@pytest.mark.parametrize("method", ["slda", "patch-lda", "scr", "er-fsl+", "obc"])
def test_a_file_for_prediction_answers_alike_and_holds_no_images(method: str, tmp_path: Path) -> None:
    x, y = digits(200)
    settings = {"patch-lda": {"filters": 10, "first": 50}, "er-fsl+": {"subspace": 10}}.get(method)
    model = small(method, memory=100, settings=settings)
    model.learn(x[:150], y[:150])
    save_program(model.snapshot(), tmp_path / "p.onepass")
    save_model(model, tmp_path / "m.onepass")
    found = open_snapshot(tmp_path / "p.onepass")
    assert found.names == model.snapshot().names
    assert torch.allclose(
        found.probabilities(x), model.snapshot().probabilities(x), atol=1e-4 if method == "scr" else 1e-6
    )
    held = load_tree(tmp_path / "p.onepass")["tensors"]
    assert all(value.dtype != torch.uint8 for value in held)
    assert torch.allclose(open_snapshot(tmp_path / "m.onepass").scores(x), model.snapshot().scores(x))
    with pytest.raises(BadCheckpoint, match="no model that goes on learning"):
        load_model(tmp_path / "p.onepass")


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file for prediction, exported once: torch takes half a second for it."""
    x, y = digits(60)
    model = small("slda")
    model.learn(x, y)
    path = tmp_path_factory.mktemp("exported") / "p"
    save_program(model.snapshot(), path)
    return path


@pytest.fixture
def prediction(exported: Path) -> dict[str, Any]:
    tree: dict[str, Any] = load_tree(exported)
    return tree


@pytest.mark.parametrize(
    "step",
    [
        ["empty", [[10**12]], {}],
        ["expand", [{"node": 0}, [10**12]], {}],
        ["add_.Tensor", [{"node": 0}, 1], {}],
        ["__class__", [], {}],
        ["constant_pad_nd", [{"node": 0}, [0, 10**12]], {}],
        [5, [], {}],
        ["relu", [{"node": 999}], {}],
        ["_to_copy", [{"node": 0}], {"dtype": {"torch": "load"}}],
        ["mul", [[0], 10**10], {}],
        ["mul", ["a", 10**10], {}],
        ["mul", [10**18, 10**18], {}],
        ["add", [{"node": 0}, {"node": 0}], {}],
        ["getitem", [{"node": 0}, 0], {}],
        ["getitem", [[1], [0]], {}],
    ],
    ids=str,
)
def test_a_file_for_prediction_runs_nothing_but_bounded_arithmetic(
    step: list[Any], prediction: dict[str, Any], tmp_path: Path
) -> None:
    save_tree(tmp_path / "p", {**prediction, "steps": [*prediction["steps"], step]})
    with pytest.raises(BadCheckpoint, match="is damaged"):
        load_program(tmp_path / "p")


def _program(path: Path, tensors: list[Tensor], steps: list[Any], shape: list[int]) -> None:
    head = {"kind": "onepass prediction", "version": 1, "names": ["a", "b"], "temperature": 1.0, "calibrated": False}
    last = len(tensors) + len(steps)
    save_tree(path, {**head, "shape": shape, "learned": 0, "tensors": tensors, "steps": steps, "output": last})


def test_what_a_file_for_prediction_holds_at_a_time_is_bounded(tmp_path: Path) -> None:
    """Each step alone makes 400 MB; three of them are kept until the last."""
    wide = ["clone", [{"node": 2}], {}]
    steps = [["expand", [{"node": 0}, [100, 1_000_000]], {}], wide, wide, wide]
    steps += [["maximum", [{"node": 3}, {"node": 4}], {}], ["maximum", [{"node": 5}, {"node": 6}], {}]]
    _program(tmp_path / "p", [torch.zeros(1, 1_000_000)], steps, [4])
    with pytest.raises(BadCheckpoint, match="more than 1,073,741,824 bytes at a time"):
        load_program(tmp_path / "p")


def test_a_program_that_needs_much_for_a_sample_takes_few_at_a_time(tmp_path: Path) -> None:
    """65 MB a sample: nobody lays out 64 of them."""
    steps: list[Any] = [
        ["expand", [{"node": 0}, [1, 8_000_000]], {}],
        ["mm", [{"node": 1}, {"node": 2}], {}],
        ["slice.Tensor", [{"node": 3}, 1, 0, 2], {}],
    ]
    _program(tmp_path / "p", [torch.ones(1, 1)], steps, [1])
    found = load_program(tmp_path / "p")
    assert isinstance(found.scorer, Program)
    assert 1 <= found.scorer.chunk <= 16
    assert found.scores(torch.arange(20.0)[:, None]).tolist() == [[n, n] for n in range(20)]


def test_a_program_whose_need_grows_faster_than_its_samples_is_stopped(tmp_path: Path) -> None:
    """(n, 1) beside (1, n): 8 KB for one sample, and for 512 of them two gigabytes."""
    steps: list[Any] = [
        ["expand", [{"node": 1}, [-1, 2000]], {}],
        ["permute", [{"node": 2}, [1, 0]], {}],
        ["view", [{"node": 3}, [1, -1]], {}],
        ["mul.Tensor", [{"node": 1}, {"node": 4}], {}],
        ["slice.Tensor", [{"node": 5}, 1, 0, 2], {}],
    ]
    _program(tmp_path / "p", [torch.ones(1, 1)], steps, [1])
    found = load_program(tmp_path / "p")
    with pytest.raises(BadCheckpoint, match="bytes at a time"):
        found.scores(torch.ones(512, 1))


@pytest.mark.parametrize(
    "name", ["learned", "calibrated", "names", "shape", "temperature", "tensors", "steps", "output"]
)
def test_a_program_without_one_of_its_parts_is_damaged(name: str, prediction: dict[str, Any], tmp_path: Path) -> None:
    for odd in ({key: value for key, value in prediction.items() if key != name}, {**prediction, name: [[]]}):
        save_tree(tmp_path / "p", odd)
        with contextlib.suppress(BadCheckpoint):  # [[]] may be as true as any
            load_program(tmp_path / "p")
            assert name == "calibrated"
            assert odd[name] == [[]]


@pytest.mark.parametrize("names", [["a"], ["a", "b", "c"], [], ["a", "a"]], ids=str)
def test_a_program_gives_a_score_for_each_name(names: list[str], prediction: dict[str, Any], tmp_path: Path) -> None:
    save_tree(tmp_path / "p", {**prediction, "names": names})
    with pytest.raises(BadCheckpoint, match="is damaged"):
        load_program(tmp_path / "p")


class Strange(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) * (2.0 if float(x.sum()) > 0 else 1.0)


def test_a_network_that_torch_cannot_export_is_named_so(tmp_path: Path) -> None:
    x, y = digits(30)
    model = Model.create((1, 8, 8), method="slda", net=Strange())
    model.learn(x, y)
    with pytest.raises(UsageError, match="a network that torch can export"):
        save_program(model.snapshot(), tmp_path / "p")


@pytest.mark.system
def test_a_prediction_file_opens_without_what_exports(exported: Path) -> None:
    code = (
        "import sys, torch; from onepass.live.program import load_program; load_program(sys.argv[1]);"
        "sys.exit('sympy' in sys.modules or 'sklearn' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(exported)]).returncode == 0


def test_a_model_that_knows_nothing_is_saved_and_learns_on(tmp_path: Path) -> None:
    save_model(Model.create((1, 8, 8), method="er", memory=10), tmp_path / "m.onepass")
    model = load_model(tmp_path / "m.onepass")
    assert model.learn(torch.zeros(1, 1, 8, 8, dtype=torch.uint8), ["a"]).learned == 1
