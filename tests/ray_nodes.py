"""A real Ray cluster on loopback for tests: nodes are processes, to be killed."""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

DIARY = "ONEPASS_TEST_DIARY"  # set on the nodes only: a folder
NODE = "ONEPASS_TEST_NODE"
PATIENCE = (  # seconds after which Ray takes a part of itself for dead; on a busy machine it is only slow
    "RAY_raylet_start_wait_time_s",
    "RAY_worker_register_timeout_seconds",
    "RAY_gcs_rpc_server_connect_timeout_s",
    "RAY_gcs_rpc_server_reconnect_timeout_s",
    "RAY_py_gcs_connect_timeout_s",
)
HEADS = 3  # tries: a server for clients that waits 30 s for the rest of its node, no setting of Ray, ends the head


def free_port() -> int:
    """Free at every address of this machine, and none that a connection or a process that wants any port may take.

    Ray takes 10001 and 23000 to 23999 by itself. Its server for clients binds its port seconds after it was chosen.
    """
    ephemeral = Path("/proc/sys/net/ipv4/ip_local_port_range")
    low, high = map(int, ephemeral.read_text().split()) if ephemeral.exists() else (32768, 65535)
    ports = [port for port in range(10002, 23000) if not low <= port <= high] or [0]
    while True:
        with socket.socket() as server, contextlib.suppress(OSError):  # one that is taken: the next
            server.bind(("", random.choice(ports)))
            return int(server.getsockname()[1])


class Nodes:
    """`ray start` processes, each in a session of its own, by which all it started is found and killed."""

    def __init__(self, folder: Path, cpus: int) -> None:
        self.folder, self.cpus = folder, cpus
        self.address = self.client = ""
        self.started: dict[str, subprocess.Popen[bytes]] = {}
        self.diaries = folder / "diaries"
        self.diaries.mkdir()

    def start_head(self) -> None:
        """The first node, with the cluster's own processes; one that Ray ends as it starts is replaced."""
        for left in reversed(range(HEADS)):
            port, client_port = free_port(), free_port()
            self.address, self.client = f"127.0.0.2:{port}", f"ray://127.0.0.2:{client_port}"
            ports = f"--port={port}", f"--ray-client-server-port={client_port}"
            self.start("first", "127.0.0.2", "--head", *ports, "--no-monitor", "--include-dashboard=false")
            if self.is_up("first") and self.answers_clients(client_port):
                return
            print("the head ended as it started:", words := self.last_words("first"))
            self.kill("first")
            assert left, words

    def answers_clients(self, port: int) -> bool:
        """Once the server for clients listens, which comes last; not if the head ends before."""
        while self.lives("first"):
            with contextlib.suppress(ConnectionRefusedError):
                socket.create_connection(("127.0.0.2", port), timeout=60).close()
                return True
            time.sleep(0.05)
        return False

    def lives(self, name: str) -> bool:
        return self.started[name].poll() is None

    def last_words(self, name: str) -> str:
        """What `ray start` said, and what Ray's processes said that it started: the end of each file."""
        files = [self.log(name), *sorted((self.folder / name).glob("session_2*/logs/*"))]
        return "\n".join(f"{file}:\n{file.read_text(errors='replace')[-3000:]}" for file in files if file.is_file())

    def start(self, name: str, ip: str, *flags: str) -> None:
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", f"--node-ip-address={ip}", *flags]
        command += [f"--num-cpus={self.cpus}", "--object-store-memory=80000000", "--disable-usage-stats"]
        command += ["--include-log-monitor=false", f"--temp-dir={self.folder / name}"]
        command += ["--min-worker-port=0", "--max-worker-port=0"]
        paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
        limits = {"RAY_health_check_period_ms": "1000"}  # a killed node is missed after five of these
        limits["RAY_worker_niceness"] = "0"  # at Ray's 15, a busy machine gives its workers next to nothing
        limits |= dict.fromkeys(PATIENCE, "600") | {"RAY_health_check_timeout_ms": "600000"}
        # With gRPC's fork handlers, one client server in twenty dies as it is forked (Ray's issue 63202).
        limits["GRPC_ENABLE_FORK_SUPPORT"] = "0"
        limits["RAY_CLIENT_SERVER_CHECK_CHANNEL_TIMEOUT_S"] = limits["TIMEOUT_FOR_SPECIFIC_SERVER_S"] = "60"
        env = {**os.environ, **limits, "PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}
        env |= {DIARY: str(self.diaries), NODE: name}
        with self.log(name).open("wb") as log:
            node = subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True)
        self.started[name] = node

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def is_up(self, name: str) -> bool:
        """Once it has joined; not if it ends before."""
        while self.lives(name):
            if "Ray runtime started" in self.log(name).read_text():
                return True
            time.sleep(0.05)
        return False

    def kill(self, name: str) -> None:
        node = self.started.pop(name)
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):  # not a process, or one that has just ended
                session = (entry / "stat").read_text().rpartition(")")[2].split()[3]
                if int(session) == node.pid:
                    os.kill(int(entry.name), signal.SIGKILL)
        node.wait()

    def steps(self, seed: int) -> list[tuple[str, int, int]]:
        """The diary of a run: node, process, step."""
        file = self.diaries / f"seed-{seed}"
        lines = [line.split() for line in file.read_text().splitlines()] if file.exists() else []
        return [(node, int(process), int(step)) for node, process, step in lines]


@contextlib.contextmanager
def started_nodes(cpus: int = 1) -> Iterator[Nodes]:
    """A cluster of one node with so many cores; others may be started beside it."""
    if sys.platform != "linux":
        pytest.skip("two nodes on one machine need Linux: 127.0.0.3 answers there, and /proc tells whom to kill")
    folder = Path(tempfile.mkdtemp(prefix="op-", dir="/tmp"))  # short: Ray's sockets are in it
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("RAY_")]:
            patch.delenv(name)
        patch.setenv("RAY_AUTH_MODE", "token")  # Ray listens on every address of this machine
        patch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
        patch.setenv("RAY_TMPDIR", str(folder))
        nodes = Nodes(folder, cpus)
        try:
            nodes.start_head()
            yield nodes
        finally:
            for name in list(nodes.started):
                nodes.kill(name)
            shutil.rmtree(folder, ignore_errors=True)
