"""Runs as a command does them: data read first, bars while they go on, Ctrl-C between two steps."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence

from onepass.data.catalog import load
from onepass.executors import run_many
from onepass.logs import check_log
from onepass.progress import Bar, Display
from onepass.results import Result, RunConfig


def read(runs: Sequence[RunConfig], values: Namespace) -> None:
    """Each data set that the runs need, so that the first reading has a bar of its own."""
    for stream, size in dict.fromkeys((run.stream, run.image_size) for run in runs):
        with Bar(f"reading {stream}, the first time only") as bar:
            load(stream, root=values.data_dir, image_size=size, bad_images=values.bad_images, progress=bar.report)


def execute(runs: Sequence[RunConfig], values: Namespace, names: Sequence[str] = ()) -> list[Result]:
    """All results in order; `values` are the flags of `flags.add_execution`, `names` what the bars call the runs."""
    check_log(values.log)
    read(runs, values)
    with Display(names or [f"{run.method} seed {run.seed}" for run in runs]) as display:
        return run_many(
            runs,
            values.out,
            jobs=values.jobs,
            on=values.on,
            data_dir=values.data_dir,
            device=values.device,
            checkpoint_seconds=values.checkpoint_seconds,
            log=values.log,
            report=display.report,
            stop=display.stop,
        )
