"""It says how well predictions choose among published layouts: rank, regret and fit.

A choice exists only among layouts that do the same work: the same model, sequence, batch and GPUs.
Rows of a suite that share these are one group of alternatives; figures are means over the groups.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import comb, sqrt
from statistics import mean

Key = float | tuple[int, int]
"""By what layouts are ordered: the least first."""


@dataclass(frozen=True, kw_only=True)
class Alternative:
    """One published layout, as a choice sees it."""

    work: Hashable
    """What the layout computes, and on what. Layouts with the same work are alternatives."""
    measured_s: float | None
    """The measured time of a step, in seconds; None if the layout failed."""
    predicted_s: float
    """The predicted time of a step, in seconds."""
    fits: bool
    """Whether the layout was predicted to fit into memory."""
    simplest: tuple[int, int]
    """The layout's place by the rule "least TP x PP, then the largest microbatch": the least first."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """How well an order of layouts agrees with the measured one. A figure is None where no group
    has layouts of which one is faster than another."""

    spearman: float | None
    """Spearman's rank correlation with the measured times: 1 if the order is the same."""
    regret_pct: float | None
    """How much longer the step of the first layout takes than that of the measured best, in
    percent."""
    regret5_pct: float | None
    """The same for the fastest of the first five layouts."""
    fit_errors_pct: float | None
    """The layouts that failed and were called feasible, or the reverse, in percent of all."""


def choice(alternatives: Iterable[Alternative]) -> Choice:
    """How well the predictions choose. The order is that of the predicted times of the layouts that
    ran, whether or not they were predicted to fit."""
    rows = list(alternatives)
    return _choice(rows, lambda row: row.predicted_s, lambda row: row.fits)


def rule_choice(alternatives: Iterable[Alternative]) -> Choice:
    """How well the rule "least TP x PP, then the largest microbatch" chooses, which knows neither the
    model nor the cluster. It calls every layout feasible."""
    return _choice(list(alternatives), lambda row: row.simplest, lambda row: True)


def _choice(
    rows: Sequence[Alternative],
    key: Callable[[Alternative], Key],
    feasible: Callable[[Alternative], bool],
) -> Choice:
    groups: dict[Hashable, list[tuple[Key, float]]] = defaultdict(list)
    for row in rows:
        if row.measured_s is not None:
            groups[row.work].append((key(row), row.measured_s))
    chosen = [group for group in groups.values() if len({time_s for _, time_s in group}) > 1]
    ranks = [rank_correlation(*zip(*group)) for group in chosen]
    correlations = [rank for rank in ranks if rank is not None]
    wrong = [feasible(row) != (row.measured_s is not None) for row in rows]
    return Choice(
        spearman=mean(correlations) if correlations else None,
        regret_pct=mean(regret_pct(group, 1) for group in chosen) if chosen else None,
        regret5_pct=mean(regret_pct(group, 5) for group in chosen) if chosen else None,
        fit_errors_pct=100 * mean(wrong) if wrong else None,
    )


def rank_correlation(keys: Sequence[Key], times_s: Sequence[float]) -> float | None:
    """Spearman's rank correlation of `keys` and `times_s`; equal values share the mean of their
    ranks. None if all values of either are equal."""
    left, right = _ranks(keys), _ranks(times_s)
    middle = mean(left)
    spread = sum((a - middle) ** 2 for a in left) * sum((b - middle) ** 2 for b in right)
    if not spread:
        return None
    return sum((a - middle) * (b - middle) for a, b in zip(left, right)) / sqrt(spread)


def _ranks(values: Sequence[Key]) -> list[float]:
    """[rank of each value], from 0; equal values share the mean of their ranks."""
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks, first = [0.0] * len(values), 0
    for _, its in groupby(order, key=values.__getitem__):
        equal = list(its)
        for index in equal:
            ranks[index] = first + (len(equal) - 1) / 2
        first += len(equal)
    return ranks


def regret_pct(group: Sequence[tuple[Key, float]], tried: int) -> float:
    """How much longer than the fastest the fastest of the first `tried` takes, in percent.

    group: (key, measured seconds) of each layout; those with the least key are tried first. Among
    layouts with the same key it is the mean over all orders, so that the order of a file is no hint.
    """
    best_s = found_s = float("inf")
    for _, its in groupby(sorted(group, key=lambda pair: pair[0]), key=lambda pair: pair[0]):
        times_s = sorted(time_s for _, time_s in its)
        best_s = min(best_s, times_s[0])
        if tried > 0:
            found_s = _mean_least([min(found_s, time_s) for time_s in times_s], tried)
            tried -= len(times_s)
    return 100 * (found_s / best_s - 1)


def _mean_least(ascending: Sequence[float], drawn: int) -> float:
    """The mean of the least of `drawn` values, over all ways to draw them."""
    count = len(ascending)
    if drawn >= count:
        return ascending[0]
    # The i-th value is the least if it is drawn and all others are drawn from those after it.
    ways = [comb(count - i - 1, drawn - 1) for i in range(count)]
    return sum(way * value for way, value in zip(ways, ascending)) / comb(count, drawn)
