"""`onepass cost`: training FLOPs and bytes beside ER's."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from onepass.cli.console import show
from onepass.cli.flags import Parser
from onepass.data.catalog import STREAMS
from onepass.methods.registry import METHODS
from onepass.names import NET_NAMES


def cost(command: str, words: Sequence[str]) -> None:
    about = "Training FLOPs a step and bytes, as ratios to ER's, beside the paper's table 5. Needs no data."
    parser = Parser(prog="onepass cost", description=about)
    parser.add_argument("methods", nargs="*", metavar="METHOD", help="default: all; " + ", ".join(METHODS))
    parser.add_argument("--stream", default="cifar10", help=f"{', '.join(STREAMS)} or a path (default: cifar10)")
    parser.add_argument("--net", default="", help=f"{', '.join(NET_NAMES)}, or MODULE:FACTORY (default: the stream's)")
    parser.add_argument("--memory", type=int, default=1000, metavar="N", help="samples in the memory (default: 1000)")
    parser.add_argument("--average", type=float, metavar="DECAY", help="with an average of the weights beside each")
    parser.add_argument("--data-dir", type=Path, metavar="DIR", help="where a path's array cache is")
    parser.add_argument("--json", action="store_true", help="one JSON document")
    values = parser.parse(words)
    import torch

    from onepass.cli.progress import Bar
    from onepass.paper.table5 import counted

    torch.set_num_threads(1)  # next to nothing is computed
    with Bar("counting") as bar:
        facts, table = counted(
            values.methods, values.stream, values.net, values.memory, values.average, values.data_dir, bar.report
        )
    if values.json:
        print(json.dumps(facts))
        return

    show(table)
