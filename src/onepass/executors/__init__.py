"""The same list of runs in this process, side by side in worker processes, or on a cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from onepass.bench import store
from onepass.bench.result import Result
from onepass.bench.run_config import RunConfig
from onepass.bench.runner import check_run, own_data_digest
from onepass.data.catalog import Datasets
from onepass.errors import RunError, UsageError
from onepass.executors import ray_cluster, slurm
from onepass.executors.inline import inline
from onepass.executors.pool import pool
from onepass.executors.protocol import Executor, Report, Work
from onepass.host import cores
from onepass.methods.identity import code_digest


def executor(on: str, jobs: int) -> Executor:
    """Who does runs `on` such a place, `jobs` at once: a new place is a line here."""
    if on == "slurm":
        return slurm.executor()
    if on:
        return ray_cluster.executor(on)
    return inline if jobs == 1 else pool


def stored_results(
    configs: Sequence[RunConfig], out: Path, datasets: Datasets, quiet: bool = False, keep: bool = False
) -> list[Result | None]:
    """What need not be trained again; one that is damaged, or of other data than are there now, is named on stderr.
    With `keep`, one whose learner is not there either is none."""
    return [
        store.load_result(
            store.folder(out, config), config, quiet, own_data_digest(config, datasets), code_digest(*config.code)
        )
        if not keep or store.is_kept(store.folder(out, config))
        else None
        for config in configs
    ]


def run_many(
    configs: Sequence[RunConfig],
    out: Path | str,
    *,
    jobs: int = 0,
    data_dir: Path | str | None = None,
    datasets: Datasets | None = None,
    device: str = "cpu",
    checkpoint_seconds: float = 30.0,
    log: str = "",
    on: str = "",
    tell_every: float = 0.0,
    stored: Sequence[Result | None] | None = None,
    keep: bool = False,
    report: Report = lambda *told: None,
    stop: Callable[[], bool] = lambda: False,
) -> list[Result]:
    """All results, in order. What is stored is not trained again; a failed run is named after the others are done.

    `stored` is what `stored_results` gave for the same list, and `datasets` those of `data_dir` that are open, if so.

    With `tell_every`, each run in progress says on stderr every so many seconds how far it is. `keep` stores the
    learners beside the results (`onepass.live.kept` makes models of them).

    When `stop` becomes true, every run in progress saves its state between two steps, and KeyboardInterrupt is raised.
    `on` a cluster ("slurm", "ray", "ray://HOST:PORT" or "HOST:PORT") `out` and `data_dir` are folders that all nodes
    share.
    """
    if jobs < 0:
        raise UsageError(f"jobs={jobs}: give how many runs go side by side, or 0 for one a core")
    if not configs:
        return []
    configs = [config.on(device) for config in configs]
    side = min(jobs or cores(), len(configs))
    do = executor(on, side)
    out, datasets = Path(out), Datasets(data_dir) if datasets is None else datasets
    results = list(stored_results(configs, out, datasets, keep=keep) if stored is None else stored)
    waiting = [index for index, result in enumerate(results) if result is None]
    for index in set(range(len(configs))) - set(waiting):
        report(index, 0, 0)  # there was nothing to do
    for index in {configs[index].key: index for index in waiting}.values():
        check_run(configs[index], device, datasets, elsewhere=bool(on))
    options = {
        "device": device,
        "data_dir": str(datasets.place),
        "checkpoint_seconds": checkpoint_seconds,
        "log": log,
        "tell_every": tell_every,
        "keep": keep,
    }
    # From the whole list, so that stopping and continuing never changes it. The size of a cluster may well change.
    threads = 1 if on and not jobs else max(1, cores() // side)
    work = Work(configs, waiting, out, datasets, options, jobs if on else side, threads, report, stop)
    outcomes = do(work) if waiting else {}
    failures = [outcome for _, outcome in sorted(outcomes.items()) if isinstance(outcome, str)]
    if failures:
        raise RunError("\n".join([f"{len(failures)} of {len(configs)} runs failed:", *failures]))
    return [result or outcomes[index] for index, result in enumerate(results)]  # type: ignore[misc]  # no text left
