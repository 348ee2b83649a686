"""Runs side by side in worker processes.

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

from onepass.bench import store
from onepass.bench.result import Result
from onepass.executors.protocol import Work
from onepass.host import cores


def pool(work: Work) -> dict[int, Result | str]:
    return Pool(work).run()


class Pool:
    """A thread per worker process: it hands over the next waiting run and passes on what the worker says."""

    def __init__(self, work: Work) -> None:
        self.work, self.waiting = work, list(work.waiting)
        self.outcomes: dict[int, Result | str] = {}
        self.workers: set[subprocess.Popen[str]] = set()
        self.stopping = False

    def run(self) -> dict[int, Result | str]:
        jobs = min(self.work.jobs or cores(), len(self.waiting))
        threads = [threading.Thread(target=self._serve, daemon=True) for _ in range(jobs)]
        for thread in threads:
            thread.start()
        signalled = 0.0
        while any(thread.is_alive() for thread in threads):
            time.sleep(0.05)
            self.stopping = self.stopping or self.work.stop()
            if self.stopping and time.monotonic() - signalled > 0.5:  # again: one that just starts may not hear yet
                signalled = time.monotonic()
                for worker in list(self.workers):  # each saves its state between two steps, then ends
                    worker.send_signal(signal.SIGINT)
        if self.stopping:
            raise KeyboardInterrupt
        return self.outcomes

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
        env["OMP_NUM_THREADS"] = str(self.work.threads)
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
        work, config = self.work, self.work.configs[index]
        asked = {"config": config.to_json(), "out": str(work.out), "threads": work.threads, **work.options}
        try:
            worker.stdin.write(json.dumps(asked) + "\n")
            worker.stdin.flush()
            for line in worker.stdout:
                message = json.loads(line)
                if "done" in message:
                    work.report(index, message["done"], message["total"], message["news"])
                    continue
                self.outcomes[index] = message["error"] or self._fetch(index)
                if not message["error"]:
                    work.report(index, 1, 1)  # if another process did it, there were no steps
                return True
        except BrokenPipeError:
            pass
        code = worker.wait()
        if not self.stopping:
            self.outcomes[index] = (
                f"{work.name(index)}: its worker ended with code {code} (killed? out of memory?); "
                "the same command continues it from its last checkpoint"
            )
        return False

    def _fetch(self, index: int) -> Result | str:
        """What the worker stored, as it is: a file that is changed from now on counts from the next time on."""
        place = store.folder(self.work.out, self.work.configs[index])
        result = store.load_result(place, self.work.configs[index], quiet=True)
        return f"{self.work.name(index)}: {place} is gone or was changed just now" if result is None else result
