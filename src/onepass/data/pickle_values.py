"""What a pickle may make: arrays, dtypes and text, built here from bytes in the file, never by what it names."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from onepass.data.archive import shown
from onepass.errors import BadData

_DTYPE = re.compile(r"b1|[iu][1248]|f[248]")
_ORDERS = ("<", ">", "|")
_NAMES = {
    "numpy.ndarray",
    "numpy.dtype",
    "numpy.core.multiarray._reconstruct",
    "numpy.core.multiarray.scalar",
    "numpy.core.numeric._frombuffer",  # protocol 5
    "_codecs.encode",  # how Python 3 writes bytes in protocols 0 to 2
    "builtins.bytes",  # and empty ones
    "collections.OrderedDict",
}
_MOVED = {"numpy._core.": "numpy.core.", "__builtin__.": "builtins."}  # by numpy 2, and since Python 2


class BadPickle(BadData):
    """Not a pickle, a damaged one, or one that declares more than it holds."""


class UnsafePickle(BadPickle):
    """A pickle that asks for something other than arrays, strings, numbers, lists, tuples and dicts."""


@dataclass(frozen=True)
class Name:
    """An allowed name: a label, never the thing itself."""

    name: str


@dataclass(eq=False)
class Blob:
    """Bytes where they lie in the file, copied at most once however often the pickle refers to them."""

    view: memoryview
    is_text: bool = False  # a Python 2 string

    @cached_property
    def text(self) -> str:
        return str(self.view, "latin-1")

    @cached_property
    def value(self) -> str | bytes:
        return self.text if self.is_text else bytes(self.view)


@dataclass(eq=False)
class Made:
    """A dtype (with its code, "u1") or an array; REDUCE makes it, and mostly BUILD brings the value later."""

    code: str = ""
    value: np.dtype[np.generic] | npt.NDArray[np.generic] | np.generic | None = None


def named(full: str) -> Name:
    for now, before in _MOVED.items():
        full = before + full[len(now) :] if full.startswith(now) else full
    if full not in _NAMES:
        raise UnsafePickle(shown(full))
    return Name(full)


def reduce(called: object, args: object, spend: Callable[[int], None]) -> object:
    """What the REDUCE opcode leaves: our own reading of the few calls that are allowed, none of which is made."""
    match called, args:
        case Name("numpy.core.multiarray._reconstruct"), (Name("numpy.ndarray"), (0,), _):
            return Made()
        case Name("numpy.dtype"), (code, 0, 1):  # not aligned; a copy
            return Made(_dtype_code(text_of(code)))
        case Name("numpy.core.multiarray.scalar"), (dtype, Blob() as data):
            return Made(value=array(dtype, (), data, "C")[()])
        case Name("numpy.core.numeric._frombuffer"), (Blob() as data, dtype, tuple(shape), ("C" | "F") as order):
            return Made(value=array(dtype, shape, data, str(order)))
        case Name("numpy.core.numeric._frombuffer"), (Blob() as data, dtype, tuple(shape), "K", tuple(axes)) if all(
            type(axis) is int for axis in axes
        ):
            return Made(value=array(dtype, shape, data, "C").transpose(axes))
        case Name("_codecs.encode"), (str() as data, "latin1" | "latin-1"):
            spend(len(data))
            return Blob(memoryview(data.encode("latin-1")))
        case Name("builtins.bytes"), ():
            return Blob(memoryview(b""))
        case Name("collections.OrderedDict"), ():
            return {}
        case Name("collections.OrderedDict"), (list(pairs),):  # Python 2 passes [[key, value], ...]
            return dict(map(pair_of, pairs))
        case Name(name), _:
            raise UnsafePickle(f"{name} called in an unusual way")
    raise UnsafePickle("a call of something that is no function")


def build(made: object, state: object) -> None:
    """What the BUILD opcode does: completes a dtype or an array, in place since the pickle may refer to it already."""
    match made, state:
        case Made(code="", value=None), (1, tuple(shape), dtype, 0 | 1 as fortran, Blob() as data):
            made.value = array(dtype, shape, data, "F" if fortran else "C")
        case Made(value=None), (3, order, None, None, None, -1, -1, 0) if made.code and text_of(order) in _ORDERS:
            made.value = np.dtype(text_of(order) + made.code)
        case _:
            raise UnsafePickle("a state set on something other than a numeric array or dtype, or an unusual one")


def _dtype_code(code: str) -> str:
    if not _DTYPE.fullmatch(code):
        kind = "Python objects" if code.startswith("O") else "an unusual type"
        raise UnsafePickle(f"an array of {kind} (numpy dtype {shown(code)})")
    return code


def array(dtype: object, shape: tuple[object, ...], data: Blob, order: str) -> npt.NDArray[np.generic]:
    """A view of the data, which must be exactly what the shape declares: so nothing is ever allocated for it."""
    if not (isinstance(dtype, Made) and isinstance(dtype.value, np.dtype)):
        raise BadPickle("an array without a dtype")
    sizes = [n for n in shape if type(n) is int and 0 <= n < 2**48]  # longer ones would be slow to multiply
    if len(sizes) != len(shape) or len(sizes) > 32 or math.prod(sizes) * dtype.value.itemsize != len(data.view):
        raise BadPickle(f"an array whose declared shape does not fit its {len(data.view)} bytes")
    array: npt.NDArray[np.generic] = np.ndarray(sizes, dtype.value, data.view, order="F" if order == "F" else "C")
    return array


def text_of(value: object) -> str:
    """A text, be it from Python 2 or 3."""
    if isinstance(value, Blob):
        return value.text
    if isinstance(value, str):
        return value
    raise BadPickle("a text is missing")


def key(value: object) -> str | int:
    """Keys that are cheap to hash: a nested tuple can overflow the stack there, chosen long integers collide."""
    if isinstance(value, Made) and isinstance(value.value, np.generic):
        value = value.value.item()
    if isinstance(value, Blob):
        return value.text
    if isinstance(value, str) or (isinstance(value, int) and abs(value) < 2**32):
        return value
    raise BadPickle("a dict key that is neither a text nor a small integer")


def pair_of(pair: object) -> tuple[str | int, object]:
    match pair:
        case [first, second]:
            return key(first), second
    raise BadPickle("an OrderedDict of something other than pairs")
