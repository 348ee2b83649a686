"""The reader on pickles as Python 2 and 3 write them, and on ones made to harm."""

from __future__ import annotations

import collections
import contextlib
import copyreg
import datetime
import fractions
import io
import os
import pickle
import resource
import struct
import sys
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onepass.data.pickle_values import BadPickle, UnsafePickle
from onepass.data.safe_pickle import load

PIXELS = np.arange(256, dtype=np.uint8).reshape(8, 32)
DTYPE_U1 = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
EMPTY_ARRAY = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"


def py2_text(value: bytes) -> bytes:
    return b"U" + bytes([len(value)]) + value if len(value) < 256 else b"T" + struct.pack("<i", len(value)) + value


def py2_int(value: int) -> bytes:
    return b"K" + bytes([value]) if 0 <= value < 256 else b"J" + struct.pack("<i", value)


def py2_array(array: npt.NDArray[np.uint8], declared: bytes | None = None) -> bytes:
    shape = declared or b"(" + b"".join(map(py2_int, array.shape)) + b"t"
    return EMPTY_ARRAY + b"(K\x01" + shape + DTYPE_U1 + b"\x89" + py2_text(array.tobytes()) + b"tb"


def py2_dict(**items: bytes) -> bytes:
    return b"}(" + b"".join(py2_text(name.encode()) + item for name, item in items.items()) + b"u"


def py2_list(items: list[bytes]) -> bytes:
    return b"](" + b"".join(items) + b"e"


def cifar(protocol_2: bytes = b"\x80\x02") -> bytes:
    """A batch of CIFAR as its authors' Python 2 wrote it."""
    names = py2_list([py2_text(b"caf\xe9_%d.png" % i) for i in range(8)])
    labels = py2_list([py2_int(i) for i in range(8)])
    return (
        protocol_2
        + py2_dict(batch_label=py2_text(b"x" * 300), labels=labels, data=py2_array(PIXELS), names=names)
        + b"."
    )


def peak_kilobytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // (1024 if sys.platform == "darwin" else 1)


def refused(data: bytes) -> str:
    """The message for a pickle that must not be read, quickly."""
    start = time.process_time()
    with pytest.raises(BadPickle) as caught:
        load(data)
    assert time.process_time() - start < 10  # not minutes
    return str(caught.value)


def test_a_python_2_batch_comes_back_with_text_keys_and_intact_pixels(tmp_path: Path) -> None:
    path = tmp_path / "data_batch_1"
    path.write_bytes(cifar())
    batch = load(path)
    assert isinstance(batch, dict)
    assert list(batch) == ["batch_label", "labels", "data", "names"]
    assert batch["names"][3] == "caf\xe9_3.png"  # latin-1, a character for each byte
    assert batch["labels"] == list(range(8))
    assert batch["data"].dtype == np.uint8
    np.testing.assert_array_equal(batch["data"], PIXELS)


def test_pixels_of_a_file_are_mapped_and_cannot_be_written(tmp_path: Path) -> None:
    path = tmp_path / "big.pkl"
    with path.open("wb") as file:  # 200 MB of zeros that take no space on most disks
        file.write(b"\x80\x02" + EMPTY_ARRAY + b"(K\x01(J\x00\x00\x00\x08K\x02t" + DTYPE_U1 + b"\x89T\x00\x00\x00\x10")
        file.seek(2 * 2**27, os.SEEK_CUR)
        file.write(b"tb.")
    before = peak_kilobytes()
    array = load(path)
    assert peak_kilobytes() - before < 50_000
    assert isinstance(array, np.ndarray)
    assert array.shape == (2**27, 2)
    assert array[-1, 0] == 0
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1


@pytest.mark.parametrize("protocol", range(6))
def test_every_protocol_of_python_3_round_trips(protocol: int) -> None:
    array = np.arange(24, dtype=">i2").reshape(2, 3, 4)
    arrays = {"c": array, "f": array.T, "k": array.transpose(1, 0, 2), "strided": array[:, ::2], "empty": array[:0]}
    arrays |= {"bool": np.array([True, False] * 200), "f8": np.linspace(0, 1, 5), "scalar": np.array(7), "same": array}
    plain: dict[str | int, object] = {
        "text": "h\xe4\u4e2d\\\n'",
        "bytes": b"\0\xff'\n",
        "none": b"",
        "ints": [0, -1, 255, 2**40, -(2**63)],
    }
    plain |= {"more": (True, False, None, 1.5, float("-inf"), (), (1,), [[]]), 7: "seven", "numpy": np.float32(0.5)}
    value = load(pickle.dumps({**arrays, **plain, "ordered": collections.OrderedDict(b=1, a=2)}, protocol))
    assert isinstance(value, dict)
    for name, expected in arrays.items():
        assert value[name].dtype == expected.dtype, name
        np.testing.assert_array_equal(value[name], expected, err_msg=name)
    for key, item in plain.items():
        assert value[key] == item
        assert type(value[key]) is type(item)
    assert value["ordered"] == {"b": 1, "a": 2}


@pytest.mark.parametrize("protocol", range(6))
def test_bytes_keys_become_text_as_the_same_file_read_by_python_2_would_have(protocol: int) -> None:
    assert load(pickle.dumps({b"data": b"data"}, protocol)) == {"data": b"data"}


@pytest.mark.parametrize("core", ["numpy.core", "numpy._core"])
def test_arrays_of_numpy_1_and_2_are_read(core: str) -> None:
    data = cifar().replace(b"numpy.core.multiarray", f"{core}.multiarray".encode())
    value = load(data)
    assert isinstance(value, dict)
    np.testing.assert_array_equal(value["data"], PIXELS)


def test_protocol_0_of_python_2_is_read() -> None:
    assert load(b"(dp0\nS'a\\x00\\n\\'\\\\b'\np1\n(lp2\nI1\naI01\naL12L\nag1\naF1.5\nas.") == {
        "a\0\n'\\b": [1, True, 12, "a\0\n'\\b", 1.5]
    }


def test_an_ordered_dict_of_python_2_is_a_dict() -> None:
    pairs = py2_list([py2_list([py2_text(b"a"), py2_int(1)]), py2_list([py2_text(b"b"), py2_int(2)])])
    assert load(b"\x80\x02ccollections\nOrderedDict\n" + pairs + b"\x85R.") == {"a": 1, "b": 2}


class Calls:
    """Pickles as a call, the way malicious files do."""

    def __init__(self, called: object, *args: object) -> None:
        self.reduced = (called, args)

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return self.reduced


@pytest.mark.parametrize(
    ("named", "value"),
    [
        ("posix.system|nt.system", Calls(os.system, "touch /tmp/onepass-was-here")),
        (r"(builtins|__builtin__)\.eval", Calls(eval, "1/0")),
        (r"(builtins|__builtin__)\.getattr", Calls(getattr, {}, "clear")),
        (r"(builtins|__builtin__)\.bytearray", Calls(bytearray, 10**11)),
        (r"copyreg\._reconstructor|copy_reg\._reconstructor", Calls(copyreg._reconstructor, list, object, None)),  # type: ignore[attr-defined]  # private, and what attackers use
        (r"numpy\.(lib\.\S+\.)?load", Calls(np.load, "/etc/passwd")),
        (r"numpy\.zeros|numpy\.\S+\.zeros", Calls(np.zeros, 10**12)),
        (r"pickle\.loads", Calls(pickle.loads, b"cos\nsystem\n.")),
        (r"numpy\.\S*recarray", np.zeros(1).view(np.recarray)),
        (r"numpy\.\S*", np.random.default_rng(0)),
        (r"datetime\.date", datetime.date(2020, 1, 1)),
        (r"fractions\.Fraction", fractions.Fraction(1, 2)),
        (r"io\.BytesIO", Calls(io.BytesIO)),
        ("Python objects .*O8", np.array([{}, []], dtype=object)),
        ("dtype V", np.zeros(2, dtype=[("a", "u1")])),
        ("dtype M8", np.zeros(2, dtype="M8[s]")),
        ("EMPTY_SET|set", {1, 2}),
        (r"FROZENSET|frozenset", frozenset({1})),
        (r"(builtins|__builtin__)\.complex", 1j),
        (r"(builtins|__builtin__)\.slice|NEWOBJ", slice(3)),
        (r"a reference to collections\.OrderedDict", collections.OrderedDict),
    ],
    ids=lambda value: value[:24] if isinstance(value, str) else "",
)
def test_what_is_refused_is_named(named: str, value: object, tmp_path: Path) -> None:
    path = tmp_path / "hostile.pkl"
    for protocol in range(6):
        path.write_bytes(pickle.dumps([value], protocol))
        with pytest.raises(UnsafePickle, match=rf"hostile\.pkl: refused .*({named}).*get it from its official source"):
            load(path)


@pytest.mark.parametrize(
    "code",
    [
        b"cos\nsystem\n(S'true'\ntR.",
        b"cos\\u\nsys tem\xff\n(S'true'\ntR.",
        b"(S'true'\nios\nsystem\n.",
        b"(cos\nsystem\nS'true'\no.",
        b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x04true\x85R.",
        b"\x80\x02cnumpy\nndarray\nK\x05\x85\x81.",  # NEWOBJ of an allowed class
        b"\x80\x02cnumpy\nndarray\n(J\xff\xff\xff\x7ftR.",  # an allowed name, called
        b"\x80\x02cnumpy\ndtype\nU\x03u1,K\x00K\x01\x87R.",
        b"\x80\x02cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nJ\xff\xff\xff\x7f\x85U\x01b\x87R.",
        b"\x80\x02cnumpy.core.multiarray\n_reconstruct\ncnumpy\ndtype\nK\x00\x85U\x01b\x87R.",
        b"\x80\x02c_codecs\nencode\nU\x01aU\x03zip\x86R.",
        b"\x80\x02c__builtin__\nbytes\nJ\xff\xff\xff\x7f\x85R.",
        b"\x80\x02}}U\x09__class__K\x01sb.",  # BUILD on a dict
        b"\x80\x02" + EMPTY_ARRAY + b"}U\x05shapeK\x01sb.",  # BUILD with attributes
        b"\x80\x02\x82\x01.",
        b"\x80\x02Pid\n.",
        b"\x80\x02K\x01Q.",
        b"\x80\x05\x97.",
        b"\x80\x02K\x01K\x02R.",
    ],
)
def test_calls_and_states_written_by_hand_are_refused(code: bytes) -> None:
    with pytest.raises(UnsafePickle, match="refused"):
        load(code)


def test_a_name_in_a_message_carries_no_control_characters_and_no_megabytes() -> None:
    message = refused(b"c\x1b[2Jevil\n" + b"x" * 10**6 + b"\n.")
    assert "\x1b" not in message
    assert "evil" in message
    assert len(message) < 600


def test_an_array_is_only_made_of_bytes_that_are_there() -> None:
    for declared in (
        b"(J\xff\xff\xff\x7ft",
        b"(K\x07K\x20t",
        b"(J\xff\xff\xff\xffJ\x00\xff\xff\xfft",
        b"(U\x01at",
        b"(NK\x01t",
    ):
        assert "declared shape does not fit its 256 bytes" in refused(b"\x80\x02" + py2_array(PIXELS, declared) + b".")
    huge = b"\x8b" + struct.pack("<i", 10**6) + b"\x7f" * 10**6
    assert "declared shape" in refused(b"\x80\x02" + py2_array(PIXELS, b"(" + huge * 4 + b"t") + b".")
    refused(b"\x80\x02" + py2_array(PIXELS[:0], b"(K\x00" + b"\x8a\x05\xff\xff\xff\xff\x7f" * 9 + b"t") + b".")
    assert len(pickle.dumps(np.lib.stride_tricks.as_strided(PIXELS, (9, 9), (0, 0)))) > 81  # numpy writes all of it


def test_huge_declared_lengths_allocate_nothing() -> None:
    for code in (b"T\xff\xff\xff\x7f", b"T\xff\xff\xff\xff", b"B\xff\xff\xff\xff"):
        assert "it ends too early (byte 7)" in refused(b"\x80\x02" + code + b"abc.")
    for code in (b"X\xff\xff\xff\xff", b"\x8b\xff\xff\xff\x7f"):
        refused(b"\x80\x02" + code + b"abc.")
    for code in (b"\x8d", b"\x8e", b"\x96", b"\x95"):
        refused(b"\x80\x05" + code + b"\xff" * 7 + b"\x7fabc.")
    for code in (b"K\x01r\xff\xff\xff\xff.", b"K\x01p" + b"9" * 12 + b"\n.", b"K\x01p" + b"9" * 5000 + b"\n."):
        data = b"\x80\x02" + code
        assert load(data) == 1 if b"r" in code else refused(data)  # a number is a key here, not the length of a table


def test_shared_parts_may_repeat_but_not_explode() -> None:
    labels = list(range(500))
    assert load(pickle.dumps({"fine": labels, "coarse": labels})) == {"fine": labels, "coarse": labels}
    lists: list[object] = ["lol"]
    for _ in range(30):
        lists = [lists, lists]
    assert "same parts far too often" in refused(pickle.dumps(lists))
    text = "a" * 10**6
    copies = b"c_codecs\nencode\n(h\x00X\x06\x00\x00\x00latin1tR"
    data = b"\x80\x02]X" + struct.pack("<I", len(text)) + text.encode() + b"q\x00a(" + copies * 20_000 + b"e."
    assert "again and again" in refused(data)
    repeated = load(b"\x80\x02](T" + struct.pack("<i", 10**6) + b"a" * 10**6 + b"q\x00" + b"h\x00" * 100_000 + b"e.")
    assert isinstance(repeated, list)
    assert len({id(item) for item in repeated}) == 1
    keys = b"U\x01aT" + struct.pack("<i", 10**6) + b"a" * 10**6 + b"q\x00s" + b"}h\x00K\x01s" * 20_000
    with pytest.raises(BadPickle, match="one value"):  # quickly, though it names a key of a megabyte 20,000 times
        load(b"\x80\x02}" + keys + b".")


def test_depth_is_bounded_and_nothing_contains_itself() -> None:
    deep = "same parts far too often or too deeply"
    assert deep in refused(b"\x80\x02" + b"]" * 30_000 + b"a" * 29_999 + b".")
    assert deep in refused(b"\x80\x02K\x01" + b"\x85" * 30_000 + b".")
    assert deep in refused(b"\x80\x02]q\x00h\x00a.")
    assert deep in refused(b"\x80\x02}q\x00U\x01ah\x00s.")
    assert "one value" in refused(b"(" * 30_000 + b"K\x01.")


def test_numbers_and_texts_that_would_fail_later_are_refused_now() -> None:
    assert "more than 64 bits" in refused(pickle.dumps(2**65))
    assert "surrogate" in refused(b"\x80\x02X\x03\x00\x00\x00\xed\xa0\x80.")
    assert "surrogate" in refused(b"V\\ud800\n.")


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        (b"U\x01|", b"U\x01="),
        (b"U\x01|NNN", b"U\x01|NNU\x01O"),  # fields
        (b"U\x01|NNN", b"U\x01|U\x02O8NN"),  # of another dtype
        (b"K\x00tb", b"K\x3ftb"),  # the flags of Python objects
        (b"J\xff\xff\xff\xffJ", b"K\x00J"),  # items of no size
        (b"K\x03", b"K\x04"),
    ],
)
def test_a_dtype_with_an_unusual_state_is_refused(good: bytes, bad: bytes) -> None:
    assert good in DTYPE_U1
    data = cifar().replace(DTYPE_U1, DTYPE_U1.replace(good, bad, 1))
    with pytest.raises(UnsafePickle, match="unusual"):
        load(data)


def test_keys_that_could_hang_the_hash_are_refused() -> None:
    assert "dict key" in refused(b"\x80\x02}" + b"K\x01" + b"\x85" * 30_000 + b"K\x01s.")
    assert "dict key" in refused(pickle.dumps({i * (2**61 - 1): 0 for i in range(5)}))
    assert "dict key" in refused(pickle.dumps({(1, 2): 0}))


def test_too_many_opcodes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onepass.data.safe_pickle._MAX_STEPS", 1000)
    assert "more than 1,000 opcodes" in refused(b"(" + b"K\x01" * 2000 + b"t.")


@pytest.mark.parametrize("data", [cifar(), *(pickle.dumps({"x": PIXELS, "y": [1.5, "a", b"b"]}, p) for p in range(6))])
def test_a_pickle_cut_anywhere_is_refused(data: bytes) -> None:
    for end in range(len(data)):
        with pytest.raises(BadPickle):
            load(data[:end])
    with pytest.raises(BadPickle, match="one value"):
        load(data + b"K")


@pytest.mark.parametrize(
    ("start", "kind"),
    [
        (b"<!DOCTYPE html><html>", "this is an HTML page, not a pickle"),
        (b"\xef\xbb\xbf\r\n <!-- quota --> <HTML lang='en'>", "this is an HTML page, not a pickle"),
        (b"\x1f\x8b\x08\x00", "this is a gzip file, not a pickle"),
        (b"PK\x03\x04", "this is a zip archive, not a pickle"),
        (b"version https://git-lfs.github.com/spec/v1\n", "this is a Git LFS pointer"),
        (b"", "the file is empty"),
        (b"404: Not LocatedFiles", "not a whole pickle"),
    ],
)
def test_a_file_that_is_something_else_is_called_what_it_is(start: bytes, kind: str, tmp_path: Path) -> None:
    path = tmp_path / "mini-imagenet-cache-train.pkl"
    path.write_bytes(start)
    with pytest.raises(BadPickle, match=f"mini-imagenet-cache-train.pkl: .*{kind}.*download it again"):
        load(path)


SEEDS = [cifar(), *(pickle.dumps({"x": PIXELS[:2], "n": np.int64(3), "y": [1, "a", b"b", ()]}, p) for p in range(6))]


@settings(max_examples=250, deadline=None)
@given(
    st.sampled_from(SEEDS),
    st.lists(st.tuples(st.integers(0, 2000), st.binary(max_size=4), st.integers(0, 4)), max_size=6),
)
def test_mutated_pickles_are_read_or_refused(seed: bytes, edits: list[tuple[int, bytes, int]]) -> None:
    data = bytearray(seed)
    for at, new, removed in edits:
        at %= len(data) + 1
        data[at : at + removed] = new
    reads_or_refuses(bytes(data))


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from([bytes([n]) for n in range(256)] + SEEDS[:2] + [EMPTY_ARRAY, DTYPE_U1]), max_size=60))
def test_random_opcodes_are_read_or_refused(pieces: list[bytes]) -> None:
    reads_or_refuses(b"\x80\x02" + b"".join(pieces) + b".")


def reads_or_refuses(data: bytes) -> None:
    before, start = peak_kilobytes(), time.process_time()
    with contextlib.suppress(BadPickle):
        only_plain(load(data))
    assert time.process_time() - start < 2
    assert peak_kilobytes() - before < 100_000


def only_plain(value: object) -> None:
    if isinstance(value, dict):
        only_plain(list(value))
        only_plain(list(value.values()))
    elif isinstance(value, (list, tuple)):
        for item in value:
            only_plain(item)
    elif isinstance(value, (np.ndarray, np.generic)):
        assert value.dtype.kind in "biuf"
        value.tobytes()
    else:
        assert value is None or type(value) in (str, bytes, int, float, bool)
