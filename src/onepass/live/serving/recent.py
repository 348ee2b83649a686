"""The last samples of the stream, while somebody looks: pictures, labels, and what was predicted before learning."""

from __future__ import annotations

import base64
import io
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from onepass.live.labels import Label

KEPT = 48
A_SECOND = 8  # samples at most
LOOKING = 15.0  # seconds that somebody counts as looking after having asked
THUMBNAIL = 64  # pixels of the longer side, at most


@dataclass(frozen=True)
class Event:
    number: int
    kind: str  # learned, relabelled, forgotten
    id: str
    label: Label | None
    predicted: Label | None
    probability: float | None
    x: Tensor | None

    def to_json(self) -> dict[str, Any]:
        facts = {name: value for name, value in vars(self).items() if name != "x"}
        return {**facts, "thumbnail": None if self.x is None else thumbnail(self.x)}


class Recent:
    def __init__(self) -> None:
        self._events: deque[Event] = deque(maxlen=KEPT)
        self._lock = threading.Lock()
        self._next = 1
        self._looked = -LOOKING
        self._credit, self._when = float(A_SECOND), time.monotonic()

    def room(self, n: int) -> int:
        """How many of n samples are worth showing now: none if nobody looks."""
        now = time.monotonic()
        with self._lock:
            self._credit = min(float(A_SECOND), self._credit + A_SECOND * (now - self._when))
            self._when = now
            shown = min(n, int(self._credit)) if now - self._looked < LOOKING else 0
            self._credit -= shown
            return shown

    def add(
        self,
        kind: str,
        id: str,
        label: Label | None,
        x: Tensor | None = None,
        answer: tuple[Label, float] | None = None,
    ) -> None:
        predicted, probability = answer or (None, None)
        with self._lock:
            if kind == "forgotten":  # here too
                kept = [event for event in self._events if event.id != id]
                self._events = deque(kept, maxlen=KEPT)
            self._events.append(Event(self._next, kind, id, label, predicted, probability, x))
            self._next += 1

    def after(self, number: int) -> list[dict[str, Any]]:
        """What came after an event; whoever asks looks."""
        with self._lock:
            self._looked = time.monotonic()
            found = [event for event in self._events if event.number > number]
        return [event.to_json() for event in found]

    def numbers(self) -> list[int]:
        """Of the events that are kept: what a page still shows beyond them was forgotten or is old."""
        with self._lock:
            return [event.number for event in self._events]


def thumbnail(x: Tensor) -> str | None:
    """A sample of bytes as a small picture, a data URL; None: it is no picture."""
    if x.dim() != 3 or x.shape[0] not in (1, 3) or x.element_size() != 1:
        return None
    pixels = np.ascontiguousarray(x.cpu().numpy().transpose(1, 2, 0))
    image = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
    image.thumbnail((THUMBNAIL, THUMBNAIL))
    content = io.BytesIO()
    image.save(content, "PNG", compress_level=1)
    return f"data:image/png;base64,{base64.b64encode(content.getvalue()).decode()}"
