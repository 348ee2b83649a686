"""What predicts as a graph of torch's core operators: for the small file, for ONNX, for torch.export.

The file for prediction holds that graph and its weights: no images, no method, no code of anybody's. To open it runs
nothing but operators that compute, and how much each will make is known before it does.
"""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from onepass.errors import BadCheckpoint, UsageError
from onepass.learner.checkpoint import load_tree, save_tree
from onepass.learner.predictor import Predictor
from onepass.live.labels import plain_label
from onepass.live.operators import NUMBERS, SIZES, name_of, operator_of
from onepass.live.snapshot import Snapshot

KIND = "onepass prediction"
VERSION = 1
MOST = 4096  # samples that a program takes at once
LARGEST = 1 << 30  # bytes that may be held at a time on the way of samples
MOST_NODES = 100_000
WHERE = ("device", "layout", "pin_memory")  # what operators are told about places in memory
CHUNK = {3: 64, 1: 512}  # samples passed at once, of images and of vectors, if there is room for them


class Pipeline(nn.Module):
    """From samples as they come to scores, or to probabilities."""

    columns: Tensor

    def __init__(self, snapshot: Snapshot, probabilities: bool) -> None:
        super().__init__()
        if not isinstance(snapshot.scorer, Predictor):
            raise UsageError("Expected a model that goes on learning, got a file for prediction alone.")
        self._hidden = [snapshot.scorer]  # no submodule: what it does not predict by stays behind
        self.temperature, self.probabilities = snapshot.temperature, probabilities
        self.register_buffer("columns", snapshot.scorer.seen_classes.clone())

    def forward(self, x: Tensor) -> Tensor:
        scores = self._hidden[0].exact_scores(x).index_select(1, self.columns)
        return torch.softmax(scores / self.temperature, dim=1) if self.probabilities else scores


def export_program(snapshot: Snapshot, *, probabilities: bool = True) -> torch.export.ExportedProgram:
    """What predicts, as torch exports it, for any number of samples."""
    dtype = torch.uint8 if len(snapshot.shape) == 3 else torch.float32
    example = torch.zeros(3, *snapshot.shape, dtype=dtype)
    n = torch.export.Dim("n", min=1, max=MOST)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, about its own deprecations
        try:
            pipeline = Pipeline(snapshot, probabilities).eval()
            found = torch.export.export(pipeline, (example,), dynamic_shapes=({0: n},))
            decomposed: torch.export.ExportedProgram = found.run_decompositions()
            return decomposed
        except UsageError:
            raise
        except Exception as error:  # whatever a network of one's own does that no graph can say
            words = str(error).strip().partition("\n")[0]
            raise UsageError(f"Expected a network that torch can export, got one that it cannot: {words}") from error


def save_program(snapshot: Snapshot, path: Path | str) -> None:
    """The file for prediction alone."""
    exported = export_program(snapshot, probabilities=False)
    signature = exported.graph_signature
    held = {**signature.inputs_to_buffers, **signature.inputs_to_parameters}
    constants = signature.inputs_to_lifted_tensor_constants
    tensors: list[Tensor] = []
    places: dict[torch.fx.Node, int] = {}
    steps: list[Any] = []
    inputs = [node for node in exported.graph.nodes if node.op == "placeholder"]
    for node in inputs:
        if node.name in held or node.name in constants:
            value = exported.constants[constants[node.name]] if node.name in constants else None
            tensors.append(exported.state_dict[held[node.name]] if value is None else value)
            places[node] = len(tensors) - 1
    places[next(node for node in inputs if node not in places)] = len(tensors)
    output: Any = None
    for node in exported.graph.nodes:
        if node.op == "call_function" and "_assert" not in str(node.target):
            places[node] = len(tensors) + 1 + len(steps)
            kwargs = {
                k: _plain(v, places) for k, v in node.kwargs.items() if k not in ("device", "layout", "pin_memory")
            }
            name = name_of(node.target)
            if name not in SIZES and name not in NUMBERS:
                raise UsageError(
                    f"Expected a network of the operators that a file may use, got {name}. Export to ONNX."
                )
            steps.append([name, [_plain(value, places) for value in node.args], kwargs])
        elif node.op == "output":
            output = places[node.args[0][0]]
    tree = {
        "kind": KIND,
        "version": VERSION,
        "names": list(snapshot.names),
        "shape": list(snapshot.shape),
        "temperature": snapshot.temperature,
        "calibrated": snapshot.calibrated,
        "learned": snapshot.learned,
        "tensors": tensors,
        "steps": steps,
        "output": output,
    }
    save_tree(Path(path), tree)


def _plain(value: Any, places: dict[torch.fx.Node, int]) -> Any:
    """An argument as JSON has it: what is none of its own is a dict with one key."""
    if isinstance(value, torch.fx.Node):
        return {"node": places[value]}
    if isinstance(value, list | tuple):
        return [_plain(item, places) for item in value]
    if isinstance(value, torch.dtype | torch.memory_format):
        return {"torch": str(value).removeprefix("torch.")}
    if isinstance(value, float) and value in (float("inf"), -float("inf")):
        return {"float": str(value)}
    if value is None or isinstance(value, bool | int | float):
        return value
    raise UsageError(f"Expected a network of numbers, got one with {value!r} in its graph.")


class Program:
    """A graph that was read from a file."""

    def __init__(self, tensors: list[Tensor], steps: list[Any], output: int, shape: tuple[int, ...]) -> None:
        self.tensors, self.output, self.shape = tensors, output, shape
        self.chunk = CHUNK.get(len(shape), 64)
        self.steps = [(operator_of(name), args, kwargs) for name, args, kwargs in steps]
        self.last: dict[int, list[int]] = {}  # what is used for the last time in each step
        used: dict[int, int] = {}
        for number, (_, args, kwargs) in enumerate(self.steps):
            for place in _places([args, list(kwargs.values())]):
                used[place] = number
        for place, number in used.items():
            if place > len(tensors) and place != output:
                self.last.setdefault(number, []).append(place)

    @torch.inference_mode()
    def scores(self, x: Tensor) -> Tensor:
        return torch.cat([self.run([*self.tensors, part])[0] for part in x.split(self.chunk)])

    def run(self, values: list[Any]) -> tuple[Tensor, int]:
        """What comes out, and how many bytes were held at most. How much a step will make is known before it."""
        held = most = 0
        for number, ((function, size), args, kwargs) in enumerate(self.steps):
            given = [_value(value, values) for value in args]
            named = {name: _value(value, values) for name, value in kwargs.items()}
            makes = size(*given, **named) * _width(given, named)
            if held + makes > LARGEST:
                raise BadCheckpoint(f"the program would hold more than {LARGEST:,} bytes at a time")
            most = max(most, held + makes)
            values.append(function(*given, **named))
            held += _bytes(values[-1])
            for place in self.last.get(number, ()):
                held -= _bytes(values[place])
                values[place] = None  # its memory is free for what comes
        found: Tensor = values[self.output]
        return found, most

    def check(self, classes: int) -> None:
        """Pass one sample, and look before each step at how much it will make; a score for each class comes out."""
        dtype = torch.uint8 if len(self.shape) == 3 else torch.float32
        if math.prod(self.shape) > LARGEST // 4:
            raise ValueError(f"its samples have more than {LARGEST // 4:,} values")
        found, most = self.run([*self.tensors, torch.zeros(1, *self.shape, dtype=dtype)])
        if not isinstance(found, Tensor) or found.shape != (1, classes) or not found.is_floating_point():
            raise ValueError(f"it does not give a score for each of its {classes} classes")
        self.chunk = max(1, min(self.chunk, LARGEST // max(1, 2 * most)))


def _bytes(value: Any) -> int:
    if isinstance(value, Tensor):
        return value.numel() * value.element_size()
    return sum(map(_bytes, value)) if isinstance(value, list | tuple) else 0


def _width(given: list[Any], named: dict[str, Any]) -> int:
    """Bytes of a value that an operator makes of these, at most."""
    values = [one for value in (*given, *named.values()) for one in (value if isinstance(value, list) else [value])]
    widths = [one.element_size() for one in values if isinstance(one, Tensor)]
    return max([4, *widths, *(one.itemsize for one in values if isinstance(one, torch.dtype))])


def _places(value: Any) -> set[int]:
    if isinstance(value, dict):
        return {value["node"]} if "node" in value else set()
    return set().union(*map(_places, value)) if isinstance(value, list) else set()


def _value(value: Any, values: list[Any]) -> Any:
    if isinstance(value, list):
        return [_value(item, values) for item in value]
    if not isinstance(value, dict):
        return value
    [(kind, inner)] = value.items()
    if kind == "node":
        return values[inner]
    return float(inner) if kind == "float" else _of_torch(inner)


def _of_torch(name: str) -> Any:
    found = getattr(torch, name)
    if not isinstance(found, torch.dtype | torch.memory_format):
        raise ValueError(f"{name!r} is no kind of number")
    return found


def load_program(path: Path | str) -> Snapshot:
    """What predicts, from its file."""
    return program_from_tree(load_tree(Path(path)), Path(path))


def program_from_tree(tree: Any, path: Path) -> Snapshot:
    """What predicts, from a tree that was read from a path."""
    if not isinstance(tree, dict) or tree.get("kind") != KIND:
        raise BadCheckpoint(f"{path} holds nothing to predict by: give a file that onepass export wrote")
    if tree.get("version") != VERSION:
        raise BadCheckpoint(f"{path} has version {tree.get('version')}; this onepass reads version {VERSION}")
    try:
        names = tuple(plain_label(name) for name in tree["names"])
        shape = tuple(int(side) for side in tree["shape"])
        temperature, steps, tensors = float(tree["temperature"]), tree["steps"], tree["tensors"]
        calibrated, learned = bool(tree["calibrated"]), int(tree["learned"])
        if (
            len(steps) > MOST_NODES
            or not 0 < temperature < float("inf")
            or not all(0 < side < 1 << 16 for side in shape)
        ):
            raise ValueError("its numbers are absurd")
        program = Program(tensors, steps, int(tree["output"]), shape)
        if not names or len(set(names)) < len(names):
            raise ValueError("its names of classes are none")
        program.check(len(names))
    except Exception as error:  # whatever operators say of arguments that do not fit
        raise BadCheckpoint(f"{path} is damaged: {str(error).partition(chr(10))[0]}") from error
    return Snapshot(names, shape, temperature, calibrated, program, 0, learned)
