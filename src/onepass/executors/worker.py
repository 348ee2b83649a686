"""A worker process: takes runs as JSON lines on stdin, says on stdout how far they are and how they ended."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from types import FrameType

from onepass.errors import explain


def main() -> None:
    voice = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever else prints goes to stderr
    stop = False

    def on_interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal stop
        stop = True

    for name in ("SIGINT", "SIGTERM", "SIGHUP"):  # a scheduler may tell every process of a job
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), on_interrupt)

    import torch

    from onepass.bench.run_config import RunConfig
    from onepass.bench.runner import run
    from onepass.data.catalog import Datasets
    from onepass.executors.protocol import News

    said, news = 0.0, News()

    def progress(done: int, total: int) -> None:
        nonlocal said
        if stop:
            raise KeyboardInterrupt
        if time.monotonic() - said >= 0.1 or done == total:
            said = time.monotonic()
            print(json.dumps({"done": done, "total": total, "news": str(news)}), file=voice)

    datasets: Datasets | None = None  # of the one command that this worker works for
    for line in sys.stdin:
        message = json.loads(line)
        config, out, threads = message.pop("config"), message.pop("out"), message.pop("threads")
        torch.set_num_threads(threads)
        datasets = datasets or Datasets(message["data_dir"], rescan=False)
        news = News()
        try:
            run(RunConfig(**config), out, datasets=datasets, progress=progress, callback=news, **message)
            answer = {"error": ""}
        except KeyboardInterrupt:
            return
        except Exception as error:  # whatever happens to one run, the others go on
            answer = {"error": explain(f"{config['method']} seed {config['seed']}", error)}
        print(json.dumps(answer), file=voice)


if __name__ == "__main__":
    try:
        main()
    except BrokenPipeError:  # the caller is gone
        os._exit(1)
