"""`run(keep=True)` and `onepass run --keep`: the learner that was measured, as a model that goes on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from onepass.bench.run_config import RunConfig
from onepass.bench.runner import run
from onepass.bench.store import LEARNER, MODEL, folder
from onepass.cli.main import main
from onepass.data.digits import load
from onepass.errors import BadCheckpoint, UsageError
from onepass.executors import run_many
from onepass.live.corrections import forget
from onepass.live.kept import model_of_run
from onepass.live.state import load_model


@pytest.mark.parametrize("method", ["er", "er-fsl+", "lwf", "slda", "iid"])
def test_a_kept_model_answers_as_the_run_did_and_goes_on(method: str, tmp_path: Path) -> None:
    settings = {} if method in ("slda", "iid", "lwf") else {"memory": 30}
    config = RunConfig(method, "digits", fraction=0.1, settings=settings)
    result = run(config, tmp_path, keep=True)
    model = load_model(model_of_run(folder(tmp_path, config)))
    data = load()
    snapshot = model.snapshot()
    answers = snapshot.scores(data.x_test).argmax(dim=1)
    names = torch.tensor([int(name) for name in snapshot.names])
    accuracies = [(names[answers] == data.y_test)[data.y_test == c].float().mean() for c in range(10)]
    tasks = [[int(name) for name in task] for task in result.protocol["tasks"]]
    counts = torch.bincount(data.y_test).float()
    final = [sum(accuracies[c] * counts[c] for c in task) / counts[task].sum() for task in tasks]
    assert sum(final) / len(final) == pytest.approx(result.final_accuracy)
    assert model.learned == result.data["learned"] == sum(model.class_counts().values())
    assert set(model.stored()[2]) <= {""}, "the run's samples have no ids"
    assert model.learn(data.x[:20], ["new"] * 20).learned == 20
    assert forget(model, x=data.x[:5]).forgotten == 5
    assert model.class_counts()["new"] == 15


def test_a_run_is_trained_again_for_its_learner_alone(tmp_path: Path) -> None:
    config = RunConfig("er", "digits", fraction=0.1, settings={"memory": 30})
    place = folder(tmp_path, config)
    first = run(config, tmp_path)
    assert not (place / LEARNER).exists()
    again = run(config, tmp_path, keep=True)
    assert again.fingerprint == first.fingerprint
    made = (place / LEARNER).stat()
    assert made.st_mode & 0o777 == 0o600, "it holds images"
    assert run_many([config], tmp_path, keep=True) == [again]
    assert (place / LEARNER).stat().st_mtime_ns == made.st_mtime_ns, "it is there"
    assert model_of_run(place) == model_of_run(place) == place / MODEL
    assert sorted(path.name for path in place.iterdir()) == ["evaluations.jsonl", MODEL, "result.json"]
    with pytest.raises(UsageError, match="keep=True: the learner lies in the run's folder; give out"):
        run(config, keep=True)


def test_a_learner_that_onepass_save_wrote_is_no_kept_run(tmp_path: Path) -> None:
    import onepass
    from onepass import Problem

    onepass.save(onepass.build("ncm", Problem(2, (3,))), tmp_path / LEARNER)
    with pytest.raises(BadCheckpoint, match=r"KeyError.*names"):
        model_of_run(tmp_path)


def test_the_command_names_the_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", "ncm", "--stream", "digits", "--fraction", "0.1", "--out", str(tmp_path), "--keep", "--runs", "2"]
    assert main([*words, "--json"]) == 0
    paths = json.loads(capsys.readouterr().out)["models"]
    assert [Path(path).parent.name for path in paths] == ["seed-0", "seed-1"]
    assert main(words) == 0
    said = capsys.readouterr().out.replace("\n", "")
    assert all(path in said for path in paths)
    assert main(["inspect", paths[0], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["method"] == "ncm"
