"""What the documents say is what is stored, and what they tell a newcomer to type works."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from onepass.checks import PROMISES, check_learner
from onepass.methods import METHODS, import_learner

ROOT = Path(__file__).resolve().parent.parent


def code(path: str, language: str = "python") -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / path).read_text(), re.DOTALL)


def test_figures_in_documents_come_from_stored_results() -> None:
    done = subprocess.run([sys.executable, "tools/docs.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_method_has_a_page_that_names_its_settings() -> None:
    for name in METHODS:
        page = name.replace("+", "p")
        assert f"(`{name}`)" in (ROOT / f"docs/methods/{page}.md").read_text().splitlines()[0]


@pytest.mark.system
def test_the_readmes_python_runs(tmp_path: Path) -> None:
    [program] = code("README.md")
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert len(program.splitlines()) <= 20


def test_the_method_in_the_guide_keeps_every_promise(tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "guide_method.py").write_text(code("docs/adding-a-method.md")[0])
    monkeypatch.syspath_prepend(tmp_path)
    check_learner(import_learner("guide_method:Emphasis"))
    assert "tries eighteen of them" in (ROOT / "docs/adding-a-method.md").read_text()
    assert len(PROMISES) == 18


def test_relative_links_lead_somewhere() -> None:
    for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), ROOT / "CONTRIBUTING.md"]:
        for target in re.findall(r"\]\(([^)#:]+)\)", path.read_text()):
            assert (path.parent / target).exists(), f"{path.name} links to {target}"
