"""StreamClassifier: a Model by the names of scikit-learn and of river.

It inherits from scikit-learn's classes, so it needs that package (the extra `sklearn`); a Model does not.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from onepass.config import LearnerConfig, ReplayConfig
from onepass.errors import UsageError, extra
from onepass.learner.net import Factory
from onepass.live import corrections
from onepass.live.autosave import Autosave
from onepass.live.claim import claimed
from onepass.live.corrections import Forgotten
from onepass.live.labels import Label, Labels, plain_label
from onepass.live.model import Model
from onepass.live.samples import LARGEST_SIDE, from_features, holds_images, image_tensor, is_loader, vector_tensor
from onepass.live.snapshot import Snapshot, check_scored
from onepass.live.state import load_model, save_model
from onepass.methods.registry import canonical

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data
except ImportError as error:
    raise ImportError(
        f"Expected scikit-learn 1.6 or newer for StreamClassifier, got none. Do: {extra('sklearn')}."
    ) from error

GATHERED = 32  # samples of learn_one that are learned together
OF_THE_PROCESS = ("_turn", "_held", "autosave_")  # which no copy has: a file has one owner


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
        with self._alone():
            self.close()
            for name in ("model_", "classes_", "_waiting", "_first_names"):
                self.__dict__.pop(name, None)
            return self._learn(X, y, None, None)

    def partial_fit(
        self, X: Any, y: Any = None, classes: Any = None, sample_ids: Sequence[str] | None = None
    ) -> StreamClassifier:
        """Learn more, from where the file of `autosave` stands if there is one. `classes` may announce some; others may
        come at any time. What has a known id is not learned again."""
        with self._alone():
            self._own()
            self._resume()
            self.flush()
            return self._learn(X, y, classes, sample_ids)

    def close(self) -> None:
        """Save for the last time, and leave the file of `autosave` to others."""
        with self._alone():
            if (held := self.__dict__.pop("_held", None)) is not None:
                held.close()
            self.__dict__.pop("autosave_", None)

    def _alone(self) -> threading.RLock:
        """One call at a time: what a thread is told is of one moment."""
        found: threading.RLock = self.__dict__.setdefault("_turn", threading.RLock())
        return found

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        return {name: value for name, value in state.items() if name not in OF_THE_PROCESS}

    def _own(self) -> None:
        """Nobody else may write the file of `autosave` from now on."""
        if self.autosave is not None and "_held" not in self.__dict__:
            with ExitStack() as stack:
                stack.enter_context(claimed(Path(self.autosave)))
                self._held = stack.pop_all()
            weakref.finalize(self, self._held.close)  # when nobody has it any more, and at the end of the process

    def _resume(self) -> None:
        if hasattr(self, "model_") or self.autosave is None or not Path(self.autosave).exists():
            return
        self._own()
        model = load_model(self.autosave, self._named(), net=None if isinstance(self.net, str) else self.net)
        found = (model.learner.recipe or {})["method"]
        if self.method is not None and canonical(self.method) != canonical(found):
            raise UsageError(f"{self.autosave} is a model of {found}, not of {self.method}: name another file.")
        self.model_ = model
        if len(self.model_.shape) == 1:
            self.n_features_in_ = self.model_.shape[0]
        self._learned(held=True)

    def _named(self) -> list[str]:
        """Code that whoever made this classifier has named: its file may name it too."""
        return [name for name in (self.method, self.net, self.augment) if isinstance(name, str)]

    def _learn(self, X: Any, y: Any, classes: Any, sample_ids: Sequence[str] | None) -> StreamClassifier:
        self._own()
        if is_loader(X):
            if y is not None or sample_ids is not None:
                raise UsageError("Expected labels from the DataLoader, got labels or ids beside it. Give arrays.")
            for batch in X:
                if not isinstance(batch, list | tuple) or len(batch) != 2:
                    raise UsageError("Expected a DataLoader of pairs, samples and labels.")
                x, labels = batch
                self._learn(x, labels, classes, None)
            return self
        names = self._labels(y)
        samples = self._samples(X, names)
        if classes is not None:
            self.model_.declare(column_or_1d(classes).tolist())
        self.model_.learn(samples, names, sample_ids)
        self._learned()
        return self

    def predict(self, X: Any) -> NDArray[Any]:
        classes, p = self._answers(X)
        found: NDArray[Any] = classes[p.argmax(axis=1)]
        if self.reject_below is not None:
            answer = self.model_.labels.unknown(self.unknown)
            found = np.where(p.max(axis=1) < self.reject_below, np.array(answer), found)
        return found

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """A column for each of `classes_`; `calibrated_` says whether enough was seen to trust them."""
        return self._answers(X)[1]

    def _answers(self, X: Any) -> tuple[NDArray[Any], NDArray[np.float64]]:
        """Classes, and a column of probabilities for each."""
        snapshot, classes, parts_of_x = self._asked(X)
        parts = [_columns(snapshot, check_scored(snapshot.probabilities(x)), classes, 0.0) for x in parts_of_x]
        return classes, np.concatenate([np.zeros((0, len(classes))), *parts])

    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """Scores: of two classes the second's minus the first's, else a column for each of `classes_`."""
        lowest = float(np.finfo(np.float32).min)
        snapshot, classes, parts_of_x = self._asked(X)
        parts = [_columns(snapshot, snapshot.scores(x).double().clamp(min=lowest), classes, lowest) for x in parts_of_x]
        scores = np.concatenate([np.zeros((0, len(classes))), *parts])
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
        with self._alone():
            self._own()
            self._resume()
            [label] = self._labels([y])
            row = self._one(x)  # now, so that a bad one is refused before it waits among good ones
            waiting = self.__dict__.setdefault("_waiting", [])
            known = self.model_.labels.names[:1] if hasattr(self, "model_") else []
            Labels(known).check([plain_label(label), *(other for _, other in waiting[:1])])
            if waiting and waiting[0][0].shape != row.shape:
                raise UsageError(f"Expected a sample of shape {tuple(waiting[0][0].shape)}, got {tuple(row.shape)}.")
            waiting.append((row, label))
            if len(waiting) >= (self.batch or GATHERED):
                self.flush()

    def learn_many(self, X: Any, y: Any) -> None:
        self.partial_fit(X, y)

    def flush(self) -> None:
        """Learn what waits."""
        with self._alone():
            waiting = self.__dict__.pop("_waiting", [])
            if waiting:
                self.partial_fit(torch.stack([row for row, _ in waiting]), [label for _, label in waiting])

    def _one(self, x: Any) -> Tensor:
        """A sample as it will be learned, or asked for."""
        rows = self._features([x]) if isinstance(x, Mapping) else [x]
        if hasattr(self, "model_"):
            return self._tensor(rows)[0]
        if holds_images(rows):
            return image_tensor(rows, self._image_shape())[0]
        return vector_tensor(np.asarray(rows, dtype=np.float64))[0]

    def predict_proba_one(self, x: Any) -> dict[Label, float]:
        """By what is learned; samples that wait are not."""
        with self._alone():
            self._resume()
            if not hasattr(self, "model_"):
                return {}
            snapshot, row = self.model_.snapshot(), self._one(x)
        [p] = check_scored(snapshot.probabilities(row[None])).tolist()
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
        with self._alone():
            self._ready()
            x = None if X is None else self._tensor(X)
            found = corrections.forget(self.model_, ids, x, None if y is None else self._labels(y), rebuild=rebuild)
            if hasattr(self, "autosave_"):
                self.autosave_.erase()
            return found

    def relabel(self, ids: Sequence[str], y: Any, X: Any = None) -> int:
        """Correct labels; see `onepass.live.corrections.relabel`."""
        with self._alone():
            self._ready()
            corrected = corrections.relabel(self.model_, ids, self._labels(y), None if X is None else self._tensor(X))
            self._learned()
            return corrected

    def save(self, path: str | Path) -> None:
        """Everything, in one file."""
        with self._alone():
            self._ready()
            save_model(self.model_, path)

    def _ready(self) -> None:
        """With all that is in the file and all that waits."""
        self._resume()
        self.flush()
        check_is_fitted(self, "model_")

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
                x = image_tensor(X, self._image_shape())
            _same_length(x, labels)
            self.model_ = self._create(tuple(x.shape[1:]))
        else:
            x = self._tensor(X)
        _same_length(x, labels)
        return x

    def _image_shape(self) -> tuple[int, int, int]:
        side, channels = self.image_size, self.channels
        if not (isinstance(side, int) and isinstance(channels, int) and 0 < side <= LARGEST_SIDE and channels > 0):
            raise UsageError(
                f"Expected image_size from 1 to {LARGEST_SIDE} and channels, got {side!r} and {channels!r}."
            )
        return channels, side, side

    def _create(self, shape: tuple[int, ...]) -> Model:
        if self.batch is not None and (not isinstance(self.batch, int | np.integer) or self.batch < 1):
            raise UsageError(f"Expected batch to be a whole number from 1 on, got {self.batch!r}.")
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
            batch=int(self.batch or 0),
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
        if isinstance(y, list | tuple) and len({isinstance(label, str) for label in y}) > 1:
            raise UsageError("Expected labels of one kind, got words and numbers. Give all as words.")
        labels = column_or_1d(y, warn=True)
        if labels.dtype.kind == "f" and not np.isfinite(labels).all():
            raise UsageError("Input y contains infinity or NaN: expected a label for each sample.")
        check_classification_targets(labels)
        found: list[Any] = labels.tolist()
        return found

    def _learned(self, held: bool = False) -> None:
        if "_first_names" in self.__dict__:
            self.model_.cursor.tree["features"] = [str(name) for name in self.__dict__.pop("_first_names")]
        names = self.model_.labels.names
        if not hasattr(self, "classes_") or len(self.classes_) != len(names):
            self.classes_ = np.array(sorted(names))
        if self.autosave is not None and not hasattr(self, "autosave_"):
            self._own()
            self.autosave_ = Autosave(self.model_, self.autosave, held=held)
            self._held.callback(self.autosave_.close)

    def _asked(self, X: Any) -> tuple[Snapshot, NDArray[Any], Iterator[Tensor]]:
        """What answers, the classes of that moment, and samples, some at a time."""
        with self._alone():
            self._ready()
            snapshot, classes = self.model_.snapshot(), self.classes_
        batches = (batch[0] if isinstance(batch, list | tuple) else batch for batch in X) if is_loader(X) else [X]
        return snapshot, classes, map(self._tensor, batches)


def _columns(snapshot: Snapshot, values: Tensor, classes: NDArray[Any], absent: float) -> NDArray[np.float64]:
    """In the order of these classes; those that were only announced have no score."""
    places = np.searchsorted(classes, np.array(snapshot.names))
    columns = np.full((len(values), len(classes)), absent)
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
