"""Stamp stored runs anew where a version knows them by another name than the one that stored them.

    python tools/restamp.py FOLDER...

Version 0.1.0 knew a method of one's own by the bytes of its file; since then it is known by what the code does
(`onepass.methods.identity`). The file of those bytes is looked up in this repository's history, and the run is stamped
with what that file did, which is what the file of today does if only its comments have changed.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from onepass.bench.store import sign
from onepass.methods.identity import source_digest

ROOT = Path(__file__).resolve().parent.parent


def history() -> dict[str, str]:
    """By the hash of its bytes, the text of every Python file that was ever committed here."""
    listed = _git("rev-list", "--all", "--objects").decode().splitlines()
    blobs = [line.split()[0] for line in listed if line.endswith(".py")]
    texts = (_git("cat-file", "blob", blob) for blob in dict.fromkeys(blobs))
    return {hashlib.sha256(text).hexdigest(): text.decode() for text in texts}


def _git(*words: str) -> bytes:
    return subprocess.run(["git", "-C", str(ROOT), *words], check=True, capture_output=True).stdout


def restamped(values: dict[str, Any], texts: dict[str, str]) -> dict[str, Any]:
    """A result as this version would have stored it."""
    protocol = dict(values.get("protocol", {}))
    code = protocol.pop("code", "")
    if code in texts and not values["config"]["method"].startswith("onepass."):
        protocol["code"] = source_digest(texts[code])
    elif code and not values["config"]["method"].startswith("onepass."):
        protocol["code"] = code  # of this version already, or of a file that was never committed
    return {**values, "protocol": protocol} if "protocol" in values else values


def main(folders: list[str]) -> None:
    files = [file for folder in folders for file in sorted(Path(folder).rglob("result.json"))]
    texts = history()
    changed = 0
    for file in files:
        values = json.loads(file.read_text(encoding="utf-8"))
        new = restamped(values, texts)
        if new != values:
            file.write_text(sign(new), encoding="utf-8")
            changed += 1
    print(f"{changed} of {len(files)} results stamped anew")


if __name__ == "__main__":
    main(sys.argv[1:])
