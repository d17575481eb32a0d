"""It predicts training runs that others measured and published."""

import csv
from collections.abc import Iterable
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import NamedTuple

from simlab.errors import InputError
from simlab.input_files import MOST_TABLE_BYTES, read_text
from simlab.spec.cluster import Cluster
from simlab.spec.model import Model
from simlab.spec.plan import Plan
from simlab.studies.published.rows import alternatives, described
from simlab.studies.published.words import (
    Row,
    Skip,
    failed,
    number,
    with_blanks,
)
from simlab.training import Prediction, Waterfall, predict
from simlab.training.uncertainty import Kind, kind_of
from simlab.units import GIB

RUNS = Path(__file__).with_name("runs.csv")
"""The published runs that come with simlab; each row names its source."""
RUNS_2026 = RUNS.with_name("runs_2026.csv")
"""Runs published in 2025 and 2026, on Hopper in 8 bits and on Blackwell, in the columns of `RUNS`."""
SWEEPS = RUNS.with_name("sweeps.csv")
"""Published sweeps of layouts, with those that failed, in the columns of `RUNS`."""

COLUMNS = (
    "id",
    "suite",
    "step_s",
    "n_gpus",
    "gpus_per_node",
    "gpu",
    "layers",
    "hidden",
    "heads",
    "kv_heads",
    "ffn",
    "gated_mlp",
    "vocab",
    "seq",
    "tp",
    "pp",
    "vpp",
    "cp",
    "ep",
    "dp",
    "micro_batch",
    "global_batch",
    "recompute",
    "seq_parallel",
    "sharding",
    "overlap",
    "precision",
    "mem_gib",
)
"""The columns that are read; a file may have others. A blank field was not published. What is then
assumed is said in `simlab.studies.published.rows`."""


WORK = ("model", "layers", "hidden", "seq", "global_batch", "n_gpus", "gpu", "precision")
"""The columns that say what a row computes, and on what. Rows in which these are equal are
alternatives."""


class Kept(NamedTuple):
    """The part of a `Prediction` that a `Result` keeps: everything that is printed, but no trace.

    So a file may have thousands of rows. Times are in seconds.
    """

    plan: Plan
    step_s: float
    mfu: float
    hfu: float
    memory_bytes: dict[str, float]
    reserved_bytes: float
    """What the allocator has reserved at the peak: tensors, and what it wastes."""
    fits: bool
    kind: Kind
    waterfall_s: Waterfall | None
    """None unless it was asked for, because it takes a second simulation of the pipeline."""


@dataclass(frozen=True)
class Result:
    """A row of a file of published runs, and its prediction."""

    id: str
    suite: str
    """The name of the set of runs that the row belongs to."""
    measured_s: float | None = None
    """The published step time, in seconds; None if the run failed or the row was skipped."""
    prediction: Kept | None = None
    memory_gib: float | None = None
    """The published peak memory of a GPU, in GiB."""
    memory_is_reserved: bool = False
    """Whether that is what the allocator has reserved, and not what tensors take."""
    skipped: str = ""
    """The reason why the row was not predicted."""
    work: tuple[str, ...] = ()
    """What the row says in the columns `WORK`."""

    @property
    def failed(self) -> bool:
        """Whether the published run failed, so that only its memory can be compared."""
        return self.prediction is not None and self.measured_s is None

    @property
    def predicted(self) -> Kept:
        """The `prediction`; `InputError` if the row was skipped."""
        if self.prediction is None:
            raise InputError(f"{self.id} was not predicted: {self.skipped}")
        return self.prediction

    @property
    def published_s(self) -> float:
        """The step time `measured_s`; `InputError` if the row has none."""
        if self.measured_s is None:
            raise InputError(f"{self.id} has no measured step time")
        return self.measured_s

    @property
    def error(self) -> float:
        """(predicted - measured) / measured step time."""
        return self.predicted.step_s / self.published_s - 1

    @property
    def memory_error(self) -> float | None:
        """(predicted - measured) / measured peak memory; None if it was not published."""
        if self.memory_gib is None:
            return None
        return self.predicted_gib / self.memory_gib - 1

    @property
    def predicted_gib(self) -> float:
        """The predicted peak memory, in GiB, of what the published one counts."""
        its = self.predicted
        if self.memory_is_reserved:
            return its.reserved_bytes / GIB
        return sum(its.memory_bytes.values()) / GIB


def read_runs(path: str | Path) -> list[Row]:
    """The rows of a CSV file of published runs, each as {column: text}.

    Raises `InputError` if the file cannot be read or lacks one of `COLUMNS`.
    """
    try:
        with StringIO(
            read_text(path, MOST_TABLE_BYTES, encoding="utf-8-sig", newline=""), newline=""
        ) as file:
            reader = csv.DictReader(file, restval="")
            reader.fieldnames = [name.strip() for name in reader.fieldnames or ()]
            rows: list[Row] = list(reader)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(
            f"cannot read {str(path)!r}: {getattr(error, 'strerror', None) or error}"
        ) from error
    missing = [column for column in COLUMNS if not rows or column not in rows[0]]
    if missing:
        raise InputError(
            f"{path}: no rows with column{'s' * (len(missing) > 1)} {', '.join(missing)}"
        )
    return rows


def validate_runs(rows: Iterable[Row]) -> list[Result]:
    """The `Result` of each of `rows`, which `read_runs` reads."""
    return [result_of(row) for row in rows]


def result_of(row: Row, *, waterfall: bool = False) -> Result:
    """The `Result` of one row, with its waterfall if that is asked for."""
    name, suite, row = row["id"] or "?", row["suite"] or "?", with_blanks(row)
    try:
        measured_s = None if failed(row) else number(row, "step_s")
        its = _predicted(row, *described(row))
        spent = its.waterfall_s if waterfall else None
        kept = Kept(
            its.plan,
            its.step_s,
            its.mfu,
            its.hfu,
            its.memory_bytes,
            its.fit.held_bytes + its.fit.waste_bytes,
            its.fit.fits,
            kind_of(its.model, its.plan, its.cluster),
            spent,
        )
        return Result(
            name,
            suite,
            measured_s,
            kept,
            _memory_gib(row),
            memory_is_reserved=row.get("memory_kind") == "reserved",
            work=_work(row),
        )
    except (Skip, InputError) as why:
        return Result(name, suite, skipped=str(why))


def _work(row: Row) -> tuple[str, ...]:
    """What the row says in the columns `WORK`."""
    return tuple((row.get(column) or "").strip() for column in WORK)


def _memory_gib(row: Row) -> float | None:
    """The published peak memory; None if it is not a number, such as "OOM" or "~80"."""
    try:
        return number(row, "mem_gib")
    except Skip:
        return None


def _predicted(row: Row, model: Model, plan: Plan, cluster: Cluster) -> Prediction:
    """The `Prediction` of a row: of the first of its `alternatives` that fits, or of the last one."""
    for tried in alternatives(row, plan):
        prediction = predict(model, tried, cluster)
        if prediction.fit.fits:
            break
    return prediction
