"""ER-FSL against the other rows of table 1, worked out by hand."""

from __future__ import annotations

from helpers import result_of
from onepass.bench.result import Result
from onepass.bench.run_config import RunConfig
from verdicts import verdicts


def runs(method: str, last: list[float], average: list[float]) -> list[Result]:
    settings = {"average": 0.98, **({"memory": 1000} if method not in ("finetune", "iid++") else {})}
    return [
        result_of(RunConfig(method, "cifar100", seed=seed, settings=settings), *finals)
        for seed, finals in enumerate(zip(last, average, strict=True))
    ]


def test_each_row_has_its_paired_difference_its_power_and_a_verdict() -> None:
    found = [
        *runs("er-fsl", [0.20, 0.22, 0.24], [0.30, 0.31, 0.32]),
        *runs("er", [0.10, 0.11, 0.15], [0.20, 0.21, 0.22]),
        *runs("pcr", [0.22, 0.20, 0.25], [0.31, 0.30, 0.33]),
        *runs("finetune", [0.05], [0.06]),
        *runs("iid++", [0.5], [0.5]),
    ]
    told = {line.split(" | ")[0].removeprefix("| "): line.split(" | ")[1:] for line in verdicts(found).splitlines()[2:]}
    assert set(told) == {"FINE-TUNE", "ER", "PCR"}, "references see another stream"
    # 10, 11 and 9 points: mean 10, deviation 1, t = 4.302653, half 2.484
    assert told["ER"][:2] == ["+10.9", "+10.0 ± 2.5 (3)"]
    assert told["ER"][3] == "held"
    assert told["ER"][4] == "+10.0 ± n/a (3) |"
    assert told["PCR"][3].startswith("undecided; in the mean not as claimed; 3 runs detect no less than")
    assert told["FINE-TUNE"][3] == "as claimed in one run; no test"
    assert verdicts([]) == "Not run yet."
