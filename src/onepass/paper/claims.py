"""What the paper says about its tables and figures, as comparisons of two cells that can be tested on ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from onepass.bench.metrics import mean
from onepass.bench.result import Result

Side = tuple[str, str]  # a cell's tag, and a measure of the experiment or of the claim


@dataclass(frozen=True)
class Claim:
    """The first of two figures is the higher one."""

    text: str
    higher: Side
    lower: Side
    measures: Mapping[str, Callable[[Result], float | None]] = field(default_factory=dict)
    unit: float = 100  # accuracies are shown in per cent
    printed: Sequence[str] = ()  # where both figures stand outside a table: their names among the experiment's


@dataclass(frozen=True)
class Untested:
    """What no comparison of two cells can show, and why."""

    text: str
    reason: str


def _products(which: str, part: str) -> Callable[[Result], float]:
    """The mean over dimensions of the decomposed inner products after the second task, or after the first."""

    def measure(result: Result) -> float:
        if part == "first task":
            return mean(result.facts[0][which])
        values = result.facts[1][which]
        split = int(0.3 * len(values))
        chosen = {"all": values, "first": values[:split], "others": values[split:]}[part]
        return mean(chosen)

    return measure


ER_MEANS = ("er_mean_new", "er_mean_old")
PRODUCTS = {
    f"{which}, {part}": _products(which, part)
    for which in ("old", "new")
    for part in ("all", "first", "others", "first task")
}


def _product(text: str, cell: str, higher: str, lower: str, printed: Sequence[str] = ()) -> Claim:
    return Claim(text, (cell, higher), (cell, lower), PRODUCTS, unit=1, printed=printed)


def _than(text: str, higher: str, lower: str, measure: str = "all classes") -> Claim:
    return Claim(text, (higher, measure), (lower, measure))


CLAIMS: dict[str, list[Claim | Untested]] = {
    "table3": [
        _than("without L_c accuracy falls", "1", "2"),
        _than("without L_b accuracy falls", "1", "3"),
        _than("tested in the last subspace, old classes are known less", "1", "4", "old classes"),
        _than("one subspace for all tasks is worse", "1", "5"),
        _than("learning in the larger space and replaying in the smaller is worse", "1", "6"),
        _than("without gamma accuracy falls", "1", "7"),
    ],
    "table4": [
        _than("a larger subspace is better: d / T than a fifth of it", "51", "10", "final accuracy"),
        _than("twice d / T, which must reuse dimensions, is better than d / T", "100", "51", "final accuracy"),
        _than("beyond that accuracy tends to fall: four times d / T", "100", "200", "final accuracy"),
        _than("beyond that accuracy tends to fall: eight times d / T", "100", "400", "final accuracy"),
        Untested("that fall is not significant", "no run can show that there is none"),
    ],
    "figure2": [
        _than("after task 2, ER knows more than fine-tuning", "c", "b"),
        _than("learning in 0.3 of the features knows more than ER", "d", "c"),
        _product("after task 1, its samples point to its own classes", "c", "old, first task", "new, first task"),
        _product("fine-tuning: old samples point to new classes more than to old ones", "b", "new, all", "old, all"),
        Claim("ER improves the values for old classes", ("c", "old, all"), ("b", "old, all"), PRODUCTS, unit=1),
        _product("ER: those for new ones are still higher", "c", "new, all", "old, all", ER_MEANS),
        _product("0.3 of the features: those still point to new classes", "d", "new, first", "old, first"),
        _product("0.3 of the features: the others point to old ones", "d", "old, others", "new, others"),
        _than("fine-tuned in a tenth of the features, task 2 is known better", "e0.1", "e1", "new classes"),
        _than("and so is task 1 when learned", "e0.1", "e1", "first task when learned"),
        Untested("the fewer features, the less accuracy fluctuates", "what fluctuates is not said"),
        _than("ER in 0.3 of the features: all classes are known better", "f0.3", "f1"),
        _than("ER in 0.3 of the features: old classes are known better", "f0.3", "f1", "old classes"),
        Untested("which share it is matters little to old classes", "no run can show that there is no difference"),
    ],
    "figure6": [
        _than("a suitable gamma is better: 0.3 than 0.1", "0.3", "0.1"),
        _than("a suitable gamma is better: 0.3 than 0.9", "0.3", "0.9"),
        _than("also on old classes: 0.3 than 0.1", "0.3", "0.1", "old classes"),
        _than("also on new classes: 0.3 than 0.9", "0.3", "0.9", "new classes"),
    ],
}
