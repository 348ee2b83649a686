"""Runs know code of your own by what it does: comments, docstrings, layout and moved files change nothing."""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import json
import sys
from pathlib import Path
from typing import Any

from onepass.methods.registry import METHODS, import_learner
from onepass.names import import_path

VERSIONED = {"onepass", "torch", *sys.stdlib_module_names}  # a result tells their versions instead


def code_digest(method: str, *others: str) -> str:
    """A hash of the code that a method of your own and its base classes are in, and of that of a network or an
    augmentation of your own; empty for ours."""
    digests = [] if method in METHODS else [_digest(import_learner(method))]  # type: ignore[arg-type]  # classes have a hash
    digests += [_digest(import_path(name)) for name in others if ":" in name]
    return "-".join(digest for digest in digests if digest)


@functools.cache  # of the code as it was imported, whatever happens to its file afterwards
def _digest(code: Any) -> str:
    bases = code.__mro__ if isinstance(code, type) else [code]
    names = [getattr(base, "__module__", "") for base in bases]
    modules = dict.fromkeys(name for name in names if _package(name) not in VERSIONED)
    try:
        texts = [Path(inspect.getsourcefile(sys.modules[name]) or "").read_text(encoding="utf-8") for name in modules]
    except (OSError, TypeError, KeyError):  # typed in a notebook or an interpreter
        return ""
    return source_digest(*texts) if texts else ""


def source_digest(*texts: str) -> str:
    """A hash of the normalised source of some files."""
    return hashlib.sha256(json.dumps([_normalised(text) for text in texts]).encode()).hexdigest()


def _normalised(text: str) -> list[Any]:
    """The names that are imported and the package each comes from, in any order, then every other statement."""
    body = ast.parse(text).body
    imports = sorted({entry for node in body for entry in _imported(node)})
    return [imports, _plain(ast.Module([node for node in body if not _imported(node)], []))]


def _imported(node: ast.AST) -> list[tuple[str, ...]]:
    """Where in a package a name lies is left out, so that moving a module inside it changes nothing."""
    if isinstance(node, ast.ImportFrom):
        package = "." if node.level else _package(node.module or "")
        return [(package, alias.name, alias.asname or alias.name) for alias in node.names]
    if isinstance(node, ast.Import):
        return [(_package(alias.name), alias.asname or _package(alias.name)) for alias in node.names]
    return []


def _plain(value: Any) -> Any:
    """A syntax tree as lists: the same in every version of Python, without places in the file and docstrings."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if not isinstance(value, ast.AST):
        return value if isinstance(value, str | int | float | None) else repr(value)
    if imported := _imported(value):
        return imported
    fields = {name: part for name, part in ast.iter_fields(value) if part not in (None, []) and name != "kind"}
    body = fields.get("body")
    if isinstance(body, list) and _is_text(body[0]):
        fields["body"] = body[1:]
    return [type(value).__name__, {name: _plain(part) for name, part in fields.items()}]


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _package(module: str) -> str:
    return module.partition(".")[0]
