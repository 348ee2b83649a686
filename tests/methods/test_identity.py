"""What a run knows of the code of a method of one's own."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from onepass.methods.identity import code_digest, source_digest

MINE = '''"""A method of mine."""
import torch
from onepass.methods.er import ER


class Mine(ER):
    """Half of ER's loss."""

    def loss(self, batch, replay):
        """Docstrings say what, not how."""
        return 0.5 * super().loss(batch, replay)  # half
'''


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("  # half", ""),
        ("class Mine", "# a comment\nclass Mine"),
        ("Half of ER's loss.", "The loss, halved."),
        ('        """Docstrings say what, not how."""\n', ""),
        ("import torch\nfrom onepass.methods.er import ER", "from onepass.methods.er import ER\nimport torch"),
        ("from onepass.methods.er import", "from onepass.rooms.somewhere.er import"),
        ("super().loss(batch, replay)", "super().loss(\n            batch,\n            replay,\n        )"),
    ],
)
def test_what_does_nothing_changes_nothing(before: str, after: str) -> None:
    assert before in MINE
    assert source_digest(MINE.replace(before, after)) == source_digest(MINE)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("0.5", "0.25"),
        ("class Mine", "SCALE = 1\n\n\nclass Mine"),
        ("self, batch, replay", "self, batch, replay, more=None"),
        ("from onepass.methods.er import ER", "from onepass.methods.mir import MIR as ER"),
        ("from onepass.methods.er import ER", "from mine.methods.er import ER"),
        ("0.5 *", "0.5 +"),
    ],
)
def test_what_does_something_changes_it(before: str, after: str) -> None:
    assert before in MINE
    assert source_digest(MINE.replace(before, after)) != source_digest(MINE)


def test_the_hash_is_the_same_in_every_version_of_python() -> None:
    known = "0d68a280f25761e86b6b453e681993c29ea0d71fe19520f72a642a80477d8ca0"
    assert source_digest(MINE) == known


def test_a_base_class_of_ones_own_counts_and_ours_do_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base, child = "identity_base", "identity_child"
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / f"{base}.py").write_text(MINE)
    (tmp_path / f"{child}.py").write_text(f"from {base} import Mine\n\n\nclass Child(Mine):\n    pass\n")
    first = code_digest(f"{child}:Child")
    for name in (base, child):
        sys.modules.pop(name)
    (tmp_path / f"{base}.py").write_text(MINE.replace("0.5", "0.25"))
    importlib.invalidate_caches()
    assert first != code_digest(f"{child}:Child")
    assert code_digest("onepass.paper.analysis:Analysis") == ""
    assert code_digest("er") == ""
