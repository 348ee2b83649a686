"""Stored results from Python: the name that stays."""

from onepass.bench.store import load_all

__all__ = ["load_all"]
