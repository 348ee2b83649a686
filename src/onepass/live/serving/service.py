"""A queue of samples, one thread that learns them, and what is published meanwhile."""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from onepass.errors import BadCheckpoint, UsageError
from onepass.host import cores
from onepass.live.autosave import Autosave
from onepass.live.describe import describe
from onepass.live.labels import Label
from onepass.live.model import Model
from onepass.live.serving.keys import Keys
from onepass.live.serving.recent import Recent
from onepass.live.snapshot import Snapshot
from onepass.text import warn

TOGETHER = 64  # samples of several requests that are learned in one call
QUEUE_BYTES = 64 << 20  # of samples that wait
REMEMBERED = 10_000  # requests of which the state is told
PAUSE = 0.1  # seconds between two publications, at least
SHARE = 4  # and so many times what one costs
BUSY = 24  # while samples wait to be learned: fewer than one prediction in twenty then meets a publication
RETRY = 1.0  # seconds until one that failed is tried again


class QueueFullError(Exception):
    """Come back later."""


class KeyUsedError(Exception):
    """The Idempotency-Key came before, with another request."""


class ClosingError(Exception):
    """The process is about to end."""


@dataclass
class Request:
    """Samples of one request to learn. `key` and `digest` are those of its Idempotency-Key and of its content."""

    id: str
    x: Tensor
    labels: list[Label]
    digests: list[str]
    key: bytes | None = None
    digest: bytes = b""


@dataclass
class Batch:
    """What became of a request."""

    digest: bytes
    ids: list[str]
    state: str = "queued"  # learned, failed
    error: str = ""
    version: int = 0  # of the model that had learned it


@dataclass
class Call:
    """Something else that changes the model, in its place in the queue."""

    function: Callable[[], Any]
    result: Future[Any] = field(default_factory=Future)

    def run(self, publish: Callable[[], None]) -> None:
        """What it changed is published before whoever asked for it is told."""
        if not self.result.set_running_or_notify_cancel():
            return
        try:
            found = self.function()
            publish()
        except Exception as error:
            self.result.set_exception(error)
        else:
            self.result.set_result(found)


@dataclass(frozen=True)
class Published:
    """What answers: of one moment, and never changed. No snapshot: no class is known yet."""

    snapshot: Snapshot | None
    facts: dict[str, Any]
    version: int


class Service:
    def __init__(self, model: Model, autosave: Autosave | None, *, room: int = 10_000) -> None:
        """`room` is how many samples may wait. Without `autosave` nothing is ever learned: the service is read-only."""
        self.model, self.autosave = model, autosave
        each = math.prod(model.shape) * (1 if model.learner.problem.images else 4)  # bytes
        self.room = max(1, min(room, QUEUE_BYTES // each))
        self.recent = Recent()
        self.failed = 0  # requests that could not be learned
        try:
            self.keys = Keys(model)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise BadCheckpoint(f"the model holds no whole list of requests ({error}): take an older copy") from error
        self._batches: OrderedDict[str, Batch] = OrderedDict()
        self._queue: deque[Request | Call] = deque()
        self._waiting = 0
        self._condition = threading.Condition()
        self._closing, self._abandoned = False, False
        self._published = 0.0, 0.0  # when, and what it cost
        self.published = self._publication()
        model.on_learned = self._show
        self._thread = threading.Thread(target=self._work, name="onepass-learn", daemon=True)
        if autosave is not None:
            self._thread.start()

    @property
    def read_only(self) -> bool:
        return self.autosave is None

    @property
    def waiting(self) -> int:
        return self._waiting

    @property
    def healthy(self) -> bool:
        """Whether what was accepted will be learned."""
        return self.read_only or self._thread.is_alive()

    @property
    def ready(self) -> bool:
        return self.healthy and not self._closing

    def status(self) -> dict[str, Any]:
        """How the service is, beside what was published."""
        autosave = self.autosave
        return {
            "queue": {"waiting": self.waiting, "room": self.room},
            "read_only": self.read_only,
            "saved": autosave is None or autosave.saved == self.model.version,
            "save_failure": None if autosave is None or not autosave.failure else autosave.failure,
        }

    # Called by requests.

    def submit(self, request: Request, ids: list[str]) -> Batch:
        """Put a request in the queue, unless it is there or was learned. Its key must have come with this content."""
        with self._condition:
            known = self.batch(request.id)
            if known is not None and known.state != "failed":
                if known.digest and known.digest != request.digest:
                    raise KeyUsedError
                return known
            if self._closing:
                raise ClosingError
            if self._waiting and self._waiting + len(request.labels) > self.room:
                raise QueueFullError
            batch = self._batches[request.id] = Batch(request.digest, ids)
            self._batches.move_to_end(request.id)
            while len(self._batches) > REMEMBERED:
                self._batches.popitem(last=False)
            self._queue.append(request)
            self._waiting += len(request.labels)
            self._condition.notify()
            return batch

    def batch(self, id: str) -> Batch | None:
        """What became of a request; of those before the process began, what the model's file tells."""
        found = self._batches.get(id)
        if found is None and len(id) == 32:
            try:
                digest = self.keys.find(bytes.fromhex(id))
            except ValueError:
                return None
            found = None if digest is None else Batch(digest, [], "learned")
        return found

    def is_saved(self, batch: Batch) -> bool:
        return batch.state == "learned" and (self.autosave is None or self.autosave.saved >= batch.version)

    def in_turn(self, function: Callable[[], Any]) -> Future[Any]:
        """Call a function that changes the model when all that is queued now is learned."""
        call = Call(function)
        with self._condition:
            if self._closing:
                raise ClosingError
            if len(self._queue) >= self.room:
                raise QueueFullError
            self._queue.append(call)
            self._condition.notify()
        return call.result

    def stir(self) -> None:
        """Somebody else has changed the model: publish that."""
        with self._condition:
            self._condition.notify()

    def close(self, seconds: float) -> bool:
        """Learn what is queued, for so long at most. Whether nothing is left."""
        with self._condition:
            self._closing = True
            self._condition.notify()
        if not self.read_only:
            self._thread.join(seconds)
            self._abandoned = True
            self._thread.join()
        for left in self._queue:
            if isinstance(left, Call) and left.result.set_running_or_notify_cancel():
                left.result.set_exception(ClosingError())
        return not self._queue

    # The thread that learns.

    def _work(self) -> None:
        torch.set_num_threads(max(1, min(torch.get_num_threads(), cores() - 1)))  # of this thread: a core answers
        while True:
            with self._condition:
                while not self._queue and not self._closing and (wait := self._stale_for()) != 0:
                    self._condition.wait(wait)
                if self._abandoned or (self._closing and not self._queue):
                    return
                group = self._next()
            if isinstance(group, Call):
                group.run(self._publish)
            elif group:
                self._learn(group)
            if self._stale_for() == 0:
                self._publish()

    def _stale_for(self) -> float | None:
        """Seconds until what is published is to be renewed; None: there is nothing new."""
        if self.published.version == self.model.version:
            return None
        when, cost = self._published
        return max(0.0, when + max(PAUSE, (BUSY if self._queue else SHARE) * cost) - time.monotonic())

    def _next(self) -> Call | list[Request]:
        """The next requests that can be learned in one call: no sample may come twice in it."""
        group: list[Request] = []
        met: set[str] = set()
        n = 0
        while self._queue:
            head = self._queue[0]
            if isinstance(head, Call):
                if group:
                    break
                self._queue.popleft()
                return head
            if group and (n + len(head.labels) > TOGETHER or not met.isdisjoint(head.digests)):
                break
            group.append(head)
            met.update(head.digests)
            n += len(head.labels)
            self._queue.popleft()
        self._waiting -= n
        return group

    def _learn(self, group: list[Request]) -> None:
        try:
            with self.model.turn():
                self.model.learn(
                    torch.cat([request.x for request in group]),
                    [label for request in group for label in request.labels],
                    [digest for request in group for digest in request.digests],
                )
                for request in group:
                    if request.key is not None:
                        self.keys.note(request.key, request.digest)
                version = self.model.version
        except Exception as error:  # a step that fails changes nothing, so the model is whole
            if len(group) > 1:
                for request in group:  # which of them it was
                    self._learn([request])
                return
            self.failed += 1
            if not isinstance(error, UsageError):
                warn(f"a request is not learned: {type(error).__name__}: {error}")
            self._became(group, "failed", 0, str(error) or type(error).__name__)
            return
        self._became(group, "learned", version)

    def _became(self, group: list[Request], state: str, version: int, error: str = "") -> None:
        for request in group:
            if (batch := self._batches.get(request.id)) is not None:
                batch.version, batch.error, batch.state = version, error, state

    def _publish(self) -> None:
        begin = time.monotonic()
        try:
            self.published = self._publication()
        except Exception as error:  # such as too little memory: what was published last goes on answering
            warn(f"no new snapshot: {type(error).__name__}: {error}")
            begin -= RETRY / SHARE
        end = time.monotonic()
        self._published = end, end - begin

    def _publication(self) -> Published:
        with self.model.turn():
            snapshot = self.model.snapshot() if self.model.learner.seen else None
            return Published(snapshot, describe(self.model), self.model.version)

    def _show(self, x: Tensor, classes: list[int], digests: Sequence[bytes | None]) -> None:
        """Some of the samples that were learned just now, with what was answered before."""
        n = self.recent.room(len(x))
        if n == 0:
            return
        snapshot = self.published.snapshot
        answers = [row[0] for row in snapshot.top(x[:n])] if snapshot is not None else [None] * n
        for row, answer in enumerate(answers):
            digest = digests[row]
            label = self.model.labels.names[classes[row]]
            self.recent.add("learned", "" if digest is None else digest.hex(), label, x[row].clone(), answer)
