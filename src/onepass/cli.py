"""The command. Flags come from the settings' dataclasses; torch is imported only when something is to be run."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from onepass import __version__, commands
from onepass.config import LearnerConfig
from onepass.data.catalog import STREAMS
from onepass.errors import BadCheckpoint, BadData, RunError, UsageError
from onepass.flags import Parser, add_bad_images, add_settings, fields
from onepass.methods import METHODS, canonical, method_class

EXAMPLES = """\
  onepass compare finetune er er-fsl --stream digits --memory 100 --runs 5
  onepass run er-fsl --stream digits --memory 100 --gamma 0.3 --subspace 20
  onepass run er-fsl --help        the settings of one method
  onepass methods er-fsl           what it does, needs and costs
  onepass cost er-fsl obc ocm      training FLOPs and bytes beside ER's and the paper's
  onepass check mymodule:MyLearner
"""


def main(arguments: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if arguments is None else arguments)
    sys.path.insert(0, "")  # a learner of your own may lie where you are
    known = {
        "run": _run,
        "compare": _run,
        "methods": commands.methods,
        "streams": commands.streams,
        "data": commands.data,
        "cost": commands.cost,
        "check": commands.check,
    }
    parser = Parser(prog="onepass", description="Online continual learning.", epilog="examples:\n" + EXAMPLES)
    parser.add_argument("--version", action="version", version=f"onepass {__version__}")
    parser.add_argument(
        "command",
        choices=list(known),
        metavar="COMMAND",
        help="run: one method; compare: several, paired; methods, streams: what there is; "
        "data: get and check data sets; cost: FLOPs and bytes beside ER's; "
        "check: a learner of your own against the contract",
    )
    try:
        command = parser.parse(words[:1]).command
        known[command](command, words[1:])
    except UsageError as error:
        print(f"onepass: {error}", file=sys.stderr)
        return 2
    except (RunError, BadCheckpoint, BadData) as error:
        print(f"onepass: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nonepass: stopped; the same command continues where it was", file=sys.stderr)
        return 130
    return 0


def _run(command: str, words: Sequence[str]) -> None:
    names = _method_names(words)
    configs = {name: method_class(name).Config for name in names}
    prog = " ".join(["onepass", command, *(names if command == "run" else [])])
    parser = Parser(prog=prog, description=_describe(command, names))
    parser.add_argument("methods", nargs=1 if command == "run" else "+", metavar="METHOD", help=", ".join(METHODS))
    _add_run_flags(parser)
    settings = add_settings(parser, configs)
    values = parser.parse(words)
    given = {name: value for name in settings if (value := getattr(values, name)) is not None}
    for name in given:
        if configs and not any(name in fields(config) for config in configs.values()):
            print(f"{', '.join(configs)}: without a memory, --{name} is not used", file=sys.stderr)
    _execute(values, configs, given)


def _execute(values: argparse.Namespace, configs: dict[str, type[LearnerConfig]], given: dict[str, Any]) -> None:
    from onepass.logs import check_log
    from onepass.results import RunConfig

    check_log(values.log)
    if values.runs < 1 or values.jobs < 0:
        raise UsageError(f"--runs {values.runs} --jobs {values.jobs}: at least one run, and no negative number of jobs")
    runs = [
        RunConfig(
            method,
            stream=values.stream,
            seed=values.seed + number,
            net=values.net,
            batch=values.batch,
            tasks=values.tasks,
            scenario=values.scenario,
            class_order=values.class_order,
            fraction=values.fraction,
            image_size=values.image_size,
            validate=values.validate,
            anytime=values.anytime,
            prequential=values.prequential,
            settings={name: value for name, value in given.items() if name in fields(config)},
        )
        for method, config in configs.items()
        for number in range(values.runs)
    ]
    from onepass import report
    from onepass.data.catalog import load
    from onepass.executors import run_many
    from onepass.progress import Bar, Display

    with Bar("reading images, the first time only") as bar:
        options = {"root": values.data_dir, "image_size": values.image_size, "bad_images": values.bad_images}
        load(runs[0].stream, **options, progress=bar.report)
    with Display([f"{run.method} seed {run.seed}" for run in runs]) as display:
        results = run_many(
            runs,
            values.out,
            jobs=values.jobs,
            data_dir=values.data_dir,
            device=values.device,
            checkpoint_seconds=values.checkpoint_seconds,
            log=values.log,
            report=display.report,
            stop=display.stop,
        )
    if values.json:
        print(json.dumps(report.document(results)))
        return
    from rich.console import Console

    paths = report.write(results, values.out)
    Console(width=None if sys.stdout.isatty() else 120).print(report.table(results))
    print(f"{report.NOTE}\n\ntable    {paths[0]}\npicture  {paths[1]}\nruns     {values.out}")


def _method_names(words: Sequence[str]) -> list[str]:
    """The methods named on the command line: the words before the first flag, else those that are known."""
    leading = []
    for word in words:
        if word.startswith("-"):
            break
        leading.append(word)
    return list(dict.fromkeys(map(canonical, leading or [word for word in words if word in METHODS])))


def _describe(command: str, names: Sequence[str]) -> str:
    known = "\n".join(f"  {name:10} {method.about}" for name, method in METHODS.items() if not names or name in names)
    what = "Train and measure a method over several runs." if command == "run" else "Several methods on equal streams."
    more = "" if names else f"\n\nA method's own settings: onepass {command} METHOD --help"
    return f"{what} Stored runs are not trained again; a stopped command continues.\n\n{known}{more}"


def _add_run_flags(parser: Parser) -> None:
    add = parser.add_argument
    names = ", ".join(STREAMS)
    add("--stream", default="digits", help=f"{names}, or a path to a folder of images or an .npz (default: digits)")
    add("--tasks", type=int, default=0, metavar="N", help="number of tasks (default: the stream's, as in the paper)")
    add(
        "--scenario",
        default="",
        help="class-incremental, task-free, iid, iid++ or i-blurry-N-M, such as i-blurry-50-10 (default: the method's)",
    )
    add(
        "--class-order",
        default="shuffled",
        help="shuffled (by the seed), fixed, or every class as a,b,c",
    )
    add("--fraction", type=float, default=1.0, metavar="F", help="share of every class's training images (default: 1)")
    add("--image-size", type=int, default=0, metavar="N", help="side of the images (default: as they come)")
    add(
        "--validate",
        action="store_true",
        help="measure on a tenth of the training images, held back",
    )
    add(
        "--data-dir",
        type=Path,
        metavar="DIR",
        help="where data sets are (default: $ONEPASS_DATA, else ~/.cache)",
    )
    add("--runs", type=int, default=1, metavar="N", help="runs, with seeds SEED, SEED+1, ... (default: 1)")
    add("--seed", type=int, default=0, help="first seed; equal seeds mean equal streams (default: 0)")
    add("--net", default="", help="resnet18, slim-resnet18 or small-cnn (default: the stream's)")
    add("--batch", type=int, default=10, metavar="N", help="new samples in each step (default: 10)")
    add("--jobs", type=int, default=0, metavar="N", help="runs side by side (default: one for each core)")
    add("--device", default="cpu", help="cpu, cuda or cuda:N (default: cpu)")
    add("--out", type=Path, default=Path("onepass-runs"), metavar="DIR", help="store of runs (default: %(default)s)")
    add(
        "--checkpoint-seconds",
        type=float,
        default=30.0,
        metavar="S",
        help="a killed run loses at most so many seconds of work (default: 30)",
    )
    add(
        "--anytime",
        type=int,
        default=0,
        metavar="K",
        help="also measure every K steps, on the first 100 test images of each class (default: after tasks only)",
    )
    add("--prequential", action="store_true", help="also predict each batch before it is learned")
    add("--log", default="", metavar="tensorboard", help="curves of every run for TensorBoard, in its folder")
    add_bad_images(parser)
    add("--json", action="store_true", help="print one JSON document on stdout instead of the table")


if __name__ == "__main__":
    sys.exit(main())
