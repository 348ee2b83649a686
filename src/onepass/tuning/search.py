"""Settings chosen on a tenth of the training images: Optuna proposes, stored runs judge, no test image is looked at."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from onepass.bench.metrics import average_accuracies, mean, summarise
from onepass.errors import Diverged, RunError, UsageError
from onepass.seeds import child_seed
from onepass.tuning.space import Range, Space

if TYPE_CHECKING:
    import optuna

    from onepass.bench.run_config import RunConfig

Record = dict[str, Any]  # of a trial, as in tune.json


@dataclass(frozen=True)
class Tuning:
    """A search: all that decides its trials. The first is `base` as it is; each is the mean of `runs` seeds.

    Once `startup` trials are finished, others are stopped as soon as they fall behind their median.
    """

    base: RunConfig
    space: Space
    runs: int = 1
    startup: int = 5

    @property
    def seeds(self) -> list[int]:
        return [self.base.seed + number for number in range(self.runs)]

    @property
    def defaults(self) -> dict[str, Any]:
        return {name: getattr(self.base.settings, name) for name in self.space}

    @property
    def name(self) -> str:
        """Another stream, space or seed is another search."""
        key = hashlib.sha256(json.dumps(self.facts(), sort_keys=True).encode()).hexdigest()[:10]
        return f"tune-{self.base.stream_label}-{self.base.method.replace(':', '.')}-{key}"

    def facts(self) -> dict[str, Any]:
        parts = {name: list(part) if isinstance(part, tuple) else asdict(part) for name, part in self.space.items()}
        config = self.config({}, self.base.seed).to_json()
        return {"config": config, "search": parts, "seeds": self.seeds, "startup": self.startup}

    def config(self, settings: dict[str, Any], seed: int) -> RunConfig:
        return replace(self.base, seed=seed, validate=True, settings=replace(self.base.learner_config, **settings))

    def document(self, trials: list[Record]) -> dict[str, Any]:
        """Every trial, and what the best gained over the defaults on equal seeds. Accuracies are fractions."""
        finished = [trial for trial in trials if trial["state"] == "complete"]
        best = max(finished, key=lambda trial: trial["accuracy"], default=None)
        default = next((trial for trial in finished if trial["trial"] == 0), None)
        gain = None
        if best and default:
            pairs = zip(best["accuracies"], default["accuracies"], strict=True)
            gain = _figures([ours - theirs for ours, theirs in pairs])
        shown = {
            name: trial and {**trial, "summary": _figures(trial["accuracies"])}
            for name, trial in (("default", default), ("best", best))
        }
        measured = {"measured_on": "a tenth of the training images", **shown, "gain": gain, "trials": trials}
        return {"method": self.base.method, "stream": self.base.stream, **self.facts(), **measured}


def _figures(values: Sequence[float]) -> dict[str, Any]:
    return {**vars(summarise(values)), "values": list(values)}


class Pruned(Exception):
    """A trial is below the median of the finished ones."""


class Pruner:
    """Hears a trial's accuracy after each task, and stops it when it falls behind.

    Optuna's own median pruner takes a trial's best value so far, which here is nearly always that of its first, easiest
    task. Compared is therefore the value after the same task; never after a first one, when nothing can be forgotten.
    """

    def __init__(self, study: optuna.Study, trial: optuna.Trial, tuning: Tuning, n_tasks: int) -> None:
        self.study, self.trial, self.tuning, self.n_tasks = study, trial, tuning, n_tasks
        self.curves: list[list[float]] = []  # of each run so far, the accuracy after each task

    def report(self, curve: Sequence[float]) -> None:
        """What is known by now of the last run's curve."""
        run, n_tasks = len(self.curves), self.n_tasks
        for task in range(len(self.curves[-1]), len(curve)):
            self.curves[-1].append(curve[task])
            value, step = mean([known[task] for known in self.curves]), (run - 1) * n_tasks + task
            self.trial.report(value, step)
            last = run == self.tuning.runs and task == n_tasks - 1
            if task > 0 and not last and self._behind(value, step):
                raise Pruned

    def _behind(self, value: float, step: int) -> bool:
        from optuna.trial import TrialState

        finished = self.study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        if len(finished) < self.tuning.startup:
            return False
        return value < median(trial.intermediate_values[step] for trial in finished)


class Search:
    """The trials of a search, in its database; a trial's runs are stored and continued like any others.

    `step` is called with a trial's number, its steps done and in all; `finished` with each trial's record.
    `options` are those of `runner.run`.
    """

    def __init__(self, tuning: Tuning, out: Path, **options: Any) -> None:
        import torch

        self.tuning, self.out, self.options = tuning, out, options
        self.place, self.threads = out / tuning.name, torch.get_num_threads()
        self.step: Callable[[int, int, int], None] = lambda trial, done, total: None
        self.finished: Callable[[Record], None] = lambda trial: None

    def run(self, n: int) -> dict[str, Any]:
        """Trials until there are n in all; what is in `tune.json` at the end."""
        import optuna
        from sqlalchemy.exc import SQLAlchemyError

        from onepass.bench import store

        optuna.logging.set_verbosity(optuna.logging.CRITICAL)
        path = self.place / "tune.db"
        with store.claim(self.place, waiting=lambda: self.step(0, 0, 1)):
            try:
                study = optuna.create_study(
                    storage=f"sqlite:///{path}", study_name="tune", direction="maximize", load_if_exists=True
                )
                return self._run(study, n)
            except (SQLAlchemyError, optuna.exceptions.StorageInternalError) as error:
                hint = "if it is damaged, remove it: the same command makes it again from the stored runs"
                raise RunError(f"cannot use {path}: {str(error).splitlines()[0]}; {hint}") from error

    def _run(self, study: optuna.Study, n: int) -> dict[str, Any]:
        from optuna.trial import TrialState

        from onepass.files import write_text

        for lost in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            study.tell(lost.number, state=TrialState.FAIL)  # its process was killed: it is proposed again
        reported = 0
        while True:
            counted = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED))
            trials = [{"trial": number, **entry.user_attrs["record"]} for number, entry in enumerate(counted)]
            document = self.tuning.document(trials)
            write_text(self.place / "tune.json", json.dumps(document, indent=1) + "\n")
            for trial in trials[reported:]:
                self.finished(trial)
            reported = len(trials)
            left = self._left(trials)
            if reported >= n or left == []:
                return document
            self._try(study, reported, left)

    def _left(self, trials: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]] | None:
        """Where nothing but choices is searched, those that were not tried yet; numbers cannot be listed."""
        space = self.tuning.space
        if not all(isinstance(part, tuple) for part in space.values()):
            return None
        whole = [dict(zip(space, values, strict=True)) for values in itertools.product(*space.values())]  # type: ignore[arg-type]
        tried = [trial["settings"] for trial in trials]
        return [settings for settings in whole if settings not in tried]

    def _propose(
        self, study: optuna.Study, number: int, left: list[dict[str, Any]] | None
    ) -> tuple[optuna.Trial, dict[str, Any]]:
        """Decided by the seed, the number and the trials before it alone: the same after any interruption."""
        import optuna

        seed = child_seed(self.tuning.base.seed, "tune", number) % 2**32
        study.sampler = optuna.samplers.TPESampler(seed=seed)
        space, defaults = self.tuning.space, self.tuning.defaults
        if number > 0:
            if left and not study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.WAITING,)):
                study.enqueue_trial(left[seed % len(left)])  # no choice is tried twice
            trial = study.ask({name: _distribution(part) for name, part in space.items()})
            return trial, {name: trial.params[name] for name in space}
        inside = {name: part for name, part in space.items() if defaults[name] in part}
        if not study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.WAITING,)):
            study.enqueue_trial({name: defaults[name] for name in inside})
        return study.ask({name: _distribution(part) for name, part in inside.items()}), defaults

    def _try(self, study: optuna.Study, number: int, left: list[dict[str, Any]] | None) -> None:
        """One trial, from its proposal to its record."""
        from optuna.trial import TrialState

        trial, settings = self._propose(study, number, left)
        watch, state, note = Pruner(study, trial, self.tuning, self._n_tasks()), "complete", ""
        accuracies: list[float] = []
        try:
            for seed in self.tuning.seeds:
                accuracies.append(self._measure(number, self.tuning.config(settings, seed), watch))
        except Pruned:
            state, note = "pruned", f"behind after task {len(watch.curves[-1])} of run {len(watch.curves)}"
        except Diverged as error:
            state, note = "diverged", str(error)
        except UsageError as error:  # these settings do not go together, or not with this network
            if number == 0:
                raise
            state, note = "refused", str(error)
        accuracy = mean(accuracies) if state == "complete" else None
        record = {"state": state, "note": note, "settings": settings, "seeds": self.tuning.seeds, "accuracy": accuracy}
        trial.set_user_attr("record", {**record, "accuracies": accuracies, "after_tasks": watch.curves})
        study.tell(trial, accuracy, state=None if state == "complete" else TrialState.PRUNED)

    def _n_tasks(self) -> int:
        """As asked for, or as many as there are domains."""
        from onepass.data.catalog import Datasets

        base = self.tuning.base
        datasets = self.options.get("datasets") or Datasets(self.options.get("data_dir"))
        return base.tasks or len(datasets.load(base.stream, base.image_size).domains)

    def _measure(self, number: int, config: RunConfig, watch: Pruner) -> float:
        """One run of a trial: its accuracy on the images held back."""
        import torch

        from onepass.bench.runner import CHECKPOINT, run
        from onepass.bench.store import folder

        place, before = folder(self.out, config), len(watch.curves)
        watch.curves.append([])

        def progress(done: int, total: int) -> None:
            self.step(number, before * total + done, self.tuning.runs * total)
            watch.report(_curve(place / "evaluations.jsonl", done))

        torch.set_num_threads(self.threads)  # a run that was continued may have changed it
        try:
            result = run(config, self.out, progress=progress, **self.options)
            watch.report(average_accuracies(result.accuracy_matrix))
        except Pruned:
            (place / CHECKPOINT).unlink(missing_ok=True)
            raise
        return result.final_accuracy


def _distribution(part: Range | tuple[Any, ...]) -> optuna.distributions.BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(part, tuple):
        return CategoricalDistribution(part)
    if isinstance(part.low, int) and isinstance(part.high, int):
        return IntDistribution(part.low, part.high, log=part.log)
    return FloatDistribution(part.low, part.high, log=part.log)


def _curve(path: Path, done: int) -> list[float]:
    """The accuracies after tasks that a run has written by now; not what a killed one wrote beyond its checkpoint."""
    try:
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except FileNotFoundError:
        return []
    after = [line for line in lines if "after_task" in line and line["step"] <= done]
    return [mean(line["accuracy"]) for line in after]
