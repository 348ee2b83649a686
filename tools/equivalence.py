"""bf16 beside fp32: paired differences of each method, and a test of equivalence for each stream."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from cells import rows
from onepass.bench import metrics
from onepass.bench.result import Result
from onepass.config import LearnerConfig
from onepass.report.series_names import title

STREAMS = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}
MARGIN = 0.01
LEVEL = 0.05  # of each of the two one-sided tests


def equivalence(low: Iterable[Result], full: Iterable[Result]) -> str:
    """Runs in bf16 minus those in fp32 with the same settings and seed."""
    known = {one.config: one.final_accuracy for one in full}
    found: dict[str, dict[str, list[float]]] = {name: {} for name in STREAMS}
    for one in low:
        config, settings = one.config, one.config.learner_config
        if not isinstance(settings, LearnerConfig):  # which trains no network
            continue
        twin = replace(config, settings=replace(settings, precision="fp32"))
        if twin in known:
            gain = one.final_accuracy - known[twin]
            found[config.stream].setdefault(config.method, []).append(gain)
    body = []
    for stream, by_method in found.items():
        body += [[STREAMS[stream], title(method), *_cells(gains)] for method, gains in by_method.items()]
        every = [gain for gains in by_method.values() for gain in gains]
        if len(by_method) > 1:
            body.append([STREAMS[stream], "**all**", *_cells(every), _verdict(every)])
    if not body:
        return "Not run yet."
    filled = [[*cells, *[""] * (6 - len(cells))] for cells in body]
    return rows(["stream", "method", "pairs", "bf16 minus fp32", "90 % interval", "equivalent within 1 point"], filled)


def interval(gains: Sequence[float]) -> tuple[float, float]:
    """Of the mean, at 90 %: both one-sided tests at 5 % reject where it lies within the margin."""
    from scipy.special import stdtrit

    n, centre = len(gains), metrics.mean(list(gains))
    spread = (sum((gain - centre) ** 2 for gain in gains) / (n - 1)) ** 0.5
    half = float(stdtrit(n - 1, 1 - LEVEL)) * spread / n**0.5
    return centre - half, centre + half


def _cells(gains: Sequence[float]) -> list[str]:
    if len(gains) < 3:
        return [str(len(gains)), ", ".join(f"{100 * gain:+.1f}" for gain in gains), "-"]
    low, high = interval(gains)
    return [str(len(gains)), f"{100 * metrics.mean(list(gains)):+.2f}", f"{100 * low:+.2f} to {100 * high:+.2f}"]


def _verdict(gains: Sequence[float]) -> str:
    if len(gains) < 3:
        return "too few"
    low, high = interval(gains)
    return "yes" if low > -MARGIN and high < MARGIN else "not shown"
