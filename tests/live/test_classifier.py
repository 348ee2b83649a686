"""StreamClassifier by scikit-learn's own checks and by river's evaluation; what comes in and what goes out."""

from __future__ import annotations

import pickle
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import river.evaluate
import river.metrics
import torch
from numpy.typing import NDArray
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from onepass import StreamClassifier
from onepass.errors import UsageError

SMALL = {"filters": 20, "first": 100}
SKIPPED = {  # by scikit-learn itself, each for what is not installed or not asked for
    "check_array_api_input",
    "check_classifier_data_not_an_array",
}


@pytest.fixture(scope="module")
def digits() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    data = load_digits()
    return (data.images * 15).astype(np.uint8), data.target


def test_every_check_of_scikit_learn_passes() -> None:
    found = check_estimator(StreamClassifier(), on_fail=None, on_skip=None)
    assert len(found) > 40
    failed = {f"{row['check_name']}: {row['exception']}" for row in found if row["status"] in ("failed", "xfail")}
    assert failed == set()
    assert {row["check_name"] for row in found if row["status"] == "skipped"} <= SKIPPED


def test_it_works_in_a_pipeline_and_in_cross_validation(digits: Any) -> None:
    images, y = digits
    pipeline = make_pipeline(StandardScaler(), StreamClassifier())
    assert cross_val_score(pipeline, images.reshape(len(images), -1), y, cv=3).min() > 0.85


@pytest.mark.parametrize("metric", ["Accuracy", "CrossEntropy"])
def test_river_evaluates_it(digits: Any, metric: str) -> None:
    images, y = digits
    stream: Any = [
        ({f"p{i}": float(v) for i, v in enumerate(x.ravel())}, int(c)) for x, c in zip(images[:400], y, strict=False)
    ]
    found = river.evaluate.progressive_val_score(stream, StreamClassifier(), getattr(river.metrics, metric)()).get()
    assert found > 0.8 if metric == "Accuracy" else found < 0.8


def test_single_samples_are_gathered_and_flushed() -> None:
    model = StreamClassifier(batch=4)
    assert model.predict_one({"a": 1.0}) is None
    assert model.predict_proba_one({"a": 1.0}) == {}
    for i in range(7):
        model.learn_one({"a": float(i), "b": 2.0}, "low" if i < 4 else "high")
    assert model.model_.learned == 4
    model.flush()
    assert model.model_.class_counts() == {"low": 4, "high": 3}
    assert model.predict_one({"b": 2.0, "a": 0.5}) == "low"
    assert sum(model.predict_proba_one({"a": 6.0, "b": 2.0}).values()) == pytest.approx(1)


def loader(samples: Any, size: int) -> Any:
    return torch.utils.data.DataLoader(samples, size)


def forms(images: NDArray[np.uint8], folder: Path) -> dict[str, Any]:
    """The same images in every form."""
    paths = []
    for number, image in enumerate(images):
        Image.fromarray(image).save(folder / f"{number}.png")
        paths.append(folder / f"{number}.png")
    colour = np.repeat(images[..., None], 3, axis=3)
    alpha = np.concatenate([colour, np.full_like(colour[..., :1], 255)], axis=3)
    return {
        "grey": images,
        "hwc": colour,
        "chw": colour.transpose(0, 3, 1, 2),
        "alpha": alpha,
        "torch": torch.from_numpy(colour.transpose(0, 3, 1, 2).copy()),
        "floats": colour.astype(np.float32) / 255,
        "pictures": [Image.fromarray(image) for image in images],
        "paths": paths,
        "words": [str(path) for path in paths],
        "array of words": np.array([str(path) for path in paths]),
        "list of arrays": list(colour),
        "loader": loader([torch.from_numpy(c.transpose(2, 0, 1).copy()) for c in colour], 3),
    }


def test_every_form_of_the_same_images_gets_the_same_answer(digits: Any, tmp_path: Path) -> None:
    images, y = digits
    model = StreamClassifier(image_size=8, settings=SMALL).fit(images[:300], y[:300])
    expected = model.predict_proba(images[300:310])
    for name, form in forms(images[300:310], tmp_path).items():
        assert np.allclose(model.predict_proba(form), expected, atol=1e-5), name


def test_a_loader_is_learned_batch_by_batch(digits: Any) -> None:
    images, y = digits
    pairs = [(torch.from_numpy(np.repeat(x[None], 3, axis=0)), int(c)) for x, c in zip(images[:60], y, strict=False)]
    model = StreamClassifier(image_size=8, settings=SMALL).partial_fit(loader(pairs, 16))
    assert model.model_.learned == 60


@pytest.mark.parametrize(
    ("shape", "says"),
    [((5, 3, 9, 3), "channels can be told"), ((8, 9, 3), "may be one image"), ((5, 9, 9, 5), "1, 3 or 4 channels")],
)
def test_what_nobody_can_tell_is_refused(shape: tuple[int, ...], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        StreamClassifier(image_size=8).partial_fit(np.zeros(shape, np.uint8), ["a"] * shape[0])


def test_any_size_is_scaled_and_floats_beyond_one_are_refused() -> None:
    rng = np.random.default_rng(0)
    large = rng.integers(0, 256, (4, 50, 70, 3), dtype=np.uint8)
    model = StreamClassifier(image_size=8, settings=SMALL).partial_fit(large, ["a", "b", "a", "b"])
    assert model.model_.shape == (3, 8, 8)
    with pytest.raises(UsageError, match="floats from 0 to 1, got 0 to 2"):
        model.predict(np.linspace(0, 2, 4 * 8 * 8 * 3).reshape(4, 8, 8, 3))


def test_new_classes_come_at_any_time_and_classes_stay_sorted(digits: Any) -> None:
    images, y = digits
    x, names = images.reshape(len(images), -1), np.array([f"d{c}" for c in y])
    model = StreamClassifier()
    with pytest.raises(NotFittedError):
        model.predict(x)
    for c in (7, 3, 9):
        model.partial_fit(x[y == c], names[y == c])
    assert list(model.classes_) == ["d3", "d7", "d9"]
    model.partial_fit(x[y == 1], names[y == 1], classes=["d0"])
    assert list(model.classes_) == ["d0", "d1", "d3", "d7", "d9"]
    p = model.predict_proba(x[:20])
    assert p.shape == (20, 5)
    assert (p[:, 0] == 0).all(), "announced, never seen"


def test_words_and_numbers_do_not_mix(digits: Any) -> None:
    model = StreamClassifier().partial_fit(np.eye(4), ["a", "b", "a", "b"])
    with pytest.raises(UsageError, match="labels of one kind"):
        model.partial_fit(np.eye(4), [1, 2, 1, 2])


def test_an_improbable_answer_is_unknown(digits: Any) -> None:
    images, y = digits
    x = images.reshape(len(images), -1)
    words = StreamClassifier(reject_below=0.95).fit(x[:500], [f"d{c}" for c in y[:500]])
    numbers = StreamClassifier(reject_below=0.95).fit(x[:500], y[:500])
    p = numbers.predict_proba(x[500:])
    unsure = p.max(axis=1) < 0.95
    assert 0 < unsure.sum() < len(unsure)
    assert ((numbers.predict(x[500:]) == -1) == unsure).all()
    assert ((words.predict(x[500:]) == "unknown") == unsure).all()
    assert words.predict_one(x[500:][unsure][0]) == "unknown"
    with pytest.raises(UsageError, match=r"Give unknown="):
        StreamClassifier(reject_below=0.5).fit(x[:50], y[:50] - 1).predict(x)


def test_probabilities_are_calibrated_by_what_was_predicted_before_learning(digits: Any) -> None:
    images, y = digits
    x = images.reshape(len(images), -1)
    model = StreamClassifier()
    model.partial_fit(x[:64], y[:64])
    assert not model.calibrated_
    for start in range(64, 1200, 64):
        model.partial_fit(x[start : start + 64], y[start : start + 64])
    assert model.calibrated_
    p = model.predict_proba(x[1200:])
    right = p.argmax(axis=1) == y[1200:]
    raw = torch.softmax(torch.from_numpy(model.decision_function(x[1200:])), 1).numpy()
    rows = np.arange(len(p))
    assert abs(p.max(axis=1).mean() - right.mean()) < abs(raw.max(axis=1).mean() - right.mean())
    assert -np.log(p[rows, y[1200:]]).mean() < -np.log(raw[rows, y[1200:]] + 1e-12).mean()


def test_memory_and_learning_rate_change_on_a_living_learner(digits: Any) -> None:
    images, y = digits
    x = images.reshape(len(images), -1)
    model = StreamClassifier("er", memory=50).partial_fit(x[:100], y[:100])
    assert model.model_.memory == (50, 50)
    model.set_params(memory=80, lr=0.01).partial_fit(x[100:500], y[100:500])
    held, room = model.model_.memory
    assert 50 < held <= room == 80
    assert model.model_.learner.optimizers()[0][1].param_groups[0]["lr"] == 0.01
    model.set_params(memory=20).partial_fit(x[500:520], y[500:520])
    assert model.model_.memory == (20, 20)


def test_it_is_pickled_saved_and_loaded(digits: Any, tmp_path: Path) -> None:
    images, y = digits
    model = StreamClassifier("er-ace", image_size=8, net="small-cnn", memory=30).fit(images[:80], y[:80])
    expected = model.predict_proba(images[80:90])
    assert np.array_equal(pickle.loads(pickle.dumps(model)).predict_proba(images[80:90]), expected)
    model.save(tmp_path / "m.onepass")
    loaded = StreamClassifier.load(tmp_path / "m.onepass", reject_below=0.3)
    assert np.array_equal(loaded.predict_proba(images[80:90]), expected)
    assert loaded.get_params()["method"] == "er-ace"
    for one in (model, loaded):
        one.partial_fit(images[80:120], y[80:120])
    assert np.array_equal(loaded.decision_function(images[:9]), model.decision_function(images[:9])), "it goes on alike"


def test_seven_images_beside_a_hundred_and_forty_six_are_found_again(digits: Any) -> None:
    """Every class counts alike in the default method, however few of it there were."""
    images, y = digits
    many, few = images[y == 1][:146], images[y == 7]
    x = np.concatenate([many, few[:7]])
    model = StreamClassifier(image_size=8, settings=SMALL).fit(x, ["one"] * 146 + ["seven"] * 7)
    assert (model.predict(few[7:]) == "seven").mean() > 0.6
    assert (model.predict(images[y == 1][146:]) == "one").mean() > 0.6


@pytest.mark.parametrize(
    "given",
    [
        np.zeros((8, 8), np.uint8),
        np.zeros((1, 1, 1, 8, 8), np.uint8),
        np.zeros((0, 8, 8), np.uint8),
        np.zeros((2, 0, 8), np.uint8),
        torch.zeros(2, 1, 8, 8).to_sparse(),
        None,
        [Image.new("F", (8, 8))],
        [Image.new("RGB", (0, 8))],
    ],
    ids=lambda given: str(getattr(given, "shape", given))[:20],
)
def test_what_is_no_image_is_refused_by_us(given: Any) -> None:
    model = StreamClassifier(image_size=8, channels=1, settings=SMALL)
    model.partial_fit(np.eye(8, dtype=np.uint8).repeat(8).reshape(8, 8, 8), [*"abababab"])
    with pytest.raises(UsageError, match="Expected"):
        model.predict(given)


@pytest.mark.parametrize("batch", [0, -1, 1.5, "4"])
def test_a_batch_that_would_learn_nothing_is_refused(batch: Any) -> None:
    with pytest.raises(UsageError, match="Expected batch"):
        StreamClassifier(batch=batch).partial_fit(np.eye(3), [0, 1, 2])


def test_a_bad_sample_of_learn_one_is_refused_alone() -> None:
    model = StreamClassifier()
    model.learn_one({"a": 1.0, "b": 2.0}, 0)
    for x, y in (({"a": "x"}, 1), ({"a": float("nan")}, 1), ({"a": 1.0}, None), ({"a": 1.0}, "word"), ([1.0] * 3, 0)):
        with pytest.raises(ValueError, match=r".+"):
            model.learn_one(x, y)
    model.learn_one({"b": 3.0}, 1)
    model.flush()
    assert model.model_.class_counts() == {0: 1, 1: 1}


@pytest.mark.parametrize(("value", "shown"), [(-1e20, r"-1e\+20"), (1e300, r"1e\+300")])
def test_values_whose_squares_leave_single_precision_are_refused(value: float, shown: str) -> None:
    model = StreamClassifier()
    with pytest.raises(UsageError, match=rf"Expected numbers from -1e\+15 to 1e\+15, got {shown}\. Replace or"):
        model.fit(np.where(np.eye(4) > 0, value, 1.0), [0, 1, 0, 1])
    model.fit(np.eye(4) * 1e15, [0, 1, 0, 1])
    assert np.isfinite(model.predict_proba(np.eye(4) * 1e15)).all()


def test_labels_and_ids_beside_a_loader_are_refused() -> None:
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.eye(4), torch.arange(4)))
    with pytest.raises(UsageError, match="labels or ids beside it"):
        StreamClassifier().partial_fit(loader, sample_ids=[*"abcd"])
    with pytest.raises(UsageError, match="pairs"):
        StreamClassifier().partial_fit(torch.utils.data.DataLoader(list(torch.eye(4))))  # type: ignore[arg-type]  # a list is one
    nothing: list[torch.Tensor] = []
    empty = torch.utils.data.DataLoader(nothing)  # type: ignore[arg-type,var-annotated]
    assert StreamClassifier().partial_fit(loader).predict_proba(empty).shape == (0, 4)


def test_without_a_score_there_is_no_answer() -> None:
    model = StreamClassifier().partial_fit(np.eye(2), ["a", "b"])
    model.forget(X=np.eye(2), y=["a", "b"])
    for ask in (lambda: model.predict(np.eye(2)), lambda: model.predict_one(np.eye(2)[0])):
        with pytest.raises(UsageError, match="without a score"):
            ask()


def test_columns_and_classes_are_of_one_moment_in_threads() -> None:
    """A class that comes between a snapshot and `classes_` must not move the others' probabilities."""
    model = StreamClassifier().partial_fit(np.eye(2), ["m", "z"], sample_ids=["1", "2"])
    wrong: list[object] = []
    ended = threading.Event()

    def ask() -> None:
        while not ended.is_set():
            try:
                if model.predict(np.eye(2)).tolist() != ["m", "z"]:
                    wrong.append("another class")
            except Exception as error:
                wrong.append(error)

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    for n in range(40):
        model.partial_fit(np.full((1, 2), 50.0 + n), [f"a{n}"])
    ended.set()
    for thread in threads:
        thread.join()
    assert wrong == []
