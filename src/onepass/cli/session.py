"""Runs as a command does them: data read first, bars while they go on, Ctrl-C between two steps."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Sequence
from contextlib import suppress

from onepass.bench.result import Result
from onepass.bench.run_config import RunConfig
from onepass.bench.tensorboard import check_log
from onepass.cli.progress import Bar, Display
from onepass.data.catalog import is_path, load
from onepass.errors import UsageError
from onepass.executors import run_many, stored


def read(runs: Sequence[RunConfig], values: Namespace) -> None:
    """Each data set that the runs need, so that the first reading has a bar of its own."""
    notes: list[str] = []
    for stream, size in dict.fromkeys((run.stream, run.image_size) for run in runs):
        with Bar(f"reading {stream}, the first time only") as bar:
            load(
                stream,
                root=values.data_dir,
                image_size=size,
                bad_images=values.bad_images,
                progress=bar.report,
                tell=notes.extend,
            )
        for note in notes:
            print(f"note: {note}", file=sys.stderr)
        notes.clear()


def look(runs: Sequence[RunConfig], values: Namespace, quiet: bool = False) -> list[Result | None]:
    """What of the runs is stored. Data behind a path may have changed, so they are read for it; others are not."""
    if os.path.isfile(values.out):
        raise UsageError(f"--out {values.out} is a file: give a folder")
    with suppress(UsageError):  # they are gone: what is stored counts
        read([run for run in runs if is_path(run.stream)], values)
    return stored(runs, values.out, values.data_dir, quiet)


def execute(
    runs: Sequence[RunConfig],
    values: Namespace,
    names: Sequence[str] = (),
    found: Sequence[Result | None] | None = None,
) -> list[Result]:
    """All results in order; `values` are the flags of `flags.add_execution`, `names` what the bars call the runs,
    `found` what `look` said if it has been asked."""
    check_log(values.log)
    found = look(runs, values) if found is None else found
    read([run for run, result in zip(runs, found, strict=True) if result is None], values)
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
            found=found,
            report=display.report,
            stop=display.stop,
        )
