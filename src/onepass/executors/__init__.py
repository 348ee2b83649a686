"""The same list of runs in this process, side by side in worker processes, or on a cluster.

A worker is a plain `python -m onepass.executors.worker` that speaks JSON lines: it needs no guard in the caller's
script, unpickles nothing, and ends by itself when the caller is killed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from onepass.bench import store
from onepass.bench.result import Result
from onepass.bench.run_config import RunConfig
from onepass.bench.runner import Run, own_data_digest, run
from onepass.data import catalog
from onepass.errors import RunError, UsageError, explain
from onepass.executors import ray_cluster
from onepass.methods.identity import code_digest

ARRIVAL = 60.0  # seconds after which a network drive shows what another machine wrote
Report = Callable[[int, int, int], None]  # number of the run in the list, its steps done, its steps in all


def cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def stored(configs: Sequence[RunConfig], out: Path, data_dir: Path | None, quiet: bool = False) -> list[Result | None]:
    """What need not be trained again; one that is damaged, or of other data than are there now, is named on stderr."""
    kinds = {(config.stream, config.image_size): config for config in configs}
    digests = {kind: own_data_digest(config, data_dir) for kind, config in kinds.items()}
    return [
        store.load_result(
            store.folder(out, config),
            config,
            quiet,
            digests[config.stream, config.image_size],
            code_digest(config.method),
        )
        for config in configs
    ]


def run_many(
    configs: Sequence[RunConfig],
    out: Path | str,
    *,
    jobs: int = 0,
    data_dir: Path | None = None,
    device: str = "cpu",
    checkpoint_seconds: float = 30.0,
    log: str = "",
    on: str = "",
    found: Sequence[Result | None] | None = None,
    report: Report = lambda index, done, total: None,
    stop: Callable[[], bool] = lambda: False,
) -> list[Result]:
    """All results, in order. What is stored is not trained again; a failed run is named after the others are done.

    `found` is what `stored` gave for the same list, if it has been asked already.

    When `stop` becomes true, every run in progress saves its state between two steps, and KeyboardInterrupt is raised.
    `on` a Ray cluster ("ray", "ray://HOST:PORT" or "HOST:PORT") `out` and `data_dir` are folders that all nodes share.
    """
    if jobs < 0:
        raise UsageError(f"jobs={jobs}: give how many runs go side by side, or 0 for one a core")
    if not configs:
        return []
    if on:
        ray_cluster.check(on)
    out = Path(out)
    limit, jobs = jobs, min(jobs or cores(), len(configs))
    # From the whole list, so that stopping and continuing never changes it. The size of a cluster may well change.
    threads = 1 if on and not limit else max(1, cores() // jobs)
    found = stored(configs, out, data_dir) if found is None else found
    waiting = [index for index, result in enumerate(found) if result is None]
    for index in set(range(len(configs))) - set(waiting):
        report(index, 0, 0)  # there was nothing to do
    for index in {store.key(configs[index]): index for index in waiting}.values():
        # What cannot be built is refused before anything is trained. The nodes of a cluster have devices of their own.
        Run(configs[index], "cpu" if on else device, data_dir)
    place = None if data_dir is None else str(data_dir)
    options: dict[str, Any] = {
        "device": device,
        "data_dir": place,
        "checkpoint_seconds": checkpoint_seconds,
        "log": log,
    }
    everything = {"out": str(out), "threads": threads, **options}
    if on:
        failures = _there(on, configs, waiting, everything, limit, report, stop)
    elif jobs == 1:
        failures = _here(configs, waiting, out, threads, options, report, stop)
    else:
        failures = Pool(configs, waiting, everything, report).work(jobs, stop)
    if failures:
        raise RunError("\n".join([f"{len(failures)} of {len(configs)} runs failed:", *failures]))
    # What was just made is read as it is: a file that was changed meanwhile counts from the next time on.
    return [
        result or store.load_result(store.folder(Path(out), config), config) or run(config, out, **options)
        for result, config in zip(found, configs, strict=True)
    ]


def _here(
    configs: Sequence[RunConfig],
    waiting: list[int],
    out: Path,
    threads: int,
    options: Any,
    report: Report,
    stop: Callable[[], bool],
) -> list[str]:
    failures = []
    for index in waiting:
        torch.set_num_threads(threads)

        def progress(done: int, total: int, index: int = index) -> None:
            report(index, done, total)
            if stop():
                raise KeyboardInterrupt

        try:
            run(configs[index], out, progress=progress, **options)
            report(index, 1, 1)  # if another process did it, there were no steps
        except Exception as error:  # whatever happens to one run, the others go on
            failures.append(explain(f"{configs[index].method} seed {configs[index].seed}", error))
    return failures


def _there(
    on: str,
    configs: Sequence[RunConfig],
    waiting: list[int],
    options: Any,
    jobs: int,
    report: Report,
    stop: Callable[[], bool],
) -> list[str]:
    if not waiting:
        return []
    out, data = Path(options["out"]).absolute(), catalog.data_dir(options["data_dir"]).absolute()
    try:
        for index in waiting:  # a node that does not see these has another folder of the same name
            store.folder(out, configs[index]).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"cannot write to {out}: {error}") from error
    with ray_cluster.joined(on):
        options = {**options, "out": str(out), "data_dir": str(data)}
        failures = ray_cluster.Cluster(configs, waiting, options, report).work(jobs, stop)
    deadline = time.monotonic() + ARRIVAL
    for index in set(waiting) - failures.keys():
        place, method = store.folder(out, configs[index]), configs[index].method
        result = _arrived(place, configs[index], deadline)
        if result is None:
            failures[index] = f"no result came to {place}; do all nodes of the cluster share this folder?"
        elif result.protocol.get("code", "") != code_digest(method):
            failures[index] = f"{place} was made by another {method.partition(':')[0]} than is here: give all nodes one"
    return [failures[index] for index in sorted(failures)]


def _arrived(place: Path, config: RunConfig, deadline: float) -> Result | None:
    while (result := store.load_result(place, config, quiet=True)) is None and time.monotonic() < deadline:
        time.sleep(0.2)
    return result


class Pool:
    """A thread per worker process: it hands over the next waiting run and passes on what the worker says."""

    def __init__(self, configs: Sequence[RunConfig], waiting: list[int], options: Any, report: Report) -> None:
        self.configs, self.waiting, self.options, self.report = configs, list(waiting), options, report
        self.failures: list[str] = []
        self.workers: set[subprocess.Popen[str]] = set()
        self.stopping = False

    def work(self, jobs: int, stop: Callable[[], bool]) -> list[str]:
        threads = [threading.Thread(target=self._serve, daemon=True) for _ in range(min(jobs, len(self.waiting)))]
        for thread in threads:
            thread.start()
        told = 0.0
        while any(thread.is_alive() for thread in threads):
            time.sleep(0.05)
            self.stopping = self.stopping or stop()
            if self.stopping and time.monotonic() - told > 0.5:  # again: one that just starts may not hear yet
                told = time.monotonic()
                for worker in list(self.workers):  # each saves its state between two steps, then ends
                    worker.send_signal(signal.SIGINT)
        if self.stopping:
            raise KeyboardInterrupt
        return self.failures

    def _serve(self) -> None:
        worker: subprocess.Popen[str] | None = None
        while self.waiting and not self.stopping:
            try:
                index = self.waiting.pop(0)
            except IndexError:  # another thread took the last one
                break
            worker = worker or self._start()
            if self.stopping:
                break
            if not self._ask(worker, index):
                self.workers.discard(worker)
                worker = None
        if worker is not None and worker.stdin is not None:
            worker.stdin.close()
            worker.wait()

    def _start(self) -> subprocess.Popen[str]:
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
        env["OMP_NUM_THREADS"] = str(self.options["threads"])
        command = [sys.executable, "-m", "onepass.executors.worker"]
        pipe = subprocess.PIPE
        # A session of its own: Ctrl-C reaches us alone, and we pass it on.
        worker = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=env, start_new_session=True)
        self.workers.add(worker)
        return worker

    def _ask(self, worker: subprocess.Popen[str], index: int) -> bool:
        """Let the worker do one run; False if the worker was lost."""
        assert worker.stdin is not None
        assert worker.stdout is not None
        config = self.configs[index]
        try:
            worker.stdin.write(json.dumps({"config": config.to_json(), **self.options}) + "\n")
            worker.stdin.flush()
            for line in worker.stdout:
                message = json.loads(line)
                if "done" in message:
                    self.report(index, message["done"], message["total"])
                    continue
                if message["error"]:
                    self.failures.append(message["error"])
                else:
                    self.report(index, 1, 1)  # if another process did it, there were no steps
                return True
        except BrokenPipeError:
            pass
        code = worker.wait()
        if not self.stopping:
            self.failures.append(
                f"{config.method} seed {config.seed}: its worker ended with code {code} (killed? out of memory?); "
                "the same command continues it from its last checkpoint"
            )
        return False
