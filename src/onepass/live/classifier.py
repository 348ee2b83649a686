"""StreamClassifier: a Model by the names of scikit-learn and of river.

It inherits from scikit-learn's classes, so it needs that package (the extra `sklearn`); a Model does not.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from onepass.config import LearnerConfig, ReplayConfig
from onepass.errors import UsageError
from onepass.learner.net import Factory
from onepass.live import corrections
from onepass.live.autosave import Autosave
from onepass.live.corrections import Forgotten
from onepass.live.labels import Label
from onepass.live.model import Model
from onepass.live.samples import from_features, holds_images, image_tensor, is_loader, vector_tensor
from onepass.live.snapshot import Snapshot
from onepass.live.state import load_model, save_model

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data
except ImportError as error:
    raise ImportError(
        "Expected scikit-learn 1.6 or newer for StreamClassifier, got none. Do: pip install 'onepass[sklearn]'"
    ) from error

GATHERED = 32  # samples of learn_one that are learned together


class StreamClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """A classifier that learns from a stream, once, with new classes at any time.

    X may be images, as arrays (n, height, width[, channels]) or (n, channels, height, width), torch tensors, pictures,
    paths, a DataLoader; or vectors (n, values). Images of any size are scaled to `image_size`. Labels are words or
    whole numbers.

    method: a name of `onepass methods` or MODULE:CLASS; default: one of statistics, for images and for vectors
    net: as in `onepass.build`; settings: further settings of the method; memory, lr: where the method has them
    batch: samples of a step; augment: how images are varied while they are learned
    by_content: whether samples without an id are known by their content, and learned once; default: images
    reject_below: the least probability of an answer; less is answered by `unknown` (default: "unknown", or -1)
    autosave: a file that is written every minute, on SIGTERM and at the end of the process, and gone on from
    """

    _supervised = True  # river asks
    _multiclass = True
    classes_: NDArray[Any]
    model_: Model

    def __init__(
        self,
        method: str | None = None,
        net: str | Factory | nn.Module | None = None,
        *,
        memory: int | None = 1000,
        lr: float | None = None,
        settings: Mapping[str, Any] | None = None,
        image_size: int = 32,
        channels: int = 3,
        augment: str | None = None,
        batch: int | None = None,
        by_content: bool | None = None,
        reject_below: float | None = None,
        unknown: Label | None = None,
        autosave: str | Path | None = None,
        random_state: Any = 0,
    ) -> None:
        self.method = method
        self.net = net
        self.memory = memory
        self.lr = lr
        self.settings = settings
        self.image_size = image_size
        self.channels = channels
        self.augment = augment
        self.batch = batch
        self.by_content = by_content
        self.reject_below = reject_below
        self.unknown = unknown
        self.autosave = autosave
        self.random_state = random_state
        _tell_river(type(self))

    # scikit-learn.

    def fit(self, X: Any, y: Any = None) -> StreamClassifier:
        """Learn from the beginning."""
        if hasattr(self, "autosave_"):
            self.autosave_.close()
            del self.autosave_
        for name in ("model_", "classes_", "_waiting"):
            self.__dict__.pop(name, None)
        return self._learn(X, y, None, None)

    def partial_fit(
        self, X: Any, y: Any = None, classes: Any = None, sample_ids: Sequence[str] | None = None
    ) -> StreamClassifier:
        """Learn more, from where the file of `autosave` stands if there is one. `classes` may announce some; others may
        come at any time. What has a known id is not learned again."""
        self._resume()
        self.flush()
        return self._learn(X, y, classes, sample_ids)

    def _resume(self) -> None:
        if hasattr(self, "model_") or self.autosave is None or not Path(self.autosave).exists():
            return
        self.model_ = load_model(self.autosave)
        if len(self.model_.shape) == 1:
            self.n_features_in_ = self.model_.shape[0]
        self._learned()

    def _learn(self, X: Any, y: Any, classes: Any, sample_ids: Sequence[str] | None) -> StreamClassifier:
        if is_loader(X):
            for x, labels in X:
                self._learn(x, labels, classes, None)
            return self
        labels = self._labels(y)
        x = self._samples(X, labels)
        if classes is not None:
            self.model_.declare(column_or_1d(classes).tolist())
        self.model_.learn(x, labels, None if sample_ids is None else list(sample_ids))
        self._learned()
        return self

    def predict(self, X: Any) -> NDArray[Any]:
        p = self.predict_proba(X)
        found: NDArray[Any] = self.classes_[p.argmax(axis=1)]
        if self.reject_below is not None:
            answer = self.model_.labels.unknown(self.unknown)
            found = np.where(p.max(axis=1) < self.reject_below, np.array(answer), found)
        return found

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """A column for each of `classes_`; `calibrated_` says whether enough was seen to trust them."""
        found = [(snapshot, snapshot.probabilities(x)) for snapshot, x in self._asked(X)]
        return np.concatenate([self._columns(snapshot, p, 0.0) for snapshot, p in found])

    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """Scores: of two classes the second's minus the first's, else a column for each of `classes_`."""
        lowest = float(np.finfo(np.float32).min)
        parts = [self._columns(s, s.scores(x).double().clamp(min=lowest), lowest) for s, x in self._asked(X)]
        scores = np.concatenate(parts)
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores

    @property
    def calibrated_(self) -> bool:
        """Whether enough was predicted before it was learned to tell how far probabilities can be trusted."""
        check_is_fitted(self, "model_")
        return self.model_.prequential.calibrated

    def set_params(self, **params: Any) -> StreamClassifier:
        """On a learner that has learned, `memory` and `lr` change at once; the rest counts from the next `fit` on."""
        super().set_params(**params)
        if hasattr(self, "model_"):
            config = self.model_.learner.config
            if params.get("memory") is not None and isinstance(config, ReplayConfig):
                self.model_.resize_memory(params["memory"])
            if params.get("lr") is not None and isinstance(config, LearnerConfig):
                self.model_.set_learning_rate(params["lr"])
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "model_")

    # river.

    def learn_one(self, x: Any, y: Any) -> None:
        """Learn a sample: when `batch` of them have come (default: 32), or at `flush()`."""
        self.__dict__.setdefault("_waiting", []).append((x, y))
        if len(self._waiting) >= (self.batch or GATHERED):
            self.flush()

    def learn_many(self, X: Any, y: Any) -> None:
        self.partial_fit(X, y)

    def flush(self) -> None:
        """Learn what waits."""
        waiting = self.__dict__.pop("_waiting", [])
        if not waiting:
            return
        samples: Any = [x for x, _ in waiting]
        labels = [y for _, y in waiting]
        if isinstance(samples[0], Mapping):
            samples = self._features(samples)
        self.partial_fit(samples, labels)

    def predict_proba_one(self, x: Any) -> dict[Label, float]:
        """By what is learned; samples that wait are not."""
        self._resume()
        if not hasattr(self, "model_"):
            return {}
        snapshot = self.model_.snapshot()
        row = self._features([x]) if isinstance(x, Mapping) else [x]
        [p] = snapshot.probabilities(self._tensor(row)).tolist()
        return dict(zip(snapshot.names, p, strict=True))

    def predict_one(self, x: Any) -> Label | None:
        p = self.predict_proba_one(x)
        if not p:
            return None
        best = max(p, key=p.__getitem__)
        rejected = self.reject_below is not None and p[best] < self.reject_below
        return self.model_.labels.unknown(self.unknown) if rejected else best

    # What neither has.

    def forget(
        self, ids: Sequence[str] | None = None, X: Any = None, y: Any = None, *, rebuild: bool = False
    ) -> Forgotten:
        """Forget samples by id, by giving them again, or both; see `onepass.live.corrections.forget`."""
        self.flush()
        check_is_fitted(self, "model_")
        x = None if X is None else self._tensor(X)
        found = corrections.forget(self.model_, ids, x, None if y is None else self._labels(y), rebuild=rebuild)
        if hasattr(self, "autosave_"):
            self.autosave_.erase()
        return found

    def relabel(self, ids: Sequence[str], y: Any, X: Any = None) -> int:
        """Correct labels; see `onepass.live.corrections.relabel`."""
        self.flush()
        check_is_fitted(self, "model_")
        corrected = corrections.relabel(self.model_, ids, self._labels(y), None if X is None else self._tensor(X))
        self._learned()
        return corrected

    def save(self, path: str | Path) -> None:
        """Everything, in one file."""
        self.flush()
        check_is_fitted(self, "model_")
        save_model(self.model_, path)

    @classmethod
    def load(cls, path: str | Path, allow: Collection[str] = (), **params: Any) -> StreamClassifier:
        """The classifier of a file. `params` are those of the constructor that count now, such as `reject_below`."""
        net = params.get("net")
        model = load_model(path, allow, net=net)
        recipe, config, shape = model.learner.recipe or {}, model.learner.config, model.shape
        known: dict[str, Any] = {
            "method": recipe["method"],
            "net": recipe["net"] or None,
            "random_state": recipe["seed"],
            "settings": config.to_json(),
            "memory": config.memory if isinstance(config, ReplayConfig) else None,
            "batch": model.batch,
            "by_content": model.by_content,
            "augment": model.learner.problem.augment,
            **({"channels": shape[0], "image_size": shape[1]} if len(shape) == 3 else {}),
        }
        found = cls(**{**known, **params})
        found.model_ = model
        if len(shape) == 1:
            found.n_features_in_ = shape[0]
        found._learned()
        return found

    # How samples and labels come in, and answers go out.

    def _samples(self, X: Any, labels: Sequence[Any]) -> Tensor:
        """Samples to learn. The first ones decide what kind they are."""
        if not hasattr(self, "model_"):
            if not holds_images(X):
                x = vector_tensor(validate_data(self, X, dtype="numeric", ensure_2d=True))
            else:
                shape = (self.channels, self.image_size, self.image_size)
                x = image_tensor(X, shape)
            _same_length(x, labels)
            self.model_ = self._create(tuple(x.shape[1:]))
        else:
            x = self._tensor(X)
        _same_length(x, labels)
        return x

    def _create(self, shape: tuple[int, ...]) -> Model:
        seed = self.random_state
        if not isinstance(seed, int | np.integer):
            from sklearn.utils import check_random_state

            seed = check_random_state(seed).randint(2**31 - 1)
        return Model.create(
            shape,
            method=self.method or "",
            net=self.net or "",
            settings=self.settings,
            memory=self.memory,
            lr=self.lr,
            augment=self.augment or "",
            seed=int(seed),
            batch=self.batch or 0,
            by_content=self.by_content,
        )

    def _tensor(self, X: Any) -> Tensor:
        if len(self.model_.shape) == 3:
            return image_tensor(X, self.model_.shape)
        if isinstance(X, Tensor):
            X = X.detach().cpu().numpy()
        return vector_tensor(validate_data(self, X, dtype="numeric", reset=False), self.model_.shape[0])

    def _features(self, rows: Sequence[Mapping[Any, float]]) -> NDArray[np.float64]:
        """River's dicts as rows, by the names of the first that came: these stay, in the file too."""
        names = self._names
        if names is None:
            names = self.__dict__.setdefault("_first_names", list(rows[0]))
        return from_features(rows, names)

    @property
    def _names(self) -> list[str] | None:
        if hasattr(self, "model_"):
            found: list[str] | None = self.model_.cursor.tree.get("features")
            return found
        return self.__dict__.get("_first_names")

    def _labels(self, y: Any) -> list[Any]:
        if y is None:
            raise UsageError(f"This {type(self).__name__} estimator requires y to be passed, but the target y is None.")
        if isinstance(y, Tensor):
            y = y.cpu().numpy()
        labels = column_or_1d(y, warn=True)
        if labels.dtype.kind == "f" and not np.isfinite(labels).all():
            raise UsageError("Input y contains infinity or NaN: expected a label for each sample.")
        check_classification_targets(labels)
        found: list[Any] = labels.tolist()
        return found

    def _learned(self) -> None:
        if "_first_names" in self.__dict__:
            self.model_.cursor.tree["features"] = [str(name) for name in self.__dict__.pop("_first_names")]
        names = self.model_.labels.names
        if not hasattr(self, "classes_") or len(self.classes_) != len(names):
            self.classes_ = np.array(sorted(names))
        if self.autosave is not None and not hasattr(self, "autosave_"):
            self.autosave_ = Autosave(self.model_, self.autosave)

    def _asked(self, X: Any) -> Iterator[tuple[Snapshot, Tensor]]:
        self._resume()
        self.flush()
        check_is_fitted(self, "model_")
        snapshot = self.model_.snapshot()
        if not is_loader(X):
            yield snapshot, self._tensor(X)
            return
        for batch in X:
            yield snapshot, self._tensor(batch[0] if isinstance(batch, list | tuple) else batch)

    def _columns(self, snapshot: Snapshot, values: Tensor, absent: float) -> NDArray[np.float64]:
        """In the order of `classes_`; classes that were only announced have no score."""
        places = np.searchsorted(self.classes_, np.array(snapshot.names))
        columns = np.full((len(values), len(self.classes_)), absent)
        columns[:, places] = values.cpu().numpy()
        return columns


def _same_length(x: Tensor, labels: Sequence[Any]) -> None:
    if len(x) != len(labels):
        raise UsageError(f"Expected a label for each of {len(x)} samples, got {len(labels)}.")


def _tell_river(cls: type) -> None:
    """River looks at classes: whoever has imported it finds this one among its classifiers."""
    base = getattr(sys.modules.get("river"), "base", None)
    if base is not None and not issubclass(cls, base.Classifier):
        base.Classifier.register(cls)
