"""It reports the errors of predictions of published runs, by suite.

Beside them it reports the errors of the simplest prediction, a constant utilisation, and how well the
predictions choose among layouts, beside the simplest rule.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import mean, median
from typing import Any

from simlab.spec.plan import Plan
from simlab.studies.published.ranks import Alternative, choice, rule_choice
from simlab.studies.published.runs import Result

Facts = dict[str, Any]
"""Counts of rows, and errors in percent, which are None if no row gives one."""


def suites(results: Iterable[Result]) -> dict[str, Facts]:
    """{suite: its figures}, where errors are in percent of the measured values.

    rows:          the number of rows that were predicted.
    skipped:       the id and the reason of each row that was not.
    mape:          the mean absolute error of the step times.
    max, bias:     the largest absolute error, and the mean error with its sign.
    constant_mape: the mean absolute error of the best constant utilisation, see `constant_mape`. A
                   simulator is of use only if it is better.
    memory_mape:   the mean absolute error of the peak memory.
    failed:        the number of predicted rows whose run failed. They have no step time, and count
                   for `fit_errors_pct` only.
    spearman, regret_pct, regret5_pct, fit_errors_pct:
                   how well the predictions choose among layouts that do the same work; see
                   `simlab.studies.published.ranks.Choice`.
    rule_...:      the same four figures of the rule "least TP x PP, then the largest microbatch".
    """
    by_suite = defaultdict(list)
    for result in results:
        by_suite[result.suite].append(result)
    return {suite: _errors(its) for suite, its in sorted(by_suite.items())}


def recorded(results: Iterable[Result]) -> list[Facts]:
    """The errors of the step times, in percent, by suite and kind of prediction, as
    `simlab.training.uncertainty` reads them."""
    groups = defaultdict(list)
    for its in results:
        if its.prediction and not its.failed:
            groups[its.suite, its.prediction.kind].append(round(100 * its.error, 1))
    return [
        {"suite": suite, **kind._asdict(), "errors_pct": errors}
        for (suite, kind), errors in sorted(groups.items())
    ]


def _errors(results: Sequence[Result]) -> Facts:
    """The figures of one suite, see `suites`."""
    predicted = [result for result in results if result.prediction]
    done = [result for result in predicted if not result.failed]
    skipped = [
        {"id": result.id, "reason": result.skipped} for result in results if not result.prediction
    ]
    facts = {
        "rows": len(predicted),
        "skipped": skipped,
        "mape": None,
        "max": None,
        "bias": None,
        "constant_mape": None,
        "memory_mape": None,
        "failed": len(predicted) - len(done),
        **_choices(predicted),
    }
    if not done:
        return facts
    errors = [100 * result.error for result in done]
    memory_errors = [result.memory_error for result in done if result.memory_gib]
    memory = [100 * abs(error) for error in memory_errors if error is not None]
    return facts | {
        "mape": mean(map(abs, errors)),
        "max": max(map(abs, errors)),
        "bias": mean(errors),
        "constant_mape": constant_mape(done),
        "memory_mape": mean(memory) if memory else None,
    }


def _choices(results: Sequence[Result]) -> Facts:
    """How well the predictions choose, and the rule; see `suites`."""
    rows = [
        Alternative(
            work=result.work,
            measured_s=result.measured_s,
            predicted_s=result.predicted.step_s,
            fits=result.predicted.fits,
            simplest=_simplest(result.predicted.plan),
        )
        for result in results
    ]
    ours, rules = vars(choice(rows)), vars(rule_choice(rows))
    return ours | {f"rule_{name}": value for name, value in rules.items()}


def _simplest(plan: Plan) -> tuple[int, int]:
    return plan.tp * plan.pp, -plan.microbatch_size


def constant_mape(results: Sequence[Result]) -> float:
    """The mean absolute error, in percent, of the best constant utilisation.

    A constant utilisation u predicts that a step takes hardware FLOPs / (u x the peak of all GPUs).
    One u is fitted to the measured step times of all `results`.
    """
    ideal_s = [r.predicted.hfu * r.predicted.step_s for r in results]  # at a utilisation of 1
    measured_s = [r.published_s for r in results]
    # The error is piecewise linear in 1/u, so it is the least at the utilisation of one of the rows.
    candidates = [ideal / measured for ideal, measured in zip(ideal_s, measured_s)]

    def error(utilisation: float) -> float:
        return mean(
            abs(ideal / utilisation / measured - 1) for ideal, measured in zip(ideal_s, measured_s)
        )

    return 100 * min(map(error, {*candidates, median(candidates)}))
