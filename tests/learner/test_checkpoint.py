"""Checkpoints: safe, atomic, strict."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import onepass
from helpers import Counting
from onepass.errors import BadCheckpoint
from onepass.learner import checkpoint
from onepass.learner.batch import Batch, Task
from onepass.learner.checkpoint import fingerprint, flatten, load_tree, save_tree
from onepass.learner.contract import BaseLearner
from onepass.learner.problem import Problem
from onepass.methods.er import ERConfig

ANCHORED = """
from onepass.methods.er import ER

class Anchored(ER):
    def setup(self):
        self.anchor = self.net.head.weight.detach().clone()  # never changes, so it need not be in the state
"""
PROBLEM = Problem(n_classes=4, shape=(1, 8, 8), augment="digits", n_tasks=2)


def trained(method: str = "er-fsl", seed: int = 0) -> BaseLearner:
    learner = onepass.build(method, PROBLEM, net="small-cnn", seed=seed)
    learner.begin_task(Task(0, (0, 1)))
    rng = torch.Generator().manual_seed(1)
    for _ in range(4):
        x = torch.randint(256, (5, 1, 8, 8), dtype=torch.uint8, generator=rng)
        learner.observe(Batch(x, torch.randint(2, (5,), generator=rng)))
    return learner


def test_a_tree_comes_back_as_it_was(tmp_path: Path) -> None:
    matrix = torch.arange(6).reshape(2, 3).t()
    tree: dict[Any, Any] = {"a": [1, 2.5, None, True, "text"], 7: {"t": matrix, "empty": {}}, "b": (1, [])}
    save_tree(tmp_path / "t", tree)
    back = load_tree(tmp_path / "t")
    assert torch.equal(back[7].pop("t"), matrix)
    assert back == {"a": [1, 2.5, None, True, "text"], 7: {"empty": {}}, "b": [1, []]}


def test_tensors_that_share_memory_come_back_apart_and_equal(tmp_path: Path) -> None:
    whole = torch.arange(10.0)
    save_tree(tmp_path / "t", [whole[:5], whole[5:], whole])
    assert [part.tolist() for part in load_tree(tmp_path / "t")] == [
        list(range(5)),
        list(range(5, 10)),
        list(range(10)),
    ]


def test_what_is_no_plain_value_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    save_tree(tmp_path / "t", {"a": 1})
    with pytest.raises(TypeError, match="cannot hold set"):
        save_tree(tmp_path / "t", {"a": {1, 2}})
    assert load_tree(tmp_path / "t") == {"a": 1}


@pytest.mark.parametrize("method", onepass.METHODS)
def test_a_saved_learner_makes_the_next_step_it_would_have_made(method: str, tmp_path: Path) -> None:
    learner = trained(method)
    onepass.save(learner, tmp_path / "learner.safetensors")
    loaded = onepass.load(tmp_path / "learner.safetensors")
    assert loaded.config == learner.config
    batch = Batch(torch.full((3, 1, 8, 8), 99, dtype=torch.uint8), torch.tensor([0, 1, 1]))
    assert torch.equal(loaded.observe(batch), learner.observe(batch))
    assert fingerprint(loaded.state_dict()) == fingerprint(learner.state_dict())


# What loading costs is counted: a clock would tell of the machine.


@pytest.mark.parametrize("method", ["er", "er-fsl", "obc"])
def test_loading_draws_nothing_and_copies_every_number_once(method: str, tmp_path: Path) -> None:
    onepass.save(trained(method), tmp_path / "model")
    with Counting() as count:
        loaded = onepass.load(tmp_path / "model")
    assert count.drawn == []
    whole = (tmp_path / "model").stat().st_size
    assert 0.9 * whole < count.copied < 1.1 * whole
    assert loaded.steps == 4


def test_loading_hashes_every_byte_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed = 0

    class Sha256:
        def __init__(self, content: bytes) -> None:
            self.inner = hashlib.sha256()
            self.update(content)

        def update(self, content: bytes) -> None:
            nonlocal hashed
            hashed += len(content)
            self.inner.update(content)

        def hexdigest(self) -> str:
            return self.inner.hexdigest()

    onepass.save(trained("er"), tmp_path / "model")
    monkeypatch.setattr(checkpoint, "hashlib", SimpleNamespace(sha256=Sha256))
    onepass.load(tmp_path / "model")
    assert 0.9 < hashed / (tmp_path / "model").stat().st_size < 1.1


@pytest.mark.system
def test_loading_predicting_and_saving_import_no_compiler(tmp_path: Path) -> None:
    for method in ("er", "ocm", "er-cba"):  # steps by SGD, by Adam, by both; heads of their own
        onepass.save(trained(method), tmp_path / method)
    program = f"""
import sys, torch, onepass
for name in ("er", "ocm", "er-cba"):
    learner = onepass.load({str(tmp_path)!r} + "/" + name)
    learner.predict(torch.zeros(2, 1, 8, 8, dtype=torch.uint8))
    onepass.save(learner, {str(tmp_path)!r} + "/again")
print([name for name in ("torch._dynamo", "sympy") if name in sys.modules])
learner.observe(onepass.Batch(torch.zeros(2, 1, 8, 8, dtype=torch.uint8), torch.tensor([0, 1])))
print(torch.optim.Optimizer.add_param_group.__wrapped__.__dict__.get("__dynamo_disable") is None)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:2] == ["[]", "True"]


@pytest.mark.system
def test_loading_any_method_imports_no_compiler_but_for_two(tmp_path: Path) -> None:
    others = ("mose", "randumb")  # torch works out sizes of what they make with parts of its compiler
    names = [name for name in onepass.METHODS if name not in others]
    for name in names:
        onepass.save(onepass.build(name, onepass.Problem(4, (3, 8, 8), n_tasks=2)), tmp_path / name)
    program = f"""
import sys, onepass
for name in {names}:
    onepass.load({str(tmp_path)!r} + "/" + name)
    if "torch._dynamo" in sys.modules or "sympy" in sys.modules:
        sys.exit(name)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_method_of_ones_own_starts_from_the_weights_it_drew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "anchored.py").write_text(ANCHORED)
    monkeypatch.syspath_prepend(tmp_path)
    learner = onepass.build("anchored:Anchored", PROBLEM, net="small-cnn", seed=3)
    onepass.save(learner, tmp_path / "model")
    loaded = onepass.load(tmp_path / "model", allow=("anchored:Anchored",))
    assert torch.equal(loaded.anchor, learner.anchor)  # type: ignore[arg-type]


def test_a_grown_learner_is_saved_and_loaded(tmp_path: Path) -> None:
    learner = trained()
    learner.grow(9)
    onepass.save(learner, tmp_path / "l")
    assert onepass.load(tmp_path / "l").problem.n_classes == 9


def test_only_the_filled_part_of_a_memory_is_written(tmp_path: Path) -> None:
    config = ERConfig(memory=10_000_000)
    onepass.save(onepass.build("er", PROBLEM, config, net="small-cnn"), tmp_path / "l")
    assert (tmp_path / "l").stat().st_size < 2_000_000


def test_cutting_a_checkpoint_anywhere_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "l"
    onepass.save(trained(), path)
    whole = path.read_bytes()
    for size in (0, 5, 8, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(BadCheckpoint, match="is damaged or no checkpoint"):
            onepass.load(path)


def test_a_single_changed_byte_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "l"
    onepass.save(trained(), path)
    whole = path.read_bytes()
    for place in (len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(BadCheckpoint, match="its contents are not what was written"):
            onepass.load(path)
    with pytest.raises(BadCheckpoint, match="is a folder; give a file that onepass"):
        onepass.load(tmp_path)


def test_a_checkpoint_from_before_there_were_hashes_is_read(tmp_path: Path) -> None:
    tensors: dict[str, torch.Tensor] = {}
    header = {"format": "onepass-1", "tree": json.dumps(flatten({"a": torch.ones(2)}, tensors))}
    save_file(tensors, tmp_path / "old", metadata=header)
    assert load_tree(tmp_path / "old")["a"].tolist() == [1, 1]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"<html>not found</html>", "is damaged or no checkpoint"),
        (b"\x80\x04K\x01.", "is damaged or no checkpoint"),
    ],
)
def test_other_files_are_refused(content: bytes, complaint: str, tmp_path: Path) -> None:
    (tmp_path / "l").write_bytes(content)
    with pytest.raises(BadCheckpoint, match=complaint):
        onepass.load(tmp_path / "l")


def test_foreign_checkpoints_are_named_as_such(tmp_path: Path) -> None:
    save_file({"w": torch.ones(3)}, tmp_path / "foreign")
    with pytest.raises(BadCheckpoint, match="reads onepass-1: onepass did not write it"):
        onepass.load(tmp_path / "foreign")
    save_tree(tmp_path / "tree", {"method": "er"})
    with pytest.raises(BadCheckpoint, match="holds no learner"):
        onepass.load(tmp_path / "tree")
    with pytest.raises(BadCheckpoint, match="no checkpoint at"):
        onepass.load(tmp_path / "nothing")


def test_a_checkpoint_of_another_network_is_refused(tmp_path: Path) -> None:
    learner = trained()
    learner.recipe = {**(learner.recipe or {}), "net": "slim-resnet18"}
    onepass.save(learner, tmp_path / "l")
    with pytest.raises(BadCheckpoint, match="does not fit er-fsl: its spaces is not"):
        onepass.load(tmp_path / "l")


def test_a_full_disk_leaves_the_old_checkpoint_and_no_rubbish(tmp_path: Path) -> None:
    """A real one as far as the process can tell: files may not grow beyond 64 KiB."""
    program = """
import resource, signal, sys
from pathlib import Path
import torch
from onepass.learner.checkpoint import save_tree
from onepass.errors import RunError
save_tree(Path("c"), {"a": 1})
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))
try:
    save_tree(Path("c"), {"a": torch.zeros(1_000_000)})
except RunError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert "cannot write c" in done.stdout, done.stderr
    assert "what was there before is untouched" in done.stdout
    assert load_tree(tmp_path / "c") == {"a": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


def test_there_is_no_pickle_in_a_checkpoint(tmp_path: Path) -> None:
    onepass.save(trained(), tmp_path / "l")
    content = (tmp_path / "l").read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    assert header["__metadata__"]["format"] == "onepass-1"
    assert all(set(entry) == {"dtype", "shape", "data_offsets"} for name, entry in header.items() if name[:2] != "__")
