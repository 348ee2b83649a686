"""Requests to samples. Whatever comes is untrusted: sizes are bounded, and what is wrong is named."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from onepass.data.images import BadImage
from onepass.errors import RunError, UsageError
from onepass.limits import LARGEST_VALUE
from onepass.live.labels import LONGEST, Label, plain_label
from onepass.live.samples import one_image, vector_tensor

MOST_ITEMS = 256  # of a request
LONGEST_ID = 200  # letters


class Refused(Exception):  # a request, not a fault
    """An answer that says why not; `item` is the place of the bad one."""

    def __init__(self, status: int, reason: str, item: int | None = None, headers: Mapping[str, str] | None = None):
        super().__init__(reason)
        self.status, self.reason, self.item, self.headers = status, reason, item, dict(headers or {})


@dataclass
class Items:
    x: Tensor
    labels: list[Label] = field(default_factory=list)
    ids: list[str | None] = field(default_factory=list)
    top: int | None = None


def json_object(body: bytes, known: set[str]) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Refused(422, f"Expected JSON, got {str(error)[:200]}.") from error
    if not isinstance(found, dict):
        raise Refused(422, f"Expected a JSON object, got {type(found).__name__}.")
    if strange := found.keys() - known:
        raise Refused(422, f"Expected {', '.join(sorted(known))}, got {_shown(min(strange))}.")
    return found


def items_of(body: bytes, shape: tuple[int, ...], *, labelled: bool) -> Items:
    """The samples of a JSON body."""
    found = json_object(body, {"items"} if labelled else {"items", "top"})
    rows, top = found.get("items"), found.get("top")
    if not isinstance(rows, list) or not rows:
        raise Refused(422, "Expected items, a list of at least one sample.")
    if len(rows) > MOST_ITEMS:
        raise Refused(413, f"Expected at most {MOST_ITEMS} items, got {len(rows)}. Send several requests.")
    if isinstance(top, float) and top.is_integer():  # 3.0 is a whole number in JSON
        top = int(top)
    if "top" in found and (type(top) is not int or not 1 <= top <= 1000):
        raise Refused(422, f"Expected top from 1 to 1000, got {_shown(top)}.")
    labels, ids, samples = [], [], []
    for place, row in enumerate(rows):
        try:
            samples.append(sample_of(row, shape, {"label", "id"} if labelled else set()))
            if labelled:
                labels.append(label_of(row.get("label")))
                ids.append(id_of(row["id"]) if "id" in row else None)
        except Refused as error:
            raise Refused(error.status, f"item {place}: {error.reason}", place) from error
    return Items(torch.stack(samples), labels, ids, top)


def sample_of(row: Any, shape: tuple[int, ...], more: set[str]) -> Tensor:
    """One sample of an object that holds an image or a vector."""
    kind = "image" if len(shape) == 3 else "vector"
    if not isinstance(row, dict) or kind not in row:
        raise Refused(422, f"Expected an object with {kind}, got {_shown(row)}.")
    if strange := row.keys() - more - {kind}:
        raise Refused(422, f"Expected {', '.join(sorted({kind, *more}))}, got {_shown(min(strange))}.")
    value = row[kind]
    if kind == "vector":
        return _vector(value, shape[0])
    if not isinstance(value, str):
        raise Refused(422, f"Expected an image file in base64, got {type(value).__name__}.")
    try:
        content = base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError) as error:
        raise Refused(422, f"Expected an image file in base64: {error}.") from error
    return picture(content, shape)


def picture(content: bytes, shape: tuple[int, ...]) -> Tensor:
    """An image file as a sample."""
    try:
        return torch.from_numpy(one_image(content, shape).copy())
    except (BadImage, UsageError) as error:
        raise Refused(422, f"Expected an image: {error}.") from error
    except RunError as error:
        raise Refused(503, str(error), headers={"Retry-After": "1"}) from error


def _vector(value: Any, width: int) -> Tensor:
    good = isinstance(value, list) and all(type(number) in (int, float) for number in value)
    if not good or len(value) != width:
        got = f"{len(value)}" if good else _shown(value)
        raise Refused(422, f"Expected a vector of {width} numbers, got {got}.")
    if not all(-LARGEST_VALUE <= number <= LARGEST_VALUE for number in value):
        raise Refused(422, f"Expected finite numbers from {-LARGEST_VALUE:g} to {LARGEST_VALUE:g}.")
    try:
        return vector_tensor(np.array([value], dtype=np.float64), width)[0]
    except (UsageError, OverflowError) as error:
        raise Refused(422, str(error)) from error


def label_of(value: Any) -> Label:
    if type(value) not in (str, int, float) or value == "":
        raise Refused(422, f"Expected a label, a word or a number, got {_shown(value)}.")
    if type(value) is int and abs(value) >= 1 << 53:  # which other programs could not read
        raise Refused(422, f"Expected a label below 2^53, got {_shown(value)}. Give it as a word.")
    try:
        return plain_label(_text(value, LONGEST, "a label") if isinstance(value, str) else value)
    except UsageError as error:
        raise Refused(422, str(error)) from error


def id_of(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise Refused(422, f"Expected an id, a word, got {_shown(value)}.")
    return _text(value, LONGEST_ID, "an id")


def _text(value: str, longest: int, what: str) -> str:
    if len(value) > longest:
        raise Refused(422, f"Expected {what} of at most {longest} letters, got {len(value)}.")
    if any(0xD800 <= ord(letter) < 0xE000 for letter in value):
        raise Refused(422, f"Expected {what} that is Unicode, got {_shown(value)}.")
    return value


def _shown(value: Any) -> str:
    """A value of somebody else, short and in ASCII."""
    if isinstance(value, dict | list):
        return f"{'an object' if isinstance(value, dict) else 'a list'} of {len(value)}"
    return ascii(value)[:80]
