"""Task lists of one's own: which classes each task brings, as text or in a JSON file. Importing it imports no torch."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

from onepass.errors import UsageError

LARGEST = 1 << 20  # bytes of a file
EXPECTED = 'expected a list of tasks, each a list of classes by name or number, such as [["cat", "dog"], [3, 5]]'


def canonical(order: str) -> str:
    """A class order as text that says all: of a file (*.json) its contents. Equal lists are equal texts."""
    tasks = _in_file(Path(os.path.expanduser(order))) if order.endswith(".json") else parse(order)
    return order if tasks is None else _text(tasks)


def parse(order: str) -> list[list[str]] | None:
    """The classes of each task by name or number; None if the order lists no tasks."""
    if order.startswith("["):
        return _checked(_loaded(order, "class order"), "class order")
    if ";" not in order:
        return None
    tasks = [[word.strip() for word in task.split(",")] for task in order.split(";")]
    return _checked(tasks, "class order")


def _text(tasks: list[list[str]]) -> str:
    """cat,dog;ship,car where that can be read back, else JSON."""
    plain = ";".join(",".join(task) for task in tasks)
    if ";" in plain and not plain.startswith("[") and not plain.endswith(".json") and parse(plain) == tasks:
        return plain
    return json.dumps(tasks, ensure_ascii=False, separators=(",", ":"))


def _in_file(path: Path) -> list[list[str]]:
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # a pipe would keep us waiting
            raise UsageError(f"class order: expected a file of a task list, got {path}")
        with path.open("rb") as file:
            content = file.read(LARGEST + 1)
        if len(content) > LARGEST:
            raise UsageError(f"{path}: expected a task list of at most {LARGEST >> 20} MiB; it is larger")
        return _checked(_loaded(content.decode("utf-8-sig"), str(path)), str(path))
    except OSError as error:
        raise UsageError(f"class order: {path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: {EXPECTED}, got no UTF-8 text") from error


def _loaded(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where}: {EXPECTED}, got no JSON: {str(error)[:100]}") from error


def _checked(tasks: Any, where: str) -> list[list[str]]:
    if not isinstance(tasks, list) or not tasks or not all(isinstance(task, list) and task for task in tasks):
        raise UsageError(f"{where}: {EXPECTED}, with no list empty")
    words = [[str(word).strip() for word in task if _is_name(word)] for task in tasks]
    if [len(task) for task in words] != [len(task) for task in tasks] or not all(all(task) for task in words):
        raise UsageError(f"{where}: {EXPECTED}, got something else than a name or a number in it")
    return words


def _is_name(word: Any) -> bool:
    return isinstance(word, (str, int)) and not isinstance(word, bool)
