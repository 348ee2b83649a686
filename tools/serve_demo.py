"""A served model that knows nothing yet, and real digits arriving: open the address that is printed, and watch.

    python tools/serve_demo.py [--port N] [--rate SAMPLES_A_SECOND]

The digits are those of the package, in an order that brings two classes at a time. The model lies in a new folder,
which goes when the demonstration ends.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from onepass.data.digits import load
from onepass.live.model import Model
from onepass.live.state import save_model

METHOD, NET, MEMORY = "scr", "small-cnn", 200
TOGETHER = 4  # digits of a request


def stream() -> Iterator[tuple[Tensor, str]]:
    """Each training digit once: 0 and 1, then 2 and 3, and so on, the second half of each pair mixed with the next."""
    digits = load()
    rng = torch.Generator().manual_seed(0)
    place = digits.y // 2 + 1.2 * torch.rand(len(digits.y), generator=rng)
    for row in place.argsort().tolist():
        yield digits.x[row], digits.classes[int(digits.y[row])]


def picture(x: Tensor) -> str:
    content = io.BytesIO()
    Image.fromarray(x[0].numpy()).save(content, "PNG")
    return base64.b64encode(content.getvalue()).decode()


def post(address: str, token: str, items: list[dict[str, str]], key: str) -> bool:
    """Whether it was taken; False: the queue is full."""
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}", "Idempotency-Key": key}
    request = urllib.request.Request(f"{address}v1/learn", json.dumps({"items": items}).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=30):
            return True
    except urllib.error.HTTPError as error:
        if error.code != 429:
            raise SystemExit(f"the server refused a digit: {error.code} {error.read().decode()}") from error
        return False


def feed(address: str, token: str, rate: float, server: subprocess.Popen[str]) -> None:
    waiting: list[dict[str, str]] = []
    for n, (x, label) in enumerate(stream()):
        waiting.append({"image": picture(x), "label": label})
        if len(waiting) < TOGETHER:
            continue
        while server.poll() is None and not post(address, token, waiting, f"demo-{n}"):
            time.sleep(1)
        if server.poll() is not None:
            return
        waiting = []
        time.sleep(TOGETHER / rate)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--port", type=int, default=0, help="0: any that is free (default)")
    parser.add_argument("--rate", type=float, default=8.0, help="digits a second (default: 8)")
    values = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="onepass-demo-") as folder:
        path = Path(folder) / "digits.onepass"
        save_model(Model.create((1, 8, 8), method=METHOD, net=NET, memory=MEMORY), path)
        token = secrets.token_urlsafe(16)
        command = [sys.executable, "-m", "onepass", "serve", str(path), "--port", str(values.port)]
        environment = {**os.environ, "ONEPASS_TOKEN": token}
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as server:
            try:
                assert server.stdout is not None
                line = server.stdout.readline()
                print(line, end="", flush=True)
                if " at " in line:
                    feed(line.rsplit(" at ", 1)[1].partition("#")[0], token, values.rate, server)
                    print("all digits have arrived; Ctrl-C ends this", flush=True)
                return server.wait()
            except KeyboardInterrupt:
                return 130
            except urllib.error.URLError:
                return server.wait()  # it was stopped
            finally:
                server.send_signal(signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
