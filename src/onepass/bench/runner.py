"""Runs from beginning to end: found again, continued, trained, stored."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from onepass.bench import store
from onepass.bench.logs import Callback, CallbackLog, Log, check_log, open_log
from onepass.bench.minutes import Minutes
from onepass.bench.result import Result
from onepass.bench.run import LOSS_EVERY, Run, prepare
from onepass.bench.run_config import RunConfig
from onepass.bench.stream import make_tasks, problem_of
from onepass.data.catalog import Datasets, is_path
from onepass.errors import BadCheckpoint, Diverged, RunError, UsageError
from onepass.host import host_facts
from onepass.learner.checkpoint import fingerprint
from onepass.learner.uncompiled import without_compiler
from onepass.methods.factory import build, save
from onepass.methods.identity import code_digest

Progress = Callable[[int, int], None]
CHECKPOINT = "checkpoint.safetensors"


def check_run(config: RunConfig, device: str, datasets: Datasets, elsewhere: bool = False) -> None:
    """Refuse what cannot be run before anything is trained: the settings are tried on a network without weights.

    A run elsewhere is on another machine, whose device is not known here.
    """
    if not elsewhere:
        prepare(config, device)
    data = datasets.load(config.stream, config.image_size)
    _, tasks = make_tasks(data, config.stream_config, seed=config.seed)
    problem = problem_of(config.stream, len(data.classes), data.x.shape[1:], len(tasks), config.augment)
    try:
        with torch.device("meta"), without_compiler():
            build(config.method, problem, config.learner_config, net=config.net, seed=config.seed)
    except UsageError:
        raise
    except Exception:  # a method of one's own may need real numbers: it is tried when it runs
        return


def run(
    config: RunConfig,
    out: Path | str | None = None,
    *,
    data_dir: Path | str | None = None,
    datasets: Datasets | None = None,
    device: str = "cpu",
    checkpoint_seconds: float = 30.0,
    progress: Progress = lambda done, total: None,
    log: str = "",
    callback: Callback | None = None,
    tell_every: float = 0.0,
    keep: bool = False,
) -> Result:
    """Train and measure. With `out`, the result is stored there, found again, and a stopped run continues.

    `keep` stores the learner beside it; a run whose learner was not kept is trained again for it.

    `datasets` are those of `data_dir` that are open already. `callback` gets the loss of every tenth step and every
    evaluation as a dict while the run goes on. `tell_every` so many seconds stderr gets a line: step, task, loss,
    accuracy, and how long it will take.
    """
    check_log(log)
    config = config.on(device)
    logs: list[Log] = [] if callback is None else [CallbackLog(callback)]
    datasets = Datasets(data_dir) if datasets is None else datasets
    if out is None:
        if log or keep:
            what = f"log={log!r}: curves lie" if log else "keep=True: the learner lies"
            raise UsageError(f"{what} in the run's folder; give out")
        with without_compiler():
            state = Run(config, device, datasets)
            return _train(state, None, checkpoint_seconds, _telling(state, progress, tell_every), logs)
    place = store.folder(Path(out), config)
    digest, code = own_data_digest(config, datasets), code_digest(*config.code)
    wanted = not keep or store.is_kept(place)
    if wanted and (stored := store.load_result(place, config, False, digest, code)) is not None:
        with contextlib.suppress(OSError):  # a process that was killed just after it stored its result left it
            (place / CHECKPOINT).unlink(missing_ok=True)
        return stored
    with store.claim(place, waiting=lambda: progress(0, 1)), without_compiler(), contextlib.ExitStack() as stack:
        wanted = not keep or store.is_kept(place)
        if wanted and (stored := store.load_result(place, config, True, digest, code)) is not None:
            return stored  # another process was quicker
        state = _continued(place / CHECKPOINT, config, device, datasets)
        if log:
            losses = [(LOSS_EVERY * (number + 1), loss) for number, loss in enumerate(state.record.losses)]
            opened = open_log(log, place, config.to_json(), losses, state.evaluations())
            logs.append(stack.enter_context(contextlib.closing(opened)))
        result = _train(state, place, checkpoint_seconds, _telling(state, progress, tell_every), logs)
        if keep:
            state.keep(place / store.LEARNER)
        store.save_result(place, result)
        (place / CHECKPOINT).unlink(missing_ok=True)
        return result


def own_data_digest(config: RunConfig, datasets: Datasets) -> str:
    """The digest of a stream's data where they may change under its name: your own, if they are still there."""
    if not is_path(config.stream):
        return ""
    try:
        return datasets.load(config.stream, config.image_size).digest
    except UsageError:
        return ""


def _continued(checkpoint: Path, config: RunConfig, device: str, datasets: Datasets) -> Run:
    """The run where it stopped, or at its beginning."""
    if checkpoint.is_dir():
        raise RunError(f"{checkpoint} is a folder, expected a checkpoint or nothing: remove it")
    state = Run(config, device, datasets)
    if checkpoint.exists():
        try:
            state.restore(checkpoint)
        except BadCheckpoint as error:
            print(f"{error}; this run starts again from the beginning", file=sys.stderr)
            return Run(config, device, datasets)
    return state


def _telling(state: Run, progress: Progress, seconds: float) -> Progress:
    """The same progress, and a line on stderr every so many seconds."""
    if not seconds:
        return progress
    config, minutes = state.config, Minutes(seconds)

    def told(done: int, total: int) -> None:
        if minutes.due(done):
            name = f"{config.method} seed {config.seed}"
            print(minutes.line(name, state.record, done, total, len(state.tasks)), file=sys.stderr, flush=True)
        progress(done, total)

    return told


def _train(state: Run, place: Path | None, seconds: float, progress: Progress, logs: list[Log]) -> Result:
    config, learner, saved = state.config, state.learner, time.monotonic()

    def after_step() -> None:
        nonlocal saved
        try:
            progress(learner.steps, state.total)
        except KeyboardInterrupt:  # asked to stop between two steps, where the state is whole
            if place is not None:
                state.save(place / CHECKPOINT)
            raise
        if learner.steps % LOSS_EVERY == 0:
            for log in logs:
                log.loss(learner.steps, state.record.losses[-1])
        if place is not None and time.monotonic() - saved >= seconds:
            state.save(place / CHECKPOINT)
            saved = time.monotonic()

    def after_evaluation() -> None:
        lines = state.evaluations()
        if place is not None:
            store.save_evaluations(place, lines)
        for log in logs:
            log.evaluation(lines[-1])

    try:
        state.advance(after_step, after_evaluation)
    except Diverged as error:
        where = f"{config.method} on {config.stream}, seed {config.seed}, task {len(state.record.accuracy_matrix)}"
        if place is None:
            raise Diverged(f"{where}: {error}") from None
        save(learner, place / "diverged.safetensors")
        raise Diverged(f"{where}: {error} in {place / 'diverged.safetensors'}") from None
    return Result(
        **vars(state.record),
        config=config,
        fingerprint=fingerprint(learner.state_dict()),
        data=state.data_facts(),
        host=host_facts(state.device),
        protocol=state.protocol(),
    )
