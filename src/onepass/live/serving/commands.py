"""What requests ask of a service, as plain values."""

from __future__ import annotations

import secrets
from typing import Any

import torch
from torch import Tensor

from onepass.errors import UsageError
from onepass.learner.memory import Memory
from onepass.live import corrections
from onepass.live.journal import content_digests, digest_of
from onepass.live.labels import Label
from onepass.live.model import Model
from onepass.live.serving import bodies
from onepass.live.serving.bodies import Items, Refused
from onepass.live.serving.keys import request_digest
from onepass.live.serving.recent import thumbnail
from onepass.live.serving.service import Request, Service

MOST_CLASSES = 10_000
LONGEST_KEY = 200  # letters
UNKNOWN = "Expected the id of a sample that is known, got another. Learn it first."


def spoken_label(model: Model, text: str | None) -> Label:
    """A label that came as text, for a model whose labels may be numbers."""
    label = bodies.label_of(text)
    if model.labels.names and not isinstance(model.labels.names[0], str):
        for kind in (int, float):
            try:
                return bodies.label_of(kind(str(label)))
            except ValueError:
                continue
    return label


def learn(service: Service, items: Items, key: str | None, body: bytes, query: str) -> tuple[str, dict[str, Any]]:
    """Put samples in the queue. The id of the request, and what is answered."""
    model = service.model
    _check_labels(model, items.labels)
    keyed = None if key is None else request_digest(_checked_key(key).encode())
    id = secrets.token_hex(16) if keyed is None else keyed.hex()
    found = content_digests(items.x) if model.by_content else [None] * len(items.x)
    # Without a content that tells them apart, samples are known by the request: so a repeated one is recognised.
    digests = [
        digest_of(given).hex() if given is not None else (content or digest_of(f"{id}/{place}")).hex()
        for place, (given, content) in enumerate(zip(items.ids, found, strict=True))
    ]
    ids = [digest if given is None else given for given, digest in zip(items.ids, digests, strict=True)]
    last = sorted({digest: place for place, digest in enumerate(digests)}.values())  # of a sample that comes twice
    x, labels = items.x[last], [items.labels[place] for place in last]
    request = Request(id, x, labels, [digests[place] for place in last], keyed, request_digest(body, query.encode()))
    batch = service.submit(request, ids)
    return id, {"batch": id, "ids": batch.ids or ids, "state": batch.state}


def _check_labels(model: Model, labels: list[Label]) -> None:
    for place, label in enumerate(labels):
        try:
            model.labels.check([labels[0], label])
        except UsageError as error:
            raise Refused(422, f"item {place}: {error}", place) from error
    new = sum(label not in model.labels for label in set(labels))
    if new and len(model.labels) + new > MOST_CLASSES:
        raise Refused(422, f"Expected at most {MOST_CLASSES:,} classes, got {len(model.labels) + new:,}.")


def _checked_key(key: str) -> str:
    if not 0 < len(key) <= LONGEST_KEY or not all("!" <= letter <= "~" for letter in key):
        raise Refused(422, f"Expected an Idempotency-Key of 1 to {LONGEST_KEY} ASCII letters without spaces.")
    return key


def batch_state(service: Service, id: str) -> dict[str, Any]:
    batch = service.batch(id)
    if batch is None:
        raise Refused(404, "Expected the id of a request, got another. The last 10,000 are kept.")
    return {"batch": id, "state": batch.state, "saved": service.is_saved(batch), "error": batch.error or None}


def given_sample(model: Model, body: bytes, labelled: bool) -> tuple[Tensor | None, Label]:
    """A sample that may be given again, and a label if there has to be one."""
    kind = "image" if len(model.shape) == 3 else "vector"
    found = bodies.json_object(body, {kind, "label"} if labelled else {kind})
    label = bodies.label_of(found.get("label")) if labelled else ""
    if labelled:
        _check_labels(model, [label])
    x = bodies.sample_of(found, model.shape, {"label"})[None] if kind in found else None
    return x, label


def forget(service: Service, id: str, x: Tensor | None, rebuild: bool) -> dict[str, Any]:
    """In the thread that learns."""
    model = service.model
    with model.turn():
        if model.journal.find(digest_of(id)) is None:
            raise Refused(404, UNKNOWN)
        found = corrections.forget(model, [id], x, rebuild=rebuild)
    service.recent.add("forgotten", digest_of(id).hex(), None)
    erased = service.autosave is not None and service.autosave.erase()
    facts = {"forgotten": found.forgotten, "from_memory": found.from_memory, "influenced": found.influenced}
    return {"id": id, **facts, "erased_from_file": erased}


def relabel(service: Service, id: str, label: Label, x: Tensor | None) -> dict[str, Any]:
    """In the thread that learns."""
    model = service.model
    with model.turn():
        if model.journal.find(digest_of(id)) is None:
            raise Refused(404, UNKNOWN)
        changed = corrections.relabel(model, [id], [label], x)
    if changed:
        service.recent.add("relabelled", digest_of(id).hex(), label, None if x is None else x[0])
    return {"id": id, "label": label, "changed": bool(changed)}


def memory(service: Service, offset: int, limit: int, label: str | None) -> dict[str, Any]:
    """Some of the samples in memory, those that came last first."""
    model = service.model
    with model.turn():
        names = model.labels.names
        places: list[tuple[int, int, Memory]] = []
        for part in model.learner.memories():
            numbers, classes = (part.field(name)[: len(part)].tolist() for name in ("number", "y"))
            for slot, (number, c) in enumerate(zip(numbers, classes, strict=True)):
                if label is None or str(names[c]) == label:
                    places.append((number, slot, part))
        places.sort(key=lambda place: -place[0])
        rows = []
        for number, slot, part in places[offset : offset + limit]:
            row = part.read(torch.tensor([slot]))
            rows.append((model.journal.id_of(number) if number >= 0 else "", names[int(row.y)], row.x[0]))
        held, room = model.memory
    samples = [{"id": id, "label": name, "thumbnail": thumbnail(x)} for id, name, x in rows]
    return {"held": held, "room": room, "found": len(places), "samples": samples}
