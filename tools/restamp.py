"""Bring stored runs of version 0.1.0 to this version's format, in place.

    python tools/restamp.py FOLDER...

Results are read as `onepass.bench.upgrade` reads them and written as they would be stored now; a run whose settings
have other names now moves to the folder of its new key. And version 0.1.0 knew a method of one's own by the bytes of
its file, since then by what the code does (`onepass.methods.identity`): the file of those bytes is looked up in this
repository's history, and the run is stamped with what that file and those of its base classes did at that time.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from onepass.bench import store
from onepass.bench.result import FORMAT, Result
from onepass.methods.identity import source_digest

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "studies/er_fsl_plus"))  # stored runs name its learners
BASES = {"once": ("once", "candidates")}  # modules of one's own that a learner is made of, as its class lists them


def history() -> dict[str, tuple[str, str]]:
    """By the hash of its bytes, the commit and the path of every Python file that was ever committed here."""
    found = {}
    for commit in _git("log", "--all", "--format=%H").decode().split():
        for line in _git("ls-tree", "-r", commit, "--", "benchmarks", "studies").decode().splitlines():
            blob, path = line.split()[2], line.split("\t")[1]
            if path.endswith(".py") and blob not in _seen:
                _seen.add(blob)
                found[hashlib.sha256(_git("cat-file", "blob", blob)).hexdigest()] = (commit, path)
    return found


_seen: set[str] = set()


def _git(*words: str) -> bytes:
    return subprocess.run(["git", "-C", str(ROOT), *words], check=True, capture_output=True).stdout


def code_then(commit: str, path: str) -> str:
    """What the learner in a file of a commit did."""
    folder, name = Path(path).parent, Path(path).stem
    files = [f"{commit}:{folder / module}.py" for module in BASES.get(name, (name,))]
    return source_digest(*(_git("show", file).decode() for file in files))


def restamped(values: dict[str, Any], files: dict[str, tuple[str, str]]) -> Result:
    result = Result.from_json(values, allow=[values["config"]["method"]])  # ours
    code = result.protocol.pop("code", "")
    if not result.config.method.startswith("onepass.") and code:
        result.protocol["code"] = code_then(*files[code]) if code in files else code
    return result


def main(folders: list[str]) -> None:
    found = [file for folder in folders for file in sorted(Path(folder).rglob("result.json"))]
    files, changed = history(), 0
    for file in found:
        values = json.loads(file.read_text(encoding="utf-8"))
        if values.get("format") == FORMAT:
            continue
        result, out = restamped(values, files), file.parents[2]
        place = store.folder(out, result.config)
        if place != file.parent:
            place.parent.mkdir(exist_ok=True)
            if place.exists():  # brought in before
                shutil.rmtree(file.parent)
            else:
                shutil.move(file.parent, place)
            if not any(file.parents[1].iterdir()):
                file.parents[1].rmdir()
        store.save_result(place, result)
        changed += 1
    print(f"{changed} of {len(found)} results brought to format {FORMAT}")


if __name__ == "__main__":
    main(sys.argv[1:])
