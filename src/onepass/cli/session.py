"""The runs of one command: its data opened once, bars while they go on, Ctrl-C between two steps."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Sequence
from contextlib import suppress

from onepass.bench.logs import check_log
from onepass.bench.result import Result
from onepass.bench.run_config import RunConfig
from onepass.cli.progress import Bar, Display
from onepass.data.catalog import Datasets, is_path
from onepass.errors import UsageError
from onepass.executors import run_many, stored_results
from onepass.text import printable

TELL_EVERY = 60.0  # seconds between two lines of a run where nobody sees bars


class Session:
    """`values` are the flags of `flags.add_execution`."""

    def __init__(self, values: Namespace) -> None:
        self.values = values
        self.keep = getattr(values, "keep", False)  # a flag of run and compare alone
        self.datasets = Datasets(values.data_dir, bad_images=values.bad_images, tell=_tell)

    def read(self, runs: Sequence[RunConfig]) -> None:
        """Each data set that the runs need, so that reading it for the first time has a bar of its own."""
        for stream, size in dict.fromkeys((run.stream, run.image_size) for run in runs):
            with Bar(f"reading {stream}, the first time only") as bar:
                self.datasets.progress = bar.report
                self.datasets.load(stream, size)

    def stored(self, runs: Sequence[RunConfig], quiet: bool = False) -> list[Result | None]:
        """What of the runs is stored. Data behind a path may have changed, so they are read for it; others are not."""
        if os.path.isfile(self.values.out):
            raise UsageError(f"--out {self.values.out} is a file: give a folder")
        with suppress(UsageError):  # they are gone: what is stored counts
            self.read([run for run in runs if is_path(run.stream)])
        return stored_results(runs, self.values.out, self.datasets, quiet, self.keep)

    def execute(
        self,
        runs: Sequence[RunConfig],
        names: Sequence[str] = (),
        stored: Sequence[Result | None] | None = None,
    ) -> list[Result]:
        """All results in order; `names` are what the bars call the runs, `stored` what is known to be stored."""
        values = self.values
        check_log(values.log)
        stored = self.stored(runs) if stored is None else stored
        self.read([run for run, result in zip(runs, stored, strict=True) if result is None])
        with Display(names or [f"{run.method} seed {run.seed}" for run in runs]) as display:
            return run_many(
                runs,
                values.out,
                jobs=values.jobs,
                on=values.on,
                datasets=self.datasets,
                device=values.device,
                checkpoint_seconds=values.checkpoint_seconds,
                log=values.log,
                tell_every=0.0 if display.console.is_terminal else TELL_EVERY,
                stored=stored,
                keep=self.keep,
                report=display.report,
                stop=display.stop,
            )


def _tell(notes: list[str]) -> None:
    for note in notes:
        print(f"note: {printable(note)}", file=sys.stderr)
