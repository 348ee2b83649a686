"""One core, and so one thread, for each test process: two share a machine, and bits depend on the number of threads."""

import gc
import os
import signal

import pytest

# Under nohup or in the background, commands that tests start would ignore what tests send them, as they should.
signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, "SIGHUP"):
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
gc.disable()  # until all tests are collected: to look for garbage takes two fifths of that time


def pytest_configure(config: pytest.Config) -> None:
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker is None and config.getoption("numprocesses", None):
        gc.enable()
        return  # tests run in workers, and this process need not load torch
    if worker is not None and hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[int(worker.removeprefix("gw")) % len(cores)]})
    import torch

    torch.set_num_threads(1)


def pytest_collection_finish() -> None:
    gc.freeze()  # what was imported stays: a third of a second in each full collection
    gc.enable()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Skipped tests say why only when asked; that nobody looked at the page is said loudly."""
    from browser import HOW

    skipped = [report for report in terminalreporter.stats.get("skipped", []) if HOW in str(report.longrepr)]
    if skipped:
        text = f"SKIPPED {len(skipped)} tests in a browser, for none works here: {HOW}"
        terminalreporter.write_sep("!", text, red=True, bold=True)
