"""The server against its own OpenAPI document, by schemathesis: requests that fit it and requests that do not."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
import schemathesis
import torch
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

from onepass.live.model import Model
from onepass.live.state import save_model
from serving_helpers import TOKEN, png, served

PICTURES = [base64.b64encode(png(torch.full((1, 8, 8), shade, dtype=torch.uint8))).decode() for shade in range(20)]
schemathesis.openapi.format("onepass-image", st.sampled_from(PICTURES))
EXAMPLES = 15  # of each operation


@pytest.mark.system
@pytest.mark.parametrize("kind", ["vectors", "images"])
def test_schemathesis_finds_nothing(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "m.onepass"
    model = Model.create((3,) if kind == "vectors" else (1, 8, 8), method="er", memory=20)
    model.learn(torch.zeros(1, *model.shape, dtype=torch.float32 if kind == "vectors" else torch.uint8), ["a"])
    save_model(model, path)
    with served(path) as server:
        address = server.address.partition("#")[0]
        document = server.client.get("/openapi.json").json()
        del document["security"], document["components"]  # requests have the token here; test_serving tries without
        schema = schemathesis.openapi.from_dict(document)
        refusals: Any = schema.config.checks.negative_data_rejection
        refusals.expected_statuses = [*refusals.expected_statuses, "413"]  # too many items
        tried = 0
        for found in schema.get_all_operations():
            operation: Any = found.ok()  # type: ignore[union-attr]  # a document that cannot be read fails here
            modes = [schemathesis.GenerationMode.POSITIVE]
            written = document["paths"][operation.path][operation.method.lower()]
            if written.get("parameters") or "requestBody" in written:
                modes.append(schemathesis.GenerationMode.NEGATIVE)  # where there is something to get wrong
            for mode in modes:

                @settings(
                    max_examples=EXAMPLES,
                    deadline=None,
                    database=None,
                    derandomize=True,
                    phases=[Phase.generate],
                    suppress_health_check=list(HealthCheck),
                )
                @given(case=operation.as_strategy(generation_mode=mode))
                def check(case: Any) -> None:
                    nonlocal tried
                    if case.path == "/v1/learn" and str(case.media_type).startswith("image/"):
                        assume("label" in (case.query or {}))  # which OpenAPI cannot ask of one kind of body alone
                    headers = {"Authorization": f"Bearer {TOKEN}"}
                    case.call_and_validate(base_url=address, headers=headers, timeout=300)  # a busy machine may be slow
                    tried += 1

                check()
        assert tried > 100
        assert server.client.get("/healthz").status_code == 200
