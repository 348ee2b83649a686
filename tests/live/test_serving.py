"""`onepass serve` as its users meet it: a process of its own, asked over HTTP."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from onepass.data.digits import load
from onepass.learner.checkpoint import load_tree
from onepass.live.model import Model
from onepass.live.state import load_model, older_copy, save_model
from serving_helpers import Served, image, png, served

DIGITS = load()


def digit_items(n: int, start: int = 0) -> list[dict[str, Any]]:
    rows = range(start, start + n)
    return [image(DIGITS.x[row], label=DIGITS.classes[int(DIGITS.y[row])]) for row in rows]


def vectors(n: int, label: str, centre: float) -> list[dict[str, Any]]:
    rng = torch.Generator().manual_seed(int(centre * 10))
    rows = (centre + 0.1 * torch.randn(n, 3, generator=rng)).tolist()
    return [{"vector": row, "label": label} for row in rows]


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    path = tmp_path_factory.mktemp("served") / "m.onepass"
    save_model(Model.create((1, 8, 8), method="er", memory=50), path)
    with served(path) as server:
        yield server


@pytest.mark.system
def test_before_a_class_is_known_a_question_is_a_conflict(tmp_path: Path) -> None:
    with served(tmp_path / "m.onepass", "--vectors", "3") as server:
        assert server.client.get("/readyz").status_code == 200
        asked = server.client.post("/v1/predict", json={"items": [{"vector": [1, 2, 3]}]})
        assert asked.status_code == 409
        assert server.client.get("/v1/model.onnx").status_code == 409
        state = server.learned(vectors(20, "low", 0.0) + vectors(20, "high", 5.0))
        assert state["state"] == "learned"
        server.knows(40)
        assert server.predict([{"vector": [0, 0, 0]}, {"vector": [5, 5, 5]}]) == ["low", "high"]


@pytest.mark.system
def test_what_it_predicts_is_what_the_model_predicts(tmp_path: Path) -> None:
    model = Model.create((1, 8, 8), method="er", memory=50)
    model.learn(DIGITS.x[:100], [DIGITS.classes[int(y)] for y in DIGITS.y[:100]])
    save_model(model, tmp_path / "m.onepass")
    expected = load_model(tmp_path / "m.onepass").snapshot().probabilities(DIGITS.x_test[:8])
    names = load_model(tmp_path / "m.onepass").snapshot().names
    with served(tmp_path / "m.onepass", "--read-only") as server:
        sent = {"items": [image(x) for x in DIGITS.x_test[:8]], "top": 10}
        rows = server.client.post("/v1/predict", json=sent).json()["predictions"]
        for row, wanted in zip(rows, expected, strict=True):
            got = {entry["class"]: entry["probability"] for entry in row["classes"]}
            assert got == pytest.approx(dict(zip(names, wanted.tolist(), strict=True)), abs=1e-6)
        raw = server.client.post(
            "/v1/predict?top=1", content=png(DIGITS.x_test[0]), headers={"Content-Type": "image/png"}
        )
        one = raw.json()["predictions"][0]["classes"]
        assert one == [{"class": names[expected[0].argmax()], "probability": pytest.approx(float(expected[0].max()))}]
        for method, url in (("POST", "/v1/learn"), ("DELETE", "/v1/samples/a"), ("PATCH", "/v1/samples/a")):
            assert server.client.request(method, url, json={}).status_code == 403
        before = (tmp_path / "m.onepass").read_bytes()
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 143
    assert (tmp_path / "m.onepass").read_bytes() == before


@pytest.mark.system
def test_a_token_is_asked_for_and_other_sites_are_refused(digits: Served) -> None:
    for url in ("/v1/classes", "/metrics", "/v1/memory", "/v1/events", "/v1/model.onnx"):
        assert digits.client.get(url, headers={"Authorization": ""}).status_code == 401
        assert digits.client.get(url, headers={"Authorization": "Bearer wrong"}).status_code == 401
    for url in ("/", "/healthz", "/readyz", "/openapi.json"):
        assert digits.client.get(url, headers={"Authorization": ""}).status_code == 200
    assert digits.client.get("/v1/classes", headers={"Host": "evil.example"}).status_code == 403
    assert digits.client.get("/v1/classes", headers={"Origin": "http://evil.example"}).status_code == 403
    host = digits.client.base_url.netloc.decode()
    assert digits.client.get("/v1/classes", headers={"Origin": f"http://{host}"}).status_code == 200


@pytest.mark.system
def test_what_is_wrong_is_named(digits: Served) -> None:
    good = digit_items(1)[0]

    def refused(body: dict[str, Any], status: int = 422) -> dict[str, Any]:
        answer = digits.client.post("/v1/learn", json=body)
        assert answer.status_code == status, answer.text
        found: dict[str, Any] = answer.json()
        return found

    bad = refused({"items": [good, {"image": "AAAA", "label": "1"}]})
    assert bad["item"] == 1
    assert bad["error"].startswith("item 1: Expected an image")
    assert refused({"items": [good, good, {**good, "label": None}]})["item"] == 2
    assert refused({"items": [good, {**good, "label": 1}]})["item"] == 1  # words and numbers
    assert refused({"items": [{**good, "colour": 1}]})["item"] == 0
    assert refused({"items": []})["item"] is None
    refused({"items": [good] * 257}, 413)
    assert (
        digits.client.post(
            "/v1/learn", content=b"x" * ((16 << 20) + 1), headers={"Content-Type": "image/png"}
        ).status_code
        == 413
    )
    assert digits.client.post("/v1/learn", content=b"a=b", headers={"Content-Type": "text/plain"}).status_code == 415
    assert (
        digits.client.post(
            "/v1/learn", content=b"[" * 100_000, headers={"Content-Type": "application/json"}
        ).status_code
        == 422
    )
    bomb = png(torch.zeros(1, 1, 1, dtype=torch.uint8))
    bomb = bomb[:16] + (30_000).to_bytes(4, "big") * 2 + bomb[24:]  # a header that promises 900 million pixels
    assert (
        digits.client.post("/v1/learn?label=1", content=bomb, headers={"Content-Type": "image/png"}).status_code == 422
    )
    assert digits.client.get("/v1/batches/none").status_code == 404
    assert digits.client.get("/v1/nothing").json()["error"] == "Not Found"


@pytest.mark.system
def test_a_sample_is_learned_once_corrected_and_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "m.onepass"
    save_model(Model.create((1, 8, 8), method="er", memory=50), path)
    with served(path, "--save-seconds", "0.2") as server:
        items = digit_items(12)
        first = server.learn(items, "a-key")
        assert server.learn(items, "a-key") == {**first, "state": server.learn(items, "a-key")["state"]}
        assert (
            server.client.post("/v1/learn", json={"items": items[:3]}, headers={"Idempotency-Key": "a-key"}).status_code
            == 409
        )
        server.until(first["batch"], lambda state: state["saved"])
        server.learned([{**items[0], "id": "mine"}, {**items[0], "id": "mine", "label": "last"}])  # the last counts
        assert next(row for row in server.knows(13)["classes"] if row["name"] == "last")["samples"] == 1
        assert server.knows(13)["memory"] == [13, 50]

        memory = server.client.get("/v1/memory").json()
        assert {row["id"] for row in memory["samples"]} >= set(first["ids"])
        assert all(row["thumbnail"].startswith("data:image/png;base64,") for row in memory["samples"])

        name = first["ids"][3]
        assert server.client.patch(f"/v1/samples/{name}", json={"label": "other"}).json()["changed"] is True
        held = {row["id"]: row["label"] for row in server.client.get("/v1/memory").json()["samples"]}
        assert held[name] == "other"

        gone = server.client.delete(f"/v1/samples/{name}").json()
        assert gone == {"id": name, "forgotten": 1, "from_memory": 1, "influenced": 1, "erased_from_file": True}
        assert not any(older_copy(path, n).exists() for n in (1, 2))
        assert server.client.delete(f"/v1/samples/{name}").status_code == 404
        assert server.client.delete("/v1/samples/mine").json()["forgotten"] == 1
        assert server.client.patch("/v1/samples/mine", json={"label": "other"}).status_code == 404
        assert server.client.get("/v1/classes").json()["samples"] == 11  # published before the answer

        text = server.client.get("/metrics").text
        assert "onepass_samples 11.0" in text
        assert 'onepass_requests_total{route="forget",status="404"} 1.0' in text
    assert load_tree(path)["journal"]["classes"].tolist().count(-1) == 2


@pytest.mark.system
def test_sigterm_learns_what_is_queued_saves_and_ends(tmp_path: Path) -> None:
    path = tmp_path / "m.onepass"
    with served(path, "--vectors", "3", "--save-seconds", "600") as server:
        for n in range(20):
            server.learn(vectors(50, f"class {n}", float(n)))
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(120) == 143
    model = load_model(path)
    assert model.learned == 1000
    assert len(model.labels) == 20


@pytest.mark.system
def test_a_full_queue_is_said(tmp_path: Path) -> None:
    path = tmp_path / "m.onepass"
    save_model(Model.create((3, 32, 32), method="er", memory=50), path)
    with served(path, "--queue", "10") as server:
        pictures = torch.randint(0, 256, (60, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
        answers = [
            server.client.post("/v1/learn", json={"items": [image(x, label="a") for x in part]})
            for part in pictures.split(5)
        ]
        codes = {answer.status_code for answer in answers}
        assert codes == {202, 429}
        full = next(answer for answer in answers if answer.status_code == 429)
        assert full.headers["Retry-After"] == "1"
        server.knows(5 * sum(answer.status_code == 202 for answer in answers))


@pytest.mark.system
def test_images_of_a_watched_folder_are_learned_beside_requests(tmp_path: Path) -> None:
    path, folder = tmp_path / "m.onepass", tmp_path / "photos"
    save_model(Model.create((1, 8, 8), method="er", memory=50), path)
    for name in ("0", "1"):
        (folder / name).mkdir(parents=True)
    for row, y in enumerate(DIGITS.y[:40].tolist()):
        if y < 2:
            (folder / str(y) / f"{row}.png").write_bytes(png(DIGITS.x[row]))
    n = sum(y < 2 for y in DIGITS.y[:40].tolist())
    with served(path, "--watch", str(folder)) as server:
        server.knows(n)
        server.learned([image(DIGITS.x[100], label="2")])
        (folder / "1" / "new.png").write_bytes(png(DIGITS.x[101]))
        state = server.knows(n + 2)
        assert [row["name"] for row in state["classes"]] == ["0", "1", "2"]
