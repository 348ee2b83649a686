"""A real browser for the tests: the first of this machine that works; as a command, one is installed if none does.

    python tests/browser.py

Debian's Chromium is installed where that asks for no password, else Playwright's own is downloaded.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from playwright.sync_api import Error, sync_playwright

NAMES = ["chromium", "chromium-browser", "google-chrome"]
NAMES += ["/Applications/Google Chrome.app/Contents/MacOS/Google Chrome"]
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
FLAGS += ["--disable-component-update", "--disable-sync"]
HOW = "install Chromium or Chrome, or run `.venv/bin/python tests/browser.py`"
DOWNLOAD_SECONDS = 600


class NoBrowserError(Exception):
    pass


def start(play: Any) -> Any:
    """The first browser that starts and opens a file of ours: a snap, or what only stands for one, may not."""
    failures = []
    for path in [*filter(None, map(shutil.which, NAMES)), None]:
        try:
            browser = play.chromium.launch(executable_path=path, args=FLAGS, timeout=120_000)
            with tempfile.NamedTemporaryFile(suffix=".html") as file, browser.new_page() as tab:
                tab.goto(Path(file.name).as_uri())
            return browser
        except Error as error:
            failures.append(f"{path or 'Playwright’s own'}: {error.message.splitlines()[0]}")
    raise NoBrowserError(f"expected a browser that works, got none ({'; '.join(failures)}); {HOW}")


def missing() -> str:
    """Why no browser can be used, or nothing if one can."""
    with sync_playwright() as play:
        try:
            start(play)
        except NoBrowserError as error:
            return str(error)
    return ""


def root() -> list[str] | None:
    """What stands before a command for root; None if that needs a password."""
    if os.geteuid() == 0:
        return []
    sudo = ["sudo", "-n"]
    able = shutil.which("sudo") and subprocess.run([*sudo, "true"], capture_output=True).returncode == 0
    return sudo if able else None


def install() -> None:
    """Try to install a browser; whether one works now is for `missing` to say."""
    prefix = root() if shutil.which("apt-get") else None
    if prefix is not None:
        print("no browser yet: apt-get install chromium", flush=True)
        apt = [*prefix, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-qq"]
        for words in (["update"], ["install", "-y", "chromium"]):
            subprocess.run([*apt, *words], stdout=subprocess.DEVNULL)
        if not missing():
            return
    print("no browser yet: playwright install chromium", flush=True)
    command = [sys.executable, "-m", "playwright", "install", "--only-shell", "chromium"]
    command += ["--with-deps"] if prefix is not None else []  # the libraries that it needs come from apt-get
    process = subprocess.Popen(command, start_new_session=True)  # its children, which download, are ended with it
    try:
        process.wait(DOWNLOAD_SECONDS)
    except subprocess.TimeoutExpired:
        print(f"playwright install: given up after {DOWNLOAD_SECONDS} s", file=sys.stderr)
    finally:
        with suppress(OSError):  # all of them have ended
            os.killpg(process.pid, signal.SIGKILL)


def main() -> int:
    if not missing():
        return 0
    install()
    if not (problem := missing()):
        return 0
    print(f"tests in a browser {'fail' if os.environ.get('CI') else 'will be skipped'}: {problem}", file=sys.stderr)
    return 1 if os.environ.get("CI") else 0


if __name__ == "__main__":
    sys.exit(main())
