"""The command, as a person or a program meets it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import forked
from onepass.cli.main import COMMANDS, main
from onepass.learner.checks import PROMISES
from onepass.methods.registry import METHODS

ONEPASS = [sys.executable, "-m", "onepass.cli.main"]


def onepass(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = forked.Command(words, cwd)
    out, err = command.communicate()
    return subprocess.CompletedProcess(words, command.wait(), out, err)


def test_help_does_not_import_torch() -> None:
    program = (
        "import sys, onepass.cli.main as c\ntry: c.main(['--help'])\nexcept SystemExit: print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("False\n")
    for command in ("run", "compare", "methods", "streams", "check"):
        assert command in done.stdout


@pytest.mark.system
def test_json_is_one_document_and_nothing_else(tmp_path: Path) -> None:
    words = (
        "run",
        "er-fsl",
        "--memory",
        "30",
        "--runs",
        "2",
        "--seed",
        "4",
        "--gamma",
        "0.4",
        "--json",
        "--batch",
        "50",
    )
    done = onepass(*words, cwd=tmp_path)
    document = json.loads(done.stdout)
    assert [run["seed"] for run in document["runs"]] == [4, 5]
    wanted = {
        "method",
        "stream",
        "seed",
        "accuracy_matrix",
        "final_accuracy",
        "forgetting",
        "steps",
        "seconds",
        "config",
    }
    for run in document["runs"]:
        assert wanted <= set(run)
        assert run["config"]["settings"]["gamma"] == 0.4
        assert run["config"]["settings"]["memory"] == 30
        assert [len(row) for row in run["accuracy_matrix"]] == [1, 2, 3, 4, 5]
    mean = sum(run["final_accuracy"] for run in document["runs"]) / 2
    cell = document["summary"]["er-fsl"]["final_accuracy"]
    assert cell["n"] == 2
    assert cell["mean"] == pytest.approx(mean)
    assert cell["interval"] is None
    assert cell["values"] == [run["final_accuracy"] for run in document["runs"]]
    assert done.stderr.count("done (2 of 2)") == 1  # whichever of the two was last


def test_asking_again_answers_from_the_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", "finetune", "--batch", "50", "--out", str(tmp_path), "--json"]
    assert main(words) == 0
    first = json.loads(capsys.readouterr().out)
    result = next(tmp_path.rglob("result.json"))
    written = result.stat().st_mtime_ns
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out) == first
    assert result.stat().st_mtime_ns == written
    assert first["summary"]["finetune"]["final_accuracy"]["interval"] is None


@pytest.mark.system
def test_compare_ends_with_a_table_a_picture_and_where_they_are(tmp_path: Path) -> None:
    done = onepass("compare", "finetune", "er", "--batch", "50", "--runs", "2", "--out", "here", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for words in (
        "FINE-TUNE",
        "final accuracy %",
        "forgetting %",
        "±",
        "Chaudhry",
        "here/digits.md",
        "here/digits.png",
    ):
        assert words in done.stdout
    assert (tmp_path / "here/digits.png").read_bytes().startswith(b"\x89PNG")
    assert "| ER |" in (tmp_path / "here/digits.md").read_text()


def test_one_run_has_no_interval(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["run", "finetune", "--batch", "50", "--out", str(tmp_path)])
    [row] = [line for line in capsys.readouterr().out.splitlines() if "FINE-TUNE" in line]
    assert "±" not in row


def test_a_memory_for_a_method_without_one_is_not_used_and_said_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "finetune", "--memory", "30", "--batch", "50", "--out", str(tmp_path), "--json"]) == 0
    said = capsys.readouterr()
    assert "finetune: without a memory, --memory is not used" in said.err
    assert "memory" not in json.loads(said.out)["runs"][0]["config"]["settings"]


MISUSE = [
    (["run", "er-fls"], "unknown method 'er-fls'; did you mean 'er-fsl'?"),
    (["run", "er", "--gamma", "0.3"], "unknown argument '--gamma'; it is a setting of er-fsl"),
    (["run", "er", "--bogus"], "unknown argument '--bogus' ("),
    (["check", "mine.py"], "'mine.py' is a file: name the class in it, as mine:CLASS"),
    (["run", "er", "--out", __file__], "is a file: give a folder"),
    (["run", "er", "--stream", "./nowhere"], "nowhere does not exist: expected a folder of class/image.jpg"),
    (["run", "er", "--stream", __file__], "is a single file: expected a folder"),
    (["run", "er-fsl", "--gama", "0.3"], "unknown argument '--gama'; did you mean '--gamma'?"),
    (["run", "er-fsl", "--gamma", "1.5"], "gamma=1.5: must be at least 0 and at most 1"),
    (["run", "er-fsl", "--subspace", "101"], "subspace=101: the network has 100 features, so at most that many"),
    (["run", "er", "--memory", "0"], "memory=0: must be at least 1; finetune is the method without a memory"),
    (["run", "er", "--memory", "many"], "argument --memory: expected int, got 'many'"),
    (["run", "er", "--scope", "some"], "argument --scope: invalid choice: 'some'"),
    (["run", "er", "--stream", "digit"], "unknown stream 'digit'; did you mean 'digits'?"),
    (["run", "er", "--scenario", "iid+"], "unknown scenario 'iid+'; did you mean 'iid"),
    (["run", "er", "--scenario", "i-blurry-200-10"], "N and M are per cent"),
    (["run", "er", "--tasks", "0"], "tasks=0: must be at least 1"),
    (["run", "er", "--anytime", "0"], "anytime=0: must be at least 1"),
    (["run", "er", "--tasks", "11"], "11 tasks of 10 classes: give --tasks from 1 to 10"),
    (["run", "er", "--fraction", "0"], "fraction=0: must be above 0"),
    (["run", "er", "--class-order", "1,2,x"], "unknown class 'x'"),
    (["run", "er", "--class-order", "1,2,3"], "expected each of the 10 classes once"),
    (["run", "er", "--net", "resnet"], "unknown net 'resnet'; did you mean"),
    (["run", "er", "--runs", "0"], "argument --runs: expected a whole number from 1 on, got '0'"),
    (["run", "er", "--seed", "-1"], "seed=-1: must be at least 0"),
    (["run", "er", "--batch", "0"], "batch=0: must be at least 1"),
    (["run", "er", "--device", "cuda:77"], "torch finds no CUDA here; use --device cpu"),
    (["run", "er", "--device", "tpv"], "unknown device 'tpv'"),
    (["run"], "required: METHOD"),
    (["compare", "er", "er-axe"], "unknown method 'er-axe'"),
    (["rnu", "er"], "invalid choice: 'rnu'"),
    (["check", "nowhere:Thing"], "cannot load 'nowhere:Thing'"),
    (["check", "json:JSONDecoder"], "expected a subclass of onepass.Learner"),
    ([], "required: COMMAND"),
]


@pytest.mark.parametrize(("words", "complaint"), MISUSE)
def test_misuse_says_what_is_wrong_and_stores_nothing(
    words: list[str],
    complaint: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    said = capsys.readouterr()
    assert complaint in said.err
    assert "Traceback" not in said.err
    assert said.out == ""
    assert not list(tmp_path.iterdir())


def test_an_out_folder_that_cannot_be_written_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("in the way")
    assert main(["run", "finetune", "--out", str(tmp_path / "file" / "runs"), "--jobs", "1"]) == 1
    assert "cannot write" in capsys.readouterr().err


def test_a_method_is_explained_with_its_equation_needs_and_presets(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["methods", "der++"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("DER++ (derpp), NeurIPS 2020\n\nThe memory keeps with each sample the logits")
    for part in ("alpha MSE(", "logits per slot beyond", "boundaries  not needed", "0.2, 0.1 on cifar100", "1.5 times"):
        assert part in shown
    assert main(["methods", "ocm", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["settings"]["scale"]["presets"] == {"cifar100": 1.0, "mini-imagenet": 1.0}
    assert facts["boundaries"]
    assert main(["methods", "der"]) == 2
    assert "'der' means two methods" in capsys.readouterr().err


def test_every_method_is_explained_by_words_of_its_own_and_an_equation(capsys: pytest.CaptureFixture[str]) -> None:
    ideas = {}
    for name in METHODS:
        assert main(["methods", name, "--json"]) == 0
        ideas[name] = json.loads(capsys.readouterr().out)["idea"]
        words, _, equation = ideas[name].partition("\n\n")
        assert words
        assert " = " in equation, f"{name} has no equation"
    assert len(set(ideas.values())) == len(METHODS)


def test_the_list_of_methods_says_what_its_costs_are_of(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["methods"]) == 0
    assert "FLOPs / ER on cifar10" in capsys.readouterr().out
    assert main(["methods", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ocm"]["cost"] == "17.7"


def test_help_names_every_command_on_a_line_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    listed = re.findall(r"^  (\w+) {3,}\S", capsys.readouterr().out.split("positional")[0], re.MULTILINE)
    assert sorted(listed) == sorted(COMMANDS)


def test_help_names_defaults_where_they_differ_and_presets(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["compare", "scr", "pcr", "er-lode", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "(default: scr 0.1, pcr 0.09)" in shown
    assert "(default: 0.1, 0.05 on cifar100, 0.05 on mini-imagenet)" in shown


def test_a_methods_help_shows_its_settings_and_no_others(capsys: pytest.CaptureFixture[str]) -> None:
    shown = {}
    for method in METHODS:
        with pytest.raises(SystemExit):
            main(["run", method, "--help"])
        shown[method] = capsys.readouterr().out
    assert "--gamma" in shown["er-fsl"]
    assert "--gamma" not in shown["er"]
    assert "--combine" in shown["er"]
    assert "--combine" not in shown["er-fsl"]


def test_lists_are_tables_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    for command, name in (("methods", "er-fsl"), ("streams", "digits")):
        assert main([command]) == 0
        assert name in capsys.readouterr().out
        assert main([command, "--json"]) == 0
        assert name in json.loads(capsys.readouterr().out)


@pytest.mark.system
def test_a_reader_that_goes_away_is_no_error_of_ours(tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    for words in ("streams --json", "methods"):
        command = f"{' '.join(ONEPASS)} {words} | true"
        done = subprocess.run(["bash", "-c", command], cwd=tmp_path, env=env, capture_output=True, text=True)
        assert done.stderr == ""


@pytest.mark.system
def test_check_judges_a_learner_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from onepass.methods.er import ER\nclass Good(ER): pass\nclass Bad(ER):\n"
        "    def step(self, loss): return loss.detach()\n"
    )
    good = onepass("check", "mine:Good", cwd=tmp_path)
    assert (good.returncode, f"passes {len(PROMISES)} of {len(PROMISES)} contract checks" in good.stdout) == (0, True)
    bad = onepass("check", "mine:Bad", cwd=tmp_path)
    assert bad.returncode == 1
    assert "failed  learns" in bad.stdout


@pytest.mark.system
def test_compare_writes_the_formats_asked_for_and_differences_to_a_baseline(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["compare", "finetune", "er", "--memory", "30", "--batch", "50", "--runs", "2", "--jobs", "1"]
    asked = ["--baseline", "er", "--format", "tex", "csv", "svg", "--out", str(tmp_path)]
    assert main([*words, *asked]) == 0
    shown = capsys.readouterr().out
    assert "difference to ER" in shown
    assert "Holm-adjusted" in shown
    assert {path.name for path in tmp_path.glob("digits.*")} == {"digits.tex", "digits.csv", "digits.svg"}
    assert r"\toprule" in (tmp_path / "digits.tex").read_text()
    assert main([*words, "--baseline", "er", "--json", "--out", str(tmp_path)]) == 0
    document = json.loads(capsys.readouterr().out)
    tuned, er = (document["summary"][name]["final_accuracy"]["mean"] for name in ("finetune", "er"))
    assert document["differences"]["finetune"]["mean"] == pytest.approx(tuned - er)
    for wrong in ("gss", "err", "iid"):
        elsewhere = tmp_path / "untouched"
        assert main([*words, "iid", "--baseline", wrong, "--out", str(elsewhere)]) == 2
        assert "unknown" in capsys.readouterr().err
        assert not elsewhere.exists()
    assert main([*words[:-2], "--jobs", "-1", "--out", str(tmp_path)]) == 2
    assert "argument --jobs: expected a whole number from 0 on, got '-1'" in capsys.readouterr().err


def test_report_makes_one_page_of_stores_and_refuses_what_is_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "finetune", "--batch", "50", "--out", str(tmp_path / "runs")]) == 0
    page = tmp_path / "deep" / "report.html"
    assert main(["report", str(tmp_path / "runs"), "-o", str(page)]) == 0
    assert capsys.readouterr().out.endswith(f"1 run in {page}\n")
    assert page.read_text().startswith("<!doctype html>")
    assert main(["report", str(tmp_path / "nowhere")]) == 2
    assert "is no folder" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    assert main(["report", str(tmp_path / "empty")]) == 2
    assert "no stored runs" in capsys.readouterr().err


def test_a_preset_gives_settings_and_flags_win_over_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    preset = tmp_path / "mine.json"
    facts = {"method": "er", "stream": "digits", "settings": {"lr": 0.05, "combine": "sum"}}
    preset.write_text(json.dumps(facts))
    words = ["run", "er", "--batch", "50", "--memory", "30", "--preset", str(preset), "--out", str(tmp_path), "--json"]
    assert main([*words, "--lr", "0.02"]) == 0
    [found] = json.loads(capsys.readouterr().out)["runs"]
    used = found["config"]["settings"]
    assert (used["lr"], used["combine"], used["memory"]) == (0.02, "sum", 30)
    assert main(["run", "gss", "--preset", str(preset), "--out", str(tmp_path)]) == 2
    assert "is a preset of er, not of gss" in capsys.readouterr().err


@pytest.mark.system
def test_each_method_takes_its_own_preset(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for method, rate in (("er", 0.05), ("er-fsl", 0.03)):
        facts = {"method": method, "stream": "digits", "settings": {"lr": rate}}
        (tmp_path / f"{method}.json").write_text(json.dumps(facts))
    files = [str(tmp_path / f"{method}.json") for method in ("er", "er-fsl")]
    words = ["compare", "er", "er-fsl", "finetune", "--batch", "50", "--out", str(tmp_path), "--jobs", "1", "--json"]
    assert main([*words, "--preset", files[0], "--preset", files[1]]) == 0
    rates = [run["config"]["settings"]["lr"] for run in json.loads(capsys.readouterr().out)["runs"]]
    assert rates == [0.05, 0.03, 0.1]
    assert main([*words, "--preset", files[0], "--preset", files[0]]) == 2
    assert "is a second preset of er" in capsys.readouterr().err
