"""`onepass tune`: settings chosen by measurement, on images that are held back from learning."""

from __future__ import annotations

import json
import shlex
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from onepass.bench.metrics import Summary
from onepass.bench.presets import write_preset
from onepass.bench.run_config import MEASURES, RunConfig
from onepass.cli.console import console
from onepass.cli.flags import Parser, add_options, add_place, add_settings, count, given
from onepass.config import options
from onepass.errors import RunError, UsageError
from onepass.methods.registry import METHODS, canonical, method_class
from onepass.tuning.search import Record, Search, Tuning
from onepass.tuning.space import CONDITIONS, default_space, parse_search

STREAM = [name for name in options(RunConfig) if name not in ("validate", *MEASURES)]  # it decides these itself
ABOUT = """Choose a method's settings by its accuracy on a tenth of the training images, held back; the test images
are never used. The first trial is the defaults. Every trial is stored; the same command continues."""


def tune(command: str, words: Sequence[str]) -> None:
    named = [word for word in words[:1] if not word.startswith("-")] or [word for word in words if word in METHODS]
    parser = Parser(prog=f"onepass {command}", description=ABOUT)
    parser.add_argument("method", metavar="METHOD", help=", ".join(METHODS))
    _add_flags(parser)
    settings = add_settings(parser, {canonical(name): method_class(name).Config for name in named[:1]})
    values = parser.parse(words)
    chosen = given(values, settings)
    try:
        import optuna  # noqa: F401
    except ImportError:
        raise UsageError("onepass tune needs another package: pip install optuna") from None
    from onepass.cli.session import Session

    tuning, session = _tuning(values, chosen), Session(values)
    session.read([tuning.base])
    how = {name: getattr(values, name) for name in ("device", "checkpoint_seconds")}
    document = _watched(Search(tuning, values.out, datasets=session.datasets, **how), values)
    if values.save:
        fixed = {name: value for name, value in chosen.items() if name not in CONDITIONS}
        document["preset"] = str(_save(document, values, fixed, f"onepass {command} {shlex.join(words)}"))
    if values.json:
        print(json.dumps(document))
    else:
        _show(document)
        print(f"\ntrials  {values.out / tuning.name / 'tune.json'}")
        print(f"preset  {document['preset'] if values.save else '--save NAME writes the best settings for --preset'}")


def _tuning(values: Namespace, chosen: dict[str, Any]) -> Tuning:
    base = RunConfig(values.method, **given(values, STREAM), validate=True, settings=chosen).on(values.device)
    space = parse_search(values.search, base.learner_config, chosen) or default_space(base.learner_config, chosen)
    if not space:
        raise UsageError(f"{base.method}: all its own settings are given values; leave one to be searched")
    return Tuning(base, space, values.runs)


def _add_flags(parser: Parser) -> None:
    add = parser.add_argument
    add_options(parser, RunConfig, STREAM)
    add("--trials", type=count, default=20, metavar="N", help="trials in all, the defaults first (default: 20)")
    add("--runs", type=count, default=1, metavar="N", help="runs of each trial, seeds SEED, SEED+1, ... (default: 1)")
    forms = "only these: NAME, NAME=LOW:HIGH, NAME=LOW:HIGH:log or NAME=A,B,C (default: lr and the method's own)"
    add("--search", nargs="+", default=[], metavar="NAME=RANGE", help=forms)
    add("--save", metavar="NAME", help="write the chosen settings to OUT/NAME.json, or to a PATH.json, for --preset")
    add("--out", type=Path, default=Path("onepass-tune"), metavar="DIR", help="store of trials (default: %(default)s)")
    add_place(parser)
    add("--json", action="store_true", help="print one JSON document on stdout instead of the table")


def _watched(search: Search, values: Namespace) -> dict[str, Any]:
    """Bars on a terminal, a line per trial elsewhere; Ctrl-C stops between two steps."""
    from onepass.cli.progress import Display

    names = [f"trial {number}" for number in range(values.trials)]
    with Display(names) as display:

        def step(number: int, done: int, total: int) -> None:
            display.report(number, min(done, total - 1), total)  # it is done when it is recorded
            if display.stop():
                raise KeyboardInterrupt

        def finished(trial: Record) -> None:
            if trial["trial"] < values.trials:
                names[trial["trial"]] += f", {_outcome(trial)}"
                display.report(trial["trial"], 1, 1)

        search.step, search.finished = step, finished
        document = search.run(values.trials)
    if document["best"] is None:
        raise RunError(f"no trial could be finished; the first: {document['trials'][0]['note']}")
    return document


def _save(document: dict[str, Any], values: Namespace, fixed: dict[str, Any], command: str) -> Path:
    path = Path(values.save) if values.save.endswith(".json") else values.out / f"{values.save}.json"
    best, facts = document["best"], {name: document[name] for name in ("method", "stream")}
    accuracy = {"validation_accuracy": best["accuracy"], "n": len(best["accuracies"])}
    write_preset(path, {**facts, "settings": {**fixed, **best["settings"]}, "command": command, **accuracy})
    return path


def _outcome(trial: Record) -> str:
    return trial["state"] if trial["accuracy"] is None else f"{100 * trial['accuracy']:.1f} %"


def _show(document: dict[str, Any]) -> None:
    from rich import box
    from rich.table import Table

    from onepass.report.summary import cell

    table = Table(box=box.SIMPLE_HEAD)
    for heading in ("trial", "accuracy", *document["search"]):
        table.add_column(heading, justify="left" if heading == "trial" else "right")
    best, default = document["best"], document["default"]
    for trial in document["trials"]:
        mark = {best["trial"]: " best", 0: " defaults"}.get(trial["trial"], "")
        values = [f"{value:.3g}" if isinstance(value, float) else str(value) for value in trial["settings"].values()]
        table.add_row(f"{trial['trial']}{mark}", _outcome(trial), *values)
    console().print(table)
    for name, row in (("defaults", default), ("best", best)):
        if row:
            by_seed = " ".join(f"{100 * accuracy:.1f}" for accuracy in row["accuracies"])
            print(f"{name:9} {cell(Summary(**row['summary']))} %   by seed: {by_seed}")
    if default:
        print(f"gain      {cell(Summary(**document['gain']))} %   paired by seed")
    alone = "" if len(document["seeds"]) > 1 else "; one seed says nothing about the noise, --runs 5 does"
    print(f"Accuracy on a tenth of the training images{alone}.")
    print("The best was chosen by these numbers: expect less of it elsewhere.")
