"""Ten seconds of mutated files, and the corpus; `make soak` goes on for as long as you like."""

from __future__ import annotations

import pytest

import fuzz


@pytest.mark.system
def test_mutated_files_are_read_or_refused_with_an_error_of_ours() -> None:
    counts = fuzz.fuzz(10, seed=2)
    assert not counts["foreign errors"]
    read = ("result", "model", "tree", "preset", "pickle", "png", "archive", "cache")
    assert all(counts[form] for form in (*read, "npz", "vectors", "npy", "csv"))
