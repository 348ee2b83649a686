"""Read the pickles data sets come in, without being able to run what is in them.

The opcodes are interpreted here rather than by a restricted `pickle.Unpickler`, because so nothing the file names is
ever called, every allocation is bounded by the file's own length, and pixels stay where they lie in the mapped file.

What comes back: dict, list, tuple, str, bytes, int, float, bool, None, numpy arrays and numpy scalars. A Python 2
string comes back as str by latin-1 (a character for each byte, so nothing is lost), a Python 3 bytes as bytes, a dict
key as str or int. Arrays are read-only views of the mapped file, so a gigabyte costs no memory until it is read.
"""

from __future__ import annotations

import io
import mmap
import pickletools
import re
import struct
from pathlib import Path
from typing import IO, cast

import numpy as np

from onepass.data.archive import shown, sniff
from onepass.data.pickle_values import (
    BadPickle,
    Blob,
    Made,
    Name,
    UnsafePickle,
    build,
    key,
    named,
    reduce,
    text_of,
)
from onepass.errors import UNREADABLE

_MAX_STEPS = 4_000_000  # opcodes, and values once shared parts are expanded; CIFAR-100's train file has about 300,000
_OPCODES = {op.code.encode("latin-1"): op for op in pickletools.opcodes}
_NUMBERS = {"INT", "LONG", "LONG1", "LONG4", "BININT", "BININT1", "BININT2", "FLOAT", "BINFLOAT"}
_TEXTS = {"UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"}
_PY2_TEXTS = {"BINSTRING": "<i", "SHORT_BINSTRING": "<B"}
_BLOBS = _PY2_TEXTS | {"BINBYTES": "<I", "SHORT_BINBYTES": "<B", "BINBYTES8": "<Q", "BYTEARRAY8": "<Q"}
_PUTS, _GETS = {"PUT", "BINPUT", "LONG_BINPUT"}, {"GET", "BINGET", "LONG_BINGET"}
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_LINES = {"GLOBAL": 2, "INST": 2, "PERSID": 1}  # names that pickletools would take for escaped text
_ESCAPE = re.compile(rb"\\(?:x([0-9a-f]{2})|([\\'\"nrt])|)")  # all that Python 2's repr writes, or a lone backslash
_ESCAPED = {b"n": b"\n", b"r": b"\r", b"t": b"\t"}
_MAX_DEPTH = 32


def load(source: Path | str | bytes) -> object:
    """The value pickled in a file or in bytes; anything unfit is a BadPickle or UnsafePickle, both ValueErrors."""
    if isinstance(source, bytes):
        return _read(_Machine(memoryview(source), io.BytesIO(source)), "pickle")
    with Path(source).open("rb") as file:
        if not file.read(1):  # an empty file cannot be mapped
            raise BadPickle(f"{source}: the file is empty; download it again")
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return _read(_Machine(memoryview(mapped), cast(IO[bytes], mapped)), str(source))


def _read(machine: _Machine, name: str) -> object:
    if kind := sniff(bytes(machine.view[:1024])):
        raise BadPickle(f"{name}: this is {kind}, not a pickle; unpack it, or download it again")
    try:
        return machine.finish(machine.run())
    except UnsafePickle as error:
        raise UnsafePickle(
            f"{name}: refused {error}: only arrays, strings, numbers, lists, tuples and dicts are read from a pickle. "
            "Do not open this file with pickle.load; get it from its official source, or convert it to .npz"
        ) from None
    except MemoryError:
        raise BadPickle(f"{name}: {UNREADABLE}") from None
    except (ValueError, LookupError, struct.error, OverflowError) as error:
        at = machine.file.tell()
        raise BadPickle(f"{name}: not a whole pickle: {shown(str(error))} (byte {at}); download it again") from None


class _Machine:
    """The stack machine of a pickle, over inert values."""

    def __init__(self, view: memoryview, file: IO[bytes]) -> None:
        self.view, self.file, self.steps, self.nodes, self.spent = view, file, 0, 0, 0
        self.stack: list[object] = []
        self.outer: list[list[object]] = []
        self.memo: dict[object, object] = {}

    def run(self) -> object:
        while (code := self.file.read(1)) != b".":
            self.steps += 1
            if self.steps > _MAX_STEPS:
                raise BadPickle(f"more than {_MAX_STEPS:,} opcodes, which no data set needs")
            if code not in _OPCODES:
                raise BadPickle("unknown opcode" if code else "it ends too early")
            self.step(_OPCODES[code])
        if self.outer or len(self.stack) != 1 or self.file.tell() != len(self.view):
            raise BadPickle("it does not end with its one value")
        return self.stack[0]

    def step(self, op: pickletools.OpcodeInfo) -> None:
        if op.name in _BLOBS:
            self.stack.append(Blob(self.take(_BLOBS[op.name]), is_text=op.name in _PY2_TEXTS))
        elif op.name == "STRING":
            self.stack.append(self.quoted())
        elif op.name in _LINES:
            self.step_with(op.name, ".".join(str(self.line(), "latin-1") for _ in range(_LINES[op.name])))
        elif op.arg:
            self.step_with(op.name, op.arg.reader(self.file))
        elif op.name in _TUPLES:
            self.stack.append(tuple(self.pop(_TUPLES[op.name])))
        elif op.name in _CONSTANTS:
            self.stack.append(_CONSTANTS[op.name])
        elif op.name in ("EMPTY_LIST", "EMPTY_DICT"):
            self.stack.append([] if op.name == "EMPTY_LIST" else {})
        else:
            self.combine(op.name)

    def step_with(self, name: str, arg: object) -> None:
        if name in _NUMBERS:
            self.stack.append(arg)
        elif name in _TEXTS:
            str(arg).encode("utf-8")  # half a surrogate pair would fail later, wherever it is printed
            self.stack.append(arg)
        elif name in _PUTS:
            if not 0 <= cast(int, arg) < 2**32:  # longer ones can be chosen to collide
                raise BadPickle(f"it stores a value as number {arg}")
            self.memo[arg] = self.stack[-1]
        elif name in _GETS:
            self.stack.append(self.memo[arg])
        elif name == "GLOBAL":
            self.stack.append(named(str(arg)))
        elif name not in ("PROTO", "FRAME"):
            raise UnsafePickle(f"{shown(str(arg))} (opcode {name})")

    def combine(self, name: str) -> None:
        match name:
            case "MARK":
                self.outer.append(self.stack)
                self.stack = []
            case "APPEND":
                self.fill(self.pop(1))
            case "SETITEM":
                self.fill(self.pop(2))
            case "APPENDS" | "SETITEMS":
                self.fill(self.since_mark())
            case "LIST" | "DICT":
                items = self.since_mark()
                self.stack.append([] if name == "LIST" else {})
                self.fill(items)
            case "TUPLE":
                items = self.since_mark()
                self.stack.append(tuple(items))
            case "MEMOIZE":
                self.memo[len(self.memo)] = self.stack[-1]
            case "STACK_GLOBAL":
                self.stack.append(named(".".join(map(text_of, self.pop(2)))))
            case "REDUCE":
                called, args = self.pop(2)
                self.stack.append(reduce(called, args, self.spend))
            case "BUILD":
                state = self.pop(1)[0]
                build(self.stack[-1], state)
            case _:
                raise UnsafePickle(f"the opcode {name}")

    def take(self, form: str) -> memoryview:
        (n,) = struct.unpack(form, self.file.read(struct.calcsize(form)))
        start = self.file.tell()
        if not 0 <= n <= len(self.view) - start:
            raise BadPickle("it ends too early")
        self.file.seek(start + n)
        return self.view[start : start + n]

    def quoted(self) -> Blob:
        line = self.line()
        if len(line) < 2 or line[:1] not in (b"'", b'"') or line[-1:] != line[:1]:
            raise BadPickle("a string without its quotes")
        return Blob(memoryview(_ESCAPE.sub(_unescaped, line[1:-1])), is_text=True)

    def line(self) -> bytes:
        line = self.file.readline()
        if not line.endswith(b"\n"):
            raise BadPickle("it ends too early")
        return line[:-1]

    def spend(self, n: int) -> None:
        """Bounds the copies of texts, to which a pickle can refer any number of times; an honest one does once."""
        self.spent += n
        if self.spent > len(self.view):
            raise BadPickle("it uses the same bytes again and again")

    def pop(self, n: int) -> list[object]:
        return [self.stack.pop() for _ in range(n)][::-1]

    def since_mark(self) -> list[object]:
        values, self.stack = self.stack, self.outer.pop()
        return values

    def fill(self, items: list[object]) -> None:
        match self.stack[-1]:
            case list() as values:
                values.extend(items)
            case dict() as pairs if len(items) % 2 == 0:
                pairs.update(zip(map(key, items[::2]), items[1::2], strict=True))
            case _:
                raise BadPickle("it fills something that is neither list nor dict")

    def finish(self, value: object, depth: int = 0) -> object:
        """The real value of an inert one; what is shared becomes separate, so that nothing is larger than it looks."""
        self.nodes += 1
        if self.nodes > min(_MAX_STEPS, 16 * self.steps + 1000) or depth > _MAX_DEPTH:
            raise BadPickle("it contains itself, or the same parts far too often or too deeply nested")
        match value:
            case list():
                return [self.finish(item, depth + 1) for item in value]
            case tuple():
                return tuple(self.finish(item, depth + 1) for item in value)
            case dict():
                return {name: self.finish(item, depth + 1) for name, item in value.items()}
            case Blob():
                return value.value
            case Name():
                raise UnsafePickle(f"a reference to {value.name}")
            case Made():
                if isinstance(value.value, (np.ndarray, np.generic)):
                    return value.value
                raise BadPickle("an array or dtype that was never completed")
            case int() if value.bit_length() > 64:
                raise BadPickle("an integer of more than 64 bits")
        return value


def _unescaped(found: re.Match[bytes]) -> bytes:
    if found[1]:
        return bytes.fromhex(found[1].decode())
    if not found[2]:
        raise BadPickle("a string with an unknown escape")
    return _ESCAPED.get(found[2], found[2])
