"""The same list of runs on a Ray cluster: each run is a task, and what it saves lies in a folder that all nodes share.

Ray starts a task again elsewhere when its worker or node dies; the run then goes on from its checkpoint. The lock of a
run's folder (`store.claim`) keeps two nodes from training it at once, even if one was only thought to be dead.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
import re
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, TextIO, cast

from onepass.bench import store
from onepass.bench.result import Result
from onepass.errors import BadData, RunError, UsageError, explain
from onepass.executors.protocol import Executor, Work
from onepass.methods.identity import code_digest

ADDRESS = re.compile(r"(?:ray://)?([\w.-]+|\[[\da-fA-F:]+\]):(\d{1,5})")
RETRIES = 10  # of one run, each from its last checkpoint; one that kills every worker must end some day
JOINS = 3  # tries: from outside, Ray forks a server for each client, and some die of it (Ray's issue 63202)
STARTING = 6.0  # seconds: ray start --head returns before its server for clients listens
ARRIVAL = 60.0  # seconds after which a network drive shows what another machine wrote
PATIENCE = 30.0  # seconds that runs have to save their state when they are told to stop


def _ray() -> Any:
    return importlib.import_module("ray")  # an extra, slow to import and typed in parts only


def check(on: str) -> None:
    """Refuse what cannot be meant, before anything is computed."""
    if on != "ray" and not ADDRESS.fullmatch(on):
        raise UsageError(
            f"on={on!r}: give ray (this machine's cluster, or that of RAY_ADDRESS, else a new one here), "
            "HOST:PORT (on a node of that cluster) or ray://HOST:PORT (from outside it)"
        )
    if importlib.util.find_spec("ray") is None:
        raise UsageError(f"on={on!r} needs Ray: pip install 'ray[client]'")


def executor(on: str) -> Executor:
    """Runs on the Ray cluster of this address."""
    check(on)
    return partial(_execute, on)


def _execute(on: str, work: Work) -> dict[int, Result | str]:
    out, data = work.out.absolute(), work.datasets.place.absolute()
    try:
        for index in work.waiting:  # a node that does not see these has another folder of the same name
            store.folder(out, work.configs[index]).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"cannot write to {out}: {error}") from error
    with joined(on):
        options = {**work.options, "out": str(out), "data_dir": str(data), "threads": work.threads}
        failures = Cluster(work, options).run()
    deadline = time.monotonic() + ARRIVAL
    arrived = {index: _arrived(work, index, deadline) for index in work.waiting if index not in failures}
    return {**failures, **arrived}


def _arrived(work: Work, index: int, deadline: float) -> Result | str:
    config = work.configs[index]
    place = store.folder(work.out, config)
    while (result := store.load_result(place, config, quiet=True)) is None:
        if time.monotonic() >= deadline:
            return f"no result came to {place}; do all nodes of the cluster share this folder?"
        time.sleep(0.2)
    if result.protocol.get("code", "") != code_digest(*config.code):
        return f"{place} was made by another {config.method.partition(':')[0]} than is here: give all nodes one"
    return result


def _join(ray: Any, on: str) -> None:
    for left in reversed(range(JOINS)):
        try:
            ray.init(None if on == "ray" else on, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        except Exception as error:
            if not (left and isinstance(error, ConnectionAbortedError)):
                raise RunError(f"cannot join the Ray cluster of {on!r}: {error}") from error
        else:
            return


@contextlib.contextmanager
def joined(on: str) -> Iterator[None]:
    """Connected to the cluster; what was connected or started here ends here, and nothing else does."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if on == "ray" and "ray" in sys.modules and _ray().is_initialized():
        yield
        return
    _check_reachable(on)
    ray = _ray()
    _join(ray, on)
    with contextlib.redirect_stdout(cast(TextIO, MutedStdout(sys.stdout))):
        try:
            yield
        except ConnectionError as error:
            raise RunError(f"the Ray cluster of {on!r} was lost: {error}; the same command continues") from error
        finally:
            with contextlib.redirect_stdout(io.StringIO()):  # it prints what its threads had kept back
                ray.shutdown()


def _check_reachable(on: str) -> None:
    """Ray itself waits for minutes, deaf to Ctrl-C, for a cluster that is not there."""
    address = on
    if on == "ray":
        last = Path(os.environ.get("RAY_TMPDIR") or tempfile.gettempdir(), "ray", "ray_current_cluster")
        address = os.environ.get("RAY_ADDRESS") or (last.read_text().strip() if last.is_file() else "")
    if parts := ADDRESS.fullmatch(address):
        deadline = time.monotonic() + (STARTING if address.startswith("ray://") else 0)
        while not _listens(address, parts[1].strip("[]"), int(parts[2]), last_try=time.monotonic() >= deadline):
            time.sleep(0.2)


def _listens(address: str, host: str, port: int, last_try: bool) -> bool:
    try:
        socket.create_connection((host, port), timeout=5).close()
    except (OSError, OverflowError) as error:
        if isinstance(error, ConnectionRefusedError) and not last_try:
            return False
        hint = "ray start --head starts one and says its address; where one is gone, ray stop forgets it"
        raise RunError(f"no Ray cluster answers at {address} ({error}); {hint}") from error
    return True


class MutedStdout:
    """stdout without what Ray's own threads print there when a node dies: results go there."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        return len(text) if threading.current_thread().name.startswith("ray_") else self.stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


class ProgressActor:
    """Where runs say how far they are and ask whether to stop: an actor beside the driver, which no lost run takes."""

    def __init__(self) -> None:
        self.nodes: dict[int, str] = {}
        self.news: dict[int, tuple[int, int]] = {}
        self.said: list[str] = []
        self.stopping = False

    def begin(self, index: int, name: str, node: str) -> bool:
        if index in self.nodes:
            self.said.append(f"{name}: its worker on node {self.nodes[index]} was lost; it continues on node {node}\n")
        self.nodes[index] = node
        return self.stopping

    def tell(self, index: int, done: int, total: int) -> bool:
        self.news[index] = (done, total)
        return self.stopping

    def say(self, text: str) -> None:
        self.said.append(text)

    def exchange(self, stopping: bool) -> tuple[set[int], dict[int, tuple[int, int]], str]:
        """Which runs have begun, and what is new: how far they are, and what they said."""
        news, said, self.news, self.said, self.stopping = self.news, "".join(self.said), {}, [], stopping
        return set(self.nodes), news, said


class ProgressReporter(io.StringIO):
    """From a run to the actor: its progress twice a second, and its stderr. Answers are looked at, never waited for."""

    def __init__(self, actor: Any, index: int, name: str, node: str) -> None:
        super().__init__()
        self.actor, self.index, self.reported_at = actor, index, 0.0
        self.answer = actor.begin.remote(index, name, node)

    def write(self, text: str) -> int:
        self.actor.say.remote(text)
        return len(text)

    def progress(self, done: int, total: int) -> None:
        ray = _ray()
        if self.answer is not None and ray.wait([self.answer], timeout=0)[0]:
            answer, self.answer = self.answer, None
            with contextlib.suppress(ray.exceptions.RayActorError):  # a lost actor comes back; the run goes on
                if ray.get(answer):
                    raise KeyboardInterrupt
        if self.answer is None and time.monotonic() - self.reported_at >= 0.5:
            self.reported_at, self.answer = time.monotonic(), self.actor.tell.remote(self.index, done, total)


def train(values: dict[str, Any], options: dict[str, Any], index: int, actor: Any) -> str:
    """One run, on whatever node Ray chose; an empty answer, or what went wrong."""
    import torch  # here, as the actor has no need of it

    from onepass.bench.run_config import RunConfig
    from onepass.bench.runner import run
    from onepass.data.catalog import Datasets

    name, node = f"{values['method']} seed {values['seed']}", _ray().util.get_node_ip_address()
    reporter = ProgressReporter(actor, index, name, node)
    out, datasets = Path(options.pop("out")), Datasets(options["data_dir"], rescan=False)
    torch.set_num_threads(options.pop("threads"))  # bits depend on it
    try:
        config = RunConfig(**values)
        if not os.access(place := store.folder(out, config), os.W_OK):
            raise RunError(f"cannot write to {place} there; on a cluster, out must be a folder that all nodes share")
        with contextlib.suppress(KeyboardInterrupt), contextlib.redirect_stderr(reporter):
            run(config, out, datasets=datasets, progress=reporter.progress, **options)
    except (RunError, UsageError, BadData) as error:
        return f"{name} on node {node}: {error}"
    except Exception as error:  # a bug in a method: the other runs go on, and its traceback is shown at the end
        return explain(f"{name} on node {node}", error)
    return ""


class Cluster:
    """The driver's side: hands the runs to Ray and passes on what they say."""

    def __init__(self, work: Work, options: dict[str, Any]) -> None:
        self.ray = ray = _ray()
        self.work, self.options, self.waiting = work, options, list(work.waiting)
        self.running: dict[Any, int] = {}
        self.failures: dict[int, str] = {}
        place = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
        here = place(ray.get_runtime_context().get_node_id(), soft=False)
        self.actor = ray.remote(num_cpus=0, max_restarts=-1, scheduling_strategy=here)(ProgressActor).remote()
        self.task = ray.remote(max_retries=RETRIES, **_needs(options))(train)

    def run(self) -> dict[int, str]:
        """Train the runs, as many at once as were asked for and there are cores for; what went wrong with which."""
        jobs, stop = self.work.jobs, self.work.stop
        while (self.waiting or self.running) and not stop():
            while self.waiting and (not jobs or len(self.running) < jobs):
                index = self.waiting.pop(0)
                task = self.task.remote(self.work.configs[index].to_json(), self.options, index, self.actor)
                self.running[task] = index
            for task in self.ray.wait(list(self.running), timeout=0.2)[0]:
                self._finish(task)
            self._listen(stopping=False)
        if stop():
            self._stop()
            raise KeyboardInterrupt
        return self.failures

    def _finish(self, task: Any) -> None:
        index = self.running.pop(task)
        try:
            failure = self.ray.get(task)
        except self.ray.exceptions.RayError as error:  # lost too often, or onepass is not installed there
            failure = f"{self.work.name(index)}: {error}\nthe same command continues this run"
        if failure:
            self.failures[index] = failure
        else:
            self.work.report(index, 1, 1)

    def _listen(self, stopping: bool) -> set[int]:
        """Pass on the news; which runs have begun."""
        errors = self.ray.exceptions
        try:
            begun, news, said = self.ray.get(self.actor.exchange.remote(stopping), timeout=PATIENCE)
        except (errors.RayActorError, errors.GetTimeoutError):  # it is started again, and told again
            return set()
        for index in news.keys() & set(self.running.values()):
            self.work.report(index, *news[index])
        sys.stderr.write(said)
        return set(begun)

    def _stop(self) -> None:
        """Those that have not begun never do; then runs in progress save their state between two steps.

        In this order: a run that ends leaves its core to one that waits.
        """
        begun, left, deadline = self._listen(stopping=False), list(self.running), time.monotonic() + PATIENCE
        for task in left:
            if self.running[task] not in begun:
                self.ray.cancel(task)
        while left and time.monotonic() < deadline:
            self._listen(stopping=True)
            _, left = self.ray.wait(left, num_returns=len(left), timeout=0.2)
        for task in left:
            self.ray.cancel(task, force=True)


def _needs(options: dict[str, Any]) -> dict[str, int]:
    """What a run asks Ray for: a core for each thread, as far as a node has them, and a GPU of its own."""
    nodes = [node["Resources"] for node in _ray().nodes() if node["Alive"]]
    needs = {"CPU": min(options["threads"], max([1, *(int(node.get("CPU", 0)) for node in nodes)]))}
    if options["device"].startswith("cuda"):
        needs["GPU"] = 1
    for kind in needs:
        if not any(node.get(kind) for node in nodes):
            print(f"the cluster has no {kind} now; the runs wait until a node with one joins", file=sys.stderr)
    return {f"num_{kind.lower()}s": amount for kind, amount in needs.items()}
