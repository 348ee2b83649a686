"""The interface as an OpenAPI 3.1 document, for the model that is served: what a sample is depends on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onepass import __version__
from onepass.limits import LARGEST_VALUE
from onepass.live.labels import LONGEST, Label
from onepass.live.serving.bodies import LONGEST_ID, MOST_ITEMS
from onepass.live.serving.commands import LONGEST_KEY

REASONS = {
    400: "The request cannot be read",
    401: "The token is missing or wrong",
    403: "Not for this host, not from this page, or the server is read-only",
    404: "Not known",
    408: "The request came too slowly",
    409: "No class is known yet, or the Idempotency-Key is one of another request",
    413: "Too large",
    415: "Another Content-Type is expected",
    422: "Something is wrong with it; `item` is the place of the bad one",
    429: "The queue is full: come back later",
    501: "What this needs is not installed, or the method cannot do it",
    503: "Too busy, or about to stop",
}
WORD = {"type": "string", "minLength": 1, "maxLength": LONGEST}
NUMBER = {
    "anyOf": [
        {"type": "integer", "minimum": 1 - 2**53, "maximum": 2**53 - 1},
        {"type": "number", "not": {"type": "integer"}},
    ]
}
LABEL = {"description": "The name of a class. A model has words or numbers, not both.", "anyOf": [WORD, NUMBER]}
COUNT = {"type": "integer", "minimum": 0}
SHARE = {"type": ["number", "null"], "minimum": 0, "maximum": 1}
TOP = {"type": "integer", "minimum": 1, "maximum": 1000, "default": 3}
ID = {"type": "string", "minLength": 1, "maxLength": LONGEST_ID}


def document(shape: tuple[int, ...], names: Sequence[Label] = ()) -> dict[str, Any]:
    """For a model of samples of a shape that knows classes of these names: new ones must be of their kind."""
    kind, value = _sample(shape)
    label = LABEL if not names else WORD if isinstance(names[0], str) else NUMBER
    sample, labelled = {kind: value}, {kind: value, "label": label, "id": ID}
    images = kind == "image"
    predict = _object({"items": _items(_object(sample)), "top": TOP}, ["items"])
    learn = _object({"items": _items(_object(labelled, [kind, "label"]))})
    paths: dict[str, dict[str, Any]] = {
        "/v1/predict": {
            "post": _operation(
                "predict",
                "Predict samples. Never waits for learning.",
                PREDICTIONS,
                (401, 403, 408, 409, 413, 415, 422, 503),
                body=_body(predict, images),
                parameters=[_query("top", TOP)],
            )
        },
        "/v1/learn": {
            "post": _operation(
                "learn",
                "Learn samples. The answer comes before they are learned; a repeated key is learned once.",
                ACCEPTED,
                (401, 403, 408, 409, 413, 415, 422, 429, 503),
                status=202,
                body=_body(learn, images),
                parameters=[_KEY, *([_query("label", label), _query("id", ID)] if images else [])],
            )
        },
        "/v1/batches/{id}": {
            "get": _operation(
                "showBatch",
                "What became of a request to learn.",
                BATCH,
                (401, 403, 404, 422),
                parameters=[_path("id", ID)],
            )
        },
        "/v1/samples/{id}": {
            "delete": _operation(
                "forget",
                "Forget a sample: in memory and in every file. Given again, learners of statistics forget it exactly.",
                FORGOTTEN,
                (401, 403, 404, 408, 413, 415, 422, 429, 503),
                body={"required": False, "content": {"application/json": {"schema": _object(sample, [])}}},
                parameters=[_path("id", ID), _query("rebuild", {"type": "boolean", "default": False})],
            ),
            "patch": _operation(
                "relabel",
                "Correct the label of a sample. Learners of statistics need the sample again.",
                RELABELLED,
                (401, 403, 404, 408, 413, 415, 422, 429, 503),
                body={
                    "required": True,
                    "content": {"application/json": {"schema": _object({"label": label, **sample}, ["label"])}},
                },
                parameters=[_path("id", ID)],
            ),
        },
        "/v1/classes": {"get": _operation("classes", "What the model knows.", STATE, (401, 403, 422))},
        "/v1/memory": {
            "get": _operation(
                "memory",
                "Samples in memory, those that came last first.",
                MEMORY,
                (401, 403, 422),
                parameters=[
                    _query("limit", {"type": "integer", "minimum": 1, "maximum": 200, "default": 60}),
                    _query("offset", {**COUNT, "maximum": 2**53, "default": 0}),
                    _query("class", {"type": "string"}),
                ],
            )
        },
        "/v1/events": {
            "get": _operation(
                "events",
                "The stream as it comes, up to eight samples a second while somebody asks.",
                EVENTS,
                (401, 403, 422),
                parameters=[_query("after", {**COUNT, "maximum": 2**53, "default": 0})],
            )
        },
        "/v1/model.onnx": {
            "get": _operation(
                "onnx", "What predicts, as ONNX.", None, (401, 403, 409, 422, 501), "application/octet-stream"
            )
        },
        "/metrics": {"get": _operation("metrics", "For Prometheus.", None, (401, 403), "text/plain")},
        "/healthz": {"get": _open("health", "Whether what was accepted will be learned.")},
        "/readyz": {"get": _open("readiness", "Whether requests are taken.")},
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "onepass serve",
            "version": __version__,
            "description": "A model that learns while it serves.",
        },
        "paths": paths,
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        "security": [{"token": []}],
    }


def _sample(shape: tuple[int, ...]) -> tuple[str, dict[str, Any]]:
    if len(shape) == 3:
        text = "An image file (JPEG, PNG, WebP, ...) in base64"
        return "image", {"type": "string", "format": "onepass-image", "contentEncoding": "base64", "description": text}
    number = {"type": "number", "minimum": -LARGEST_VALUE, "maximum": LARGEST_VALUE}
    return "vector", {"type": "array", "items": number, "minItems": shape[0], "maxItems": shape[0]}


def _object(properties: dict[str, Any], required: list[str] | None = None) -> dict[str, Any]:
    needed = list(properties) if required is None else required
    return {"type": "object", "properties": properties, "required": needed, "additionalProperties": False}


def _items(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": schema, "minItems": 1, "maxItems": MOST_ITEMS}


def _body(schema: dict[str, Any], images: bool) -> dict[str, Any]:
    content: dict[str, Any] = {"application/json": {"schema": schema}}
    if images:
        content["image/*"] = {"schema": {"type": "string", "format": "binary"}}
    return {"required": True, "content": content}


def _query(name: str, schema: Any) -> dict[str, Any]:
    return {"name": name, "in": "query", "required": False, "schema": schema}


def _path(name: str, schema: Any) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": schema}


_KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "schema": {"type": "string", "minLength": 1, "maxLength": LONGEST_KEY, "pattern": "^[!-~]+$"},
}
ERROR = _object({"error": {"type": "string"}, "item": {"type": ["integer", "null"]}})


def _operation(
    name: str,
    summary: str,
    schema: dict[str, Any] | None,
    refusals: tuple[int, ...],
    media: str = "application/json",
    *,
    status: int = 200,
    body: dict[str, Any] | None = None,
    parameters: list[dict[str, Any]] | None = None,
) -> dict[str, Any]:
    answers: dict[str, Any] = {
        str(status): {"description": "Done" if status == 200 else "Accepted", "content": {media: _schema(schema)}}
    }
    for code in refusals:
        answers[str(code)] = {"description": REASONS[code], "content": {"application/json": {"schema": ERROR}}}
    found = {"operationId": name, "summary": summary, "responses": answers, "parameters": parameters or []}
    return found if body is None else {**found, "requestBody": body}


def _schema(schema: dict[str, Any] | None) -> dict[str, Any]:
    return {} if schema is None else {"schema": schema}


def _open(name: str, summary: str) -> dict[str, Any]:
    status = {"application/json": {"schema": _object({"status": {"type": "string"}})}}
    answers = {"200": {"description": "Yes", "content": status}, "503": {"description": "No", "content": status}}
    return {"operationId": name, "summary": summary, "security": [], "responses": answers}


_CLASS = _object({"class": LABEL, "probability": {"type": "number", "minimum": 0, "maximum": 1}})
PREDICTIONS = _object(
    {
        "predictions": {"type": "array", "items": _object({"classes": {"type": "array", "items": _CLASS}})},
        "calibrated": {"type": "boolean"},
        "samples": COUNT,
    }
)
_STATE_NAME = {"enum": ["queued", "learned", "failed"]}
ACCEPTED = _object(
    {"batch": {"type": "string"}, "ids": {"type": "array", "items": {"type": "string"}}, "state": _STATE_NAME}
)
BATCH = _object(
    {
        "batch": {"type": "string"},
        "state": _STATE_NAME,
        "saved": {"type": "boolean", "description": "Whether the model's file holds it"},
        "error": {"type": ["string", "null"]},
    }
)
FORGOTTEN = _object(
    {
        "id": {"type": "string"},
        "forgotten": COUNT,
        "from_memory": COUNT,
        "influenced": {**COUNT, "description": "1: stored nowhere, but predictions are still influenced"},
        "erased_from_file": {
            "type": "boolean",
            "description": "false: the file cannot be written now; it is tried again",
        },
    }
)
RELABELLED = _object({"id": {"type": "string"}, "label": LABEL, "changed": {"type": "boolean"}})
_KNOWN = _object({"name": LABEL, "samples": COUNT, "accuracy": SHARE, "tested": COUNT})
_DRIFT = _object({"recent": SHARE, "low": SHARE, "high": SHARE, "side": {"enum": [-1, 0, 1]}})
STATE = {
    "type": "object",
    "required": ["classes", "samples", "memory", "accuracy", "drift", "calibrated", "queue", "read_only", "saved"],
    "properties": {
        "classes": {"type": "array", "items": _KNOWN},
        "samples": COUNT,
        "memory": {"type": "array", "items": COUNT, "minItems": 2, "maxItems": 2},
        "accuracy": SHARE,
        "drift": {"anyOf": [_DRIFT, {"type": "null"}]},
        "calibrated": {"type": "boolean"},
        "queue": _object({"waiting": COUNT, "room": COUNT}),
        "read_only": {"type": "boolean"},
        "saved": {"type": "boolean"},
        "save_failure": {"type": ["string", "null"]},
    },
}
_THUMBNAIL = {"type": ["string", "null"], "description": "A data URL"}
_STORED = _object({"id": {"type": "string"}, "label": LABEL, "thumbnail": _THUMBNAIL})
MEMORY = _object({"held": COUNT, "room": COUNT, "found": COUNT, "samples": {"type": "array", "items": _STORED}})
_EVENT = _object(
    {
        "number": COUNT,
        "kind": {"enum": ["learned", "relabelled", "forgotten"]},
        "id": {"type": "string"},
        "label": {"anyOf": [LABEL, {"type": "null"}]},
        "predicted": {"anyOf": [LABEL, {"type": "null"}]},
        "probability": SHARE,
        "thumbnail": _THUMBNAIL,
    }
)
EVENTS = _object({"events": {"type": "array", "items": _EVENT}, "kept": {"type": "array", "items": COUNT}})
