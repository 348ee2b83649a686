"""Streams of vectors from the command line: every form is learned, stored and found again like images."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onepass.bench.run_config import RunConfig
from onepass.cli.main import main
from onepass.data.catalog import Datasets

RNG = np.random.default_rng(0)
N, CLASSES, WIDTH = 300, 6, 8
Y = np.arange(N) % CLASSES
X = 40 * np.eye(CLASSES, WIDTH)[Y] + RNG.normal(size=(N, WIDTH)) + 100  # far apart, and far from zero


def saved(folder: Path, form: str) -> Path:
    path = folder / f"rows.{form}"
    if form == "npz":
        np.savez(path, x=X, y=Y)
    elif form == "npy":
        np.save(path, X)
        np.save(folder / "rows_labels.npy", Y)
    elif form == "parquet":
        pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        lists = pa.FixedSizeListArray.from_arrays(pa.array(X.ravel()), WIDTH)
        pq.write_table(pa.table({"vector": lists, "label": Y}), path)
    else:
        cells = [",".join([*map(repr, row), str(label)]) for row, label in zip(X.tolist(), Y, strict=True)]
        path.write_text("\n".join([",".join([*(f"c{i}" for i in range(WIDTH)), "label"]), *cells]))
    return path


def run(folder: Path, stream: Path, *words: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    common = ["--stream", str(stream), "--data-dir", str(folder / "data"), "--out", str(folder / "out"), "--json"]
    assert main(["run", "er", "--memory", "60", "--tasks", "3", *words, *common]) == 0
    [result] = json.loads(capsys.readouterr().out)["runs"]
    return dict(result)


def test_every_form_is_learned_to_the_same_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    matrices = []
    for form in ("npz", "npy", "csv", "parquet"):
        result = run(tmp_path, saved(tmp_path, form), capsys=capsys)
        assert result["data"] == {**result["data"], "learned": 240, "measured": 60, "shape": [WIDTH]}
        assert (result["protocol"]["net"], result["protocol"]["augment"]) == ("mlp", "none")
        matrices.append(result["accuracy_matrix"])
    assert all(matrix == matrices[0] for matrix in matrices)
    assert matrices[0][0][0] > 0.8, "two classes that are far apart"


def test_a_share_of_the_stream_and_validation_are_as_for_images(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = saved(tmp_path, "csv")
    result = run(tmp_path, path, "--fraction", "0.5", capsys=capsys)
    assert (result["data"]["learned"], result["data"]["measured"]) == (120, 60)
    result = run(tmp_path, path, "--validate", capsys=capsys)
    assert (result["data"]["learned"], result["data"]["measured"]) == (216, 24)


def test_a_run_that_is_stored_is_found_until_the_table_changes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = saved(tmp_path, "csv")
    first = run(tmp_path, path, capsys=capsys)
    [file] = (tmp_path / "out").rglob("result.json")
    written = file.stat().st_mtime_ns
    assert run(tmp_path, path, capsys=capsys) == first
    assert file.stat().st_mtime_ns == written
    path.write_text(path.read_text().replace("\n1", "\n2", 1))
    assert run(tmp_path, path, capsys=capsys)["data"]["sha256"] != first["data"]["sha256"]


def test_a_network_for_images_is_refused_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--stream", str(saved(tmp_path, "csv")), "--data-dir", str(tmp_path / "data"), "--out", str(tmp_path)]
    assert main(["run", "er", "--net", "resnet18", *words]) == 2
    assert "net 'resnet18' is for images" in capsys.readouterr().err


@pytest.mark.parametrize("form", ["npz", "npy", "csv"])
def test_the_network_is_chosen_by_the_file_and_named_in_the_config(tmp_path: Path, form: str) -> None:
    path = saved(tmp_path, form)
    config = RunConfig("er", str(path))
    assert (config.net, config.tasks) == ("mlp", 5)
    path.unlink()
    assert RunConfig.from_stored(config.to_json()).key == config.key, "a stored run opens no file"


def test_data_check_counts_vectors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = saved(tmp_path, "csv")
    assert main(["data", "check", str(path), "--data-dir", str(tmp_path)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "train vectors" in said
    assert "csv; vectors of 8" in said
    assert "no column split: 20% of each class were held out for testing (seed 0)" in said
    assert "nothing is wrong" in said


def test_cost_counts_a_step_on_vectors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["cost", "er", "er-ace", "--stream", str(saved(tmp_path, "npz")), "--memory", "20"]
    assert main([*words, "--data-dir", str(tmp_path), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["net"] == "mlp"
    assert [row["method"] for row in facts["rows"]] == ["er", "er-ace"]


def test_the_table_of_the_guide_is_one(tmp_path: Path) -> None:
    guide = Path(__file__).resolve().parents[2] / "docs" / "vectors.md"
    [table] = re.findall(r"```\n(width.*?)```", guide.read_text(), re.DOTALL)
    (tmp_path / "a.csv").write_text(table)
    data = Datasets(tmp_path / "data").load(str(tmp_path / "a.csv"))
    assert data.classes == ("cat", "dog")
    assert np.array_equal(data.x.numpy(), np.array([[0.31, 1.2], [2.5, 1.1]], dtype=np.float32))
    assert np.array_equal(data.x_test.numpy(), np.array([[0.27, 0.9], [2.44, 1.3]], dtype=np.float32))
