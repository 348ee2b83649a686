"""`onepass serve --on` a real Ray cluster of two nodes: one of them, a replica, the learner, the command are killed."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from onepass.cli.main import main
from onepass.live.state import load_model
from ray_nodes import Nodes, started_nodes
from serving_helpers import TOKEN, served

pytestmark = pytest.mark.xdist_group("cluster")  # two clusters at once may want the same ports

BATCHES, EACH = 24, 4
PATIENCE = 120.0
FLAGS = ("--vectors", "3", "--save-seconds", "0.05", "--replicas", "2", "--on")


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with started_nodes(cpus=3) as nodes:
        nodes.start("second", "127.0.0.3", f"--address={nodes.address}")
        assert nodes.is_up("second"), nodes.last_words("second")
        yield nodes


def processes(nodes: Nodes, name: str) -> dict[int, int]:
    """Those of a deployment, each with its node's session."""
    sessions, found = {node.pid for node in nodes.started.values()}, {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):  # not a process, or one that has just ended
            title = (entry / "cmdline").read_text(errors="replace")
            session = int((entry / "stat").read_text().rpartition(")")[2].split()[3])
            if title.startswith(f"ray::ServeReplica:onepass:{name}") and session in sessions:
                found[int(entry.name)] = session
    return found


def until(good: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + PATIENCE
    while not good():
        assert time.monotonic() < end, what
        time.sleep(0.05)


class Client(threading.Thread):
    """Repeats each request until it is answered, as clients are told to."""

    def __init__(self, address: str) -> None:
        super().__init__(daemon=True)
        self.client = httpx.Client(base_url=address, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=30)
        self.stop = threading.Event()
        self.done, self.wrong = 0, list[str]()

    def run(self) -> None:
        n = 0
        while not self.stop.is_set():
            try:
                self.act(n)
            except Exception as error:
                self.wrong.append(repr(error))
                return
            n += 1
            self.done += 1

    def act(self, n: int) -> None:
        raise NotImplementedError

    def ask(self, method: str, path: str, **more: Any) -> httpx.Response:
        end = time.monotonic() + PATIENCE
        while True:
            with contextlib.suppress(httpx.TransportError):
                answer = self.client.request(method, path, **more)
                if answer.status_code not in (500, 503):  # Serve says 500 when a replica dies over a request
                    return answer
            assert time.monotonic() < end, f"{method} {path} was never answered"
            time.sleep(0.1)


def vector(n: int, row: int) -> list[float]:
    return [5.0 * (n % 3), 0.01 * n, 0.1 * row]


class Teacher(Client):
    def act(self, n: int) -> None:
        """Vectors without ids: the request's key alone says that they came before."""
        items = [{"vector": vector(n, row), "label": f"class {n % 3}"} for row in range(EACH)]
        while True:
            told = self.ask("POST", "/v1/learn", json={"items": items}, headers={"Idempotency-Key": f"batch-{n}"})
            assert told.status_code == 202, told.text
            state = self.ask("GET", f"/v1/batches/{told.json()['batch']}")
            if state.status_code == 200 and state.json()["saved"]:  # 404: lost with the learner's process
                break
            time.sleep(0.05)
        if n == BATCHES - 1:
            self.stop.set()


class Asker(Client):
    def act(self, n: int) -> None:
        answer = self.ask("POST", "/v1/predict", json={"items": [{"vector": vector(n, 1)}]})
        assert answer.status_code in (200, 409), answer.text  # 409: before the first class
        if answer.status_code == 200:
            assert len(answer.json()["predictions"][0]["classes"]) <= 3
        time.sleep(0.02)


@pytest.mark.system
def test_node_replica_learner_and_command_killed_nothing_is_lost_and_nothing_is_learned_twice(
    nodes: Nodes, tmp_path: Path
) -> None:
    path, total = tmp_path / "m.onepass", BATCHES * EACH
    with served(path, *FLAGS, nodes.address) as server:
        address = server.address.partition("#")[0].rstrip("/")
        replicas, learner = processes(nodes, "Replica"), processes(nodes, "Learner")
        assert (len(replicas), len(learner)) == (2, 1)
        assert len({*replicas.values(), *learner.values()}) == 2, "both nodes have a part"
        teacher, asker = Teacher(address), Asker(address)
        teacher.start()
        asker.start()
        until(lambda: teacher.done >= 5 or bool(teacher.wrong), "nothing is learned")
        nodes.kill("second")
        begun = teacher.done
        until(lambda: teacher.done >= begun + 5 or bool(teacher.wrong), "learning stopped with a node")
        os.kill(next(iter(processes(nodes, "Replica"))), signal.SIGKILL)
        begun, learner = teacher.done, processes(nodes, "Learner")
        until(lambda: teacher.done >= begun + 3 or bool(teacher.wrong), "learning stopped with a replica")
        os.kill(next(iter(learner)), signal.SIGKILL)
        asked = asker.done
        until(lambda: asker.done > asked + 5, "replicas answer while there is no learner")
        teacher.join(PATIENCE)
        asker.stop.set()
        asker.join(PATIENCE)
        assert teacher.wrong == asker.wrong == []
        assert teacher.done == BATCHES
        assert processes(nodes, "Learner").keys().isdisjoint(learner)
        until(lambda: len(processes(nodes, "Replica")) == 2, "the killed replica comes back")
        until(lambda: everywhere(asker.client) == {total}, "the last snapshot reaches each replica")
        server.process.kill()  # the command alone: the cluster goes on serving
        server.process.wait()
        assert everywhere(asker.client) == {total}
    with served(path, *FLAGS, nodes.address) as again:
        assert again.address.partition("#")[0].rstrip("/") == address, "Ray Serve listens where it did"
        assert again.learn([{"vector": vector(0, row), "label": "class 0"} for row in range(EACH)], "batch-0")
        again.learned([{"vector": [1.0, 1.0, 1.0], "label": "new"}], "one-more")
        again.process.send_signal(signal.SIGTERM)
        assert again.process.wait(PATIENCE) == 143
    model = load_model(path)
    assert model.class_counts() == {**{f"class {c}": total // 3 for c in range(3)}, "new": 1}


def everywhere(client: httpx.Client) -> set[int]:
    """Samples that replicas know of: Serve gives some of 40 questions to each."""
    answers = [client.post("/v1/predict", json={"items": [{"vector": [0, 0, 0]}]}) for _ in range(40)]
    return {answer.json()["samples"] if answer.status_code == 200 else -1 for answer in answers}


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (("--replicas", "2"), "Expected --on with --replicas"),
        (("--on", "ray", "--watch", "photos"), "Expected --watch or --on"),
        (("--on", "nonsense"), "give ray"),
        (("--on", "ray://127.0.0.1:10001"), "Expected ray or HOST:PORT"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    flags: tuple[str, ...], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", str(tmp_path / "m.onepass"), *flags]) == 2
    assert reason in capsys.readouterr().err
