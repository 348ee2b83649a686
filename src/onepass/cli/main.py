"""The command. Torch is imported only when something is to be run."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress

from onepass import __version__
from onepass.cli import check, cost, data, learn, methods, model, report, reproduce, run, serve, signals, tune
from onepass.cli.console import prepare_output
from onepass.cli.flags import Parser
from onepass.cli.signals import handled, interrupt
from onepass.errors import BadCheckpoint, BadData, RunError, UsageError, lacks_memory, no_memory
from onepass.text import printable

OVERVIEW = """\
Online continual learning: measure methods on streams that are seen once, or keep a model that learns.

measure methods
  run          one method, over several seeds
  compare      several methods on equal streams, with paired tests
  report       all stored runs as one page
  reproduce    the paper's tables and figures
  tune         settings chosen on held-back images
  check        a learner of your own against the contract
  cost         FLOPs and bytes beside ER's
  methods      what there is, and what a method does
  streams      the data sets
  data         get and check data sets

keep a model
  learn        a folder of images into a model
  predict      classes of new images
  inspect      what a model knows
  forget       take samples back
  export       ONNX, torch.export, or a file for prediction alone
  serve        ask and teach it over HTTP and on a page
"""

EXAMPLES = """\
  onepass compare finetune er er-fsl --stream digits --memory 100 --runs 5
  onepass run er-fsl --stream digits --memory 100 --gamma 0.3 --subspace 20
  onepass run er-fsl --help        the settings of one method
  onepass methods er-fsl           what it does, needs and costs
  onepass cost er-fsl obc ocm      training FLOPs and bytes beside ER's and the paper's
  onepass reproduce table3 --scale tiny
  onepass report onepass-runs -o report.html
  onepass tune er-fsl --memory 100 --search lr gamma --trials 20
  onepass check mymodule:MyLearner
  onepass learn photos/ --model m.onepass --watch
  onepass predict m.onepass new/ --top 3
  onepass serve m.onepass --watch photos/
"""

COMMANDS: dict[str, Callable[[str, Sequence[str]], None]] = {
    "run": run.run,
    "compare": run.run,
    "methods": methods.methods,
    "streams": methods.streams,
    "data": data.data,
    "cost": cost.cost,
    "reproduce": reproduce.reproduce,
    "report": report.report,
    "tune": tune.tune,
    "check": check.check,
    "learn": learn.learn,
    "predict": model.predict,
    "inspect": model.inspect,
    "forget": model.forget,
    "export": model.export,
    "serve": serve.serve,
}


def main(arguments: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if arguments is None else arguments)
    sys.path.append("")  # a learner of your own may lie where you are; its neighbours hide nothing that is installed
    parser = Parser(prog="onepass", description=OVERVIEW, epilog="examples:\n" + EXAMPLES)
    parser.add_argument("--version", action="version", version=f"onepass {__version__}")
    parser.add_argument(
        "command",
        choices=list(COMMANDS),
        metavar="COMMAND",
        help="one of those above; onepass COMMAND --help shows its flags",
    )
    prepare_output()
    signals.from_now_on()
    try:
        with handled(interrupt):
            command = parser.parse(words[:1]).command
            COMMANDS[command](command, words[1:])
            sys.stdout.flush()
    except UsageError as error:
        return _say(error, 2)
    except (RunError, BadCheckpoint, BadData) as error:
        return _say(error, 1)
    except KeyboardInterrupt:
        name = "" if signals.received == signal.SIGINT else f" by {signals.received.name}"
        return _say(f"stopped{name}; the same command continues where it was", 128 + signals.received)
    except Exception as error:
        if lacks_memory(error):
            return _say(no_memory(error), 1)
        if isinstance(error, OSError):
            return _say_of_files(error)
        raise
    return 0


def _say_of_files(error: OSError) -> int:
    if error.filename is not None:
        return _say(f"{error.filename}: {error.strerror}", 1)
    # No file of ours: what we were told to print to is closed or full.
    with suppress(OSError, ValueError):  # Python would complain again when it flushes at its exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    if isinstance(error, BrokenPipeError):  # whoever read our output has gone
        return 1
    return _say(f"cannot print the result: {error}; what was trained is stored, the same command shows it", 1)


def _say(what: object, code: int) -> int:
    with suppress(OSError):
        print(f"onepass: {printable(str(what))}", file=sys.stderr)
    return code


def command() -> int:
    """The whole process."""
    code = main()
    signals.at_once()
    return code


if __name__ == "__main__":
    sys.exit(command())
