"""One safe file for everything a learner or a run needs: safetensors with a JSON tree in its header, no pickle."""

from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path
from typing import IO, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load as load_tensors
from torch import Tensor

from onepass.errors import BadCheckpoint, RunError, lacks_memory
from onepass.files import atomic

FORMAT = "onepass-1"
DTYPES = {  # as the safetensors format names them
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.int32: "I32",
    torch.int64: "I64",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.float64: "F64",
}


def save_tree(path: Path, tree: Any) -> None:
    """A tree of dicts, lists, numbers, strings and tensors. A new file is its owner's alone: it may hold images."""
    tensors: dict[str, Tensor] = {}
    text = json.dumps(flatten(tree, tensors), allow_nan=False)
    metadata = {"format": FORMAT, "tree": text, "sha256": _digest(text, tensors)}
    atomic(path, lambda file: _write(file, tensors, metadata), private=True)


def _write(file: IO[bytes], tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """The safetensors format. The library's own writer makes a temporary copy, and leaves it behind when killed."""
    header: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for name, value in tensors.items():
        begin, end = end, end + value.numel() * value.element_size()
        header[name] = {"dtype": DTYPES[value.dtype], "shape": list(value.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)
    for value in tensors.values():
        file.write(_bytes(value))


def _bytes(value: Tensor) -> memoryview:
    if not value.numel():  # what came from NumPy may then have strides that torch takes for no layout at all
        return memoryview(b"")
    return value.cpu().contiguous().flatten().view(torch.uint8).numpy().data


def load_tree(path: Path) -> Any:
    try:
        if not path.is_dir():
            path.open("rb").close()  # the system's errors, which safetensors turns into its own
    except FileNotFoundError:
        raise BadCheckpoint(f"no checkpoint at {path}") from None
    except OSError as error:
        raise RunError(f"{path} cannot be read now: {error.strerror}; mend that, or take another file") from error
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # no mapping
    except (SafetensorError, OSError) as error:
        what = "is a folder" if path.is_dir() else f"is damaged or no checkpoint: {error}"
        raise BadCheckpoint(f"{path} {what}; give a file that onepass.save wrote") from error
    except RuntimeError as error:  # torch opens it once more, to map it
        if lacks_memory(error):
            raise
        raise RunError(f"{path} cannot be read now: {error}; mend that, or take another file") from error
    if header.get("format") != FORMAT:
        found = f"its format is {header['format']}" if "format" in header else "onepass did not write it"
        raise BadCheckpoint(f"{path} cannot be read by this version, which reads {FORMAT}: {found}")
    if "sha256" in header and header["sha256"] != _digest(header.get("tree", ""), tensors):
        raise BadCheckpoint(f"{path} is damaged: its contents are not what was written; take an older copy")
    try:
        return _unflatten(json.loads(header["tree"]), tensors)
    except (KeyError, ValueError, TypeError, RecursionError) as error:
        raise BadCheckpoint(f"{path} is damaged: {error!r}") from error


def tree_bytes(tree: Any) -> bytes:
    """A tree as the bytes of a file, for another process of ours."""
    tensors: dict[str, Tensor] = {}
    content = io.BytesIO()
    _write(content, tensors, {"format": FORMAT, "tree": json.dumps(flatten(tree, tensors), allow_nan=False)})
    return content.getvalue()


def tree_from_bytes(content: bytes) -> Any:
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    return _unflatten(json.loads(header["__metadata__"]["tree"]), load_tensors(content))


def flatten(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, Tensor):
        name = str(len(tensors))
        tensors[name] = value.detach().contiguous().clone() if _shared(value, tensors) else value.detach().contiguous()
        return {"tensor": name}
    if isinstance(value, dict):
        return {"dict": [[key, flatten(item, tensors)] for key, item in value.items()]}
    if isinstance(value, list | tuple):
        return {"list": [flatten(item, tensors) for item in value]}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"a checkpoint cannot hold {type(value).__name__}: use tensors, numbers, strings, lists and dicts")


def fingerprint(tree: Any) -> str:
    """A hash of every number in a tree: equal states, equal fingerprints."""
    tensors: dict[str, Tensor] = {}
    return _digest(json.dumps(flatten(tree, tensors)), tensors)


def _digest(text: str, tensors: dict[str, Tensor]) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors, key=lambda name: (len(name), name)):  # 0, 1, ..., 10: as they were numbered
        value = tensors[name]
        digest.update(f"{value.dtype}{tuple(value.shape)}".encode())
        digest.update(_bytes(value))
    return digest.hexdigest()


def _shared(value: Tensor, tensors: dict[str, Tensor]) -> bool:
    return any(value.untyped_storage().data_ptr() == other.untyped_storage().data_ptr() for other in tensors.values())


def _unflatten(value: Any, tensors: dict[str, Tensor]) -> Any:
    if not isinstance(value, dict):
        return value
    [(kind, inner)] = value.items()
    if kind == "tensor":
        return tensors[inner]
    if kind == "list":
        return [_unflatten(item, tensors) for item in inner]
    return {key: _unflatten(item, tensors) for key, item in inner}


def load_state(learner: torch.nn.Module, state: Any, path: Path) -> None:
    """Load a learner's state strictly; a state of another network or method is refused, and named."""
    try:
        learner.load_state_dict(state)
    except (RuntimeError, KeyError, ValueError, TypeError, AttributeError, IndexError) as error:
        if lacks_memory(error):  # the file is as good as it was
            raise
        raise BadCheckpoint(f"{path} does not fit {type(learner).__name__}: {error}") from error
