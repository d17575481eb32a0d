"""The command validate: published training runs, predicted."""

import argparse
from typing import Annotated, Any, NotRequired, TypedDict

from simlab.cli.options import add_json_options, add_picture_option
from simlab.cli.output import print_json, print_table, print_text, progress, write_picture
from simlab.errors import InputError
from simlab.spec.model import MFU_ATTENTION
from simlab.studies.published.errors import suites
from simlab.studies.published.runs import RUNS, RUNS_2026, Result, read_runs, result_of
from simlab.training import Waterfall
from simlab.units import seconds_text
from simlab.views.charts.amounts import runs_chart

HEAD = ("suite", "rows", "skip", "MAPE%", "max%", "bias%", "constant%", "memory%")
CHOICE_HEAD = ("suite", "rank", "rule", "lost%", "rule", "of 5%", "rule", "fit%", "rule")
CHOICE = ("spearman", "regret_pct", "regret5_pct", "fit_errors_pct")


class Skip(TypedDict):
    """A row that was not predicted."""

    id: str
    reason: str


class Suite(TypedDict):
    """The figures of a suite, see `simlab.studies.published.errors.suites`."""

    rows: int
    skipped: int
    mape: float | None
    max: float | None
    bias: float | None
    constant_mape: float | None
    memory_mape: float | None
    failed: int
    spearman: float | None
    regret_pct: float | None
    regret5_pct: float | None
    fit_errors_pct: float | None
    rule_spearman: float | None
    rule_regret_pct: float | None
    rule_regret5_pct: float | None
    rule_fit_errors_pct: float | None
    skips: list[Skip]


class SkippedRow(TypedDict):
    """A row that was not predicted, and why."""

    id: str
    suite: str
    skipped: str


class PredictedRow(TypedDict):
    """A row beside its prediction; a run that failed has no measured step."""

    id: str
    suite: str
    measured_s: float | None
    predicted_s: float
    error_pct: float | None
    waterfall_s: Annotated[dict[str, float], Waterfall]
    mfu: float
    mfu_attention: str
    memory_gib: float
    measured_memory_gib: float | None
    fits: bool
    failed: bool


class Answer(TypedDict):
    """Every suite, and with `--rows` every row."""

    suites: dict[str, Suite]
    rows: NotRequired[list[PredictedRow | SkippedRow]]


def validate(arguments: argparse.Namespace) -> int:
    """Predict measured runs and say how far off each suite is.

    The figures are percentages of the measured step times; constant% is the mean error of the best
    constant utilisation, memory% that of the peak memory where it was published.

    A second table says how well the predictions choose among layouts that do the same work, each
    figure beside that of the rule "least TP x PP, then the largest microbatch". rank is Spearman's
    rank correlation; lost% is how much longer the step of the predicted best takes than that of the
    measured best, of 5% the same for the best of the first five; fit% is the share of layouts that
    failed and were called feasible, or the reverse.
    """
    files = arguments.file or [RUNS, RUNS_2026]
    rows = [row for file in files for row in read_runs(file)]
    predicted = progress(rows, "predicting runs")
    results = [result_of(row, waterfall=arguments.rows) for row in predicted]
    table = suites(results)
    if arguments.picture:
        _draw(arguments, results, table)
    if arguments.json:
        print_json(_facts(results if arguments.rows else [], table))
        return 0
    print_table(HEAD, [_cells(name, its) for name, its in table.items()])
    chosen = [(name, its) for name, its in table.items() if its["failed"] or its["spearman"]]
    if chosen:
        print_table(CHOICE_HEAD, [_choice_cells(name, its) for name, its in chosen])
    reasons = [skip["reason"] for its in table.values() for skip in its["skipped"]]
    for reason in sorted(set(reasons)):
        print_text(f"skipped {reasons.count(reason)}: {reason}")
    if arguments.rows:
        for result in results:
            print_text(_row_text(result))
    return 0


def _draw(
    arguments: argparse.Namespace, results: list[Result], table: dict[str, dict[str, Any]]
) -> None:
    done = [
        (r.suite, r.measured_s, r.prediction.step_s)
        for r in results
        if r.prediction and r.measured_s is not None
    ]
    if not done:
        raise InputError(
            f"{', '.join(arguments.file)}: no row can be predicted, so there is nothing to draw"
        )
    from simlab.views.still.chart import charts  # here: only a picture needs matplotlib

    errors = {name: its["mape"] for name, its in table.items()}
    figure: Any = charts(runs_chart(done, errors), width_in=10)
    write_picture(arguments.picture, lambda path: figure.savefig(path, dpi=130))


def _facts(results: list[Result], table: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """What is known of each suite, and of each row of `results` if there are any."""
    each = {
        name: its | {"skipped": len(its["skipped"]), "skips": its["skipped"]}
        for name, its in table.items()
    }
    return {"suites": each} | ({"rows": [_row(result) for result in results]} if results else {})


def _cells(name: str, its: dict[str, Any]) -> list[str]:
    numbers = [its[key] for key in ("mape", "max", "bias", "constant_mape", "memory_mape")]
    texts = ["-" if number is None else f"{number:.1f}" for number in numbers]
    return [name, str(its["rows"]), str(len(its["skipped"])), *texts]


def _choice_cells(name: str, its: dict[str, Any]) -> list[str]:
    """The figures of `CHOICE`, each with that of the rule beside it."""
    cells = [name]
    for key in CHOICE:
        digits = 2 if key == "spearman" else 1
        for value in (its[key], its[f"rule_{key}"]):
            cells.append("-" if value is None else f"{value:.{digits}f}")
    return cells


def _row(result: Result) -> PredictedRow | SkippedRow:
    if not result.prediction:
        return {"id": result.id, "suite": result.suite, "skipped": str(result.skipped)}
    assert result.prediction.waterfall_s is not None, "the rows were read with their waterfalls"
    return {
        "id": result.id,
        "suite": result.suite,
        "measured_s": result.measured_s,
        "predicted_s": result.prediction.step_s,
        "error_pct": None if result.failed else 100 * result.error,
        "waterfall_s": result.prediction.waterfall_s._asdict(),
        "mfu": result.prediction.mfu,
        "mfu_attention": MFU_ATTENTION,
        "memory_gib": result.predicted_gib,
        "measured_memory_gib": result.memory_gib,
        "fits": result.prediction.fits,
        "failed": result.failed,
    }


def _row_text(result: Result) -> str:
    if not result.prediction:
        return f"{result.id}: skipped, {result.skipped}"
    assert result.prediction.waterfall_s is not None
    predicted_s = result.prediction.step_s
    parts = ", ".join(
        f"{k} {seconds_text(v)}"
        for k, v in result.prediction.waterfall_s._asdict().items()
        if v > 0.001 * predicted_s
    )
    times = f"predicted {seconds_text(predicted_s)}"
    if result.failed:
        called = "fits" if result.prediction.fits else "does not fit"
        times = f"failed, predicted that it {called}, {times}"
    else:
        measured = seconds_text(result.published_s)
        times = f"measured {measured}, {times} ({100 * result.error:+.1f}%)"
    return f"{result.id}: {times}: {parts}"


def add_validate(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `validate`."""
    command.add_argument(
        "file",
        nargs="*",
        metavar="RUNS.csv",
        help=f"measured runs (default: the published ones, {RUNS} and {RUNS_2026.name}, whose columns it has)",
    )
    command.add_argument(
        "--rows",
        action="store_true",
        help="also each row's prediction and what its time is spent on",
    )
    add_picture_option(command, "predicted over measured of every run")
    add_json_options(command, Answer)
