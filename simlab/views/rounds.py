"""It turns replayed collectives and all-reduce curves into rows and columns for any renderer."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from simlab.collectives.curves import CurvePoint
from simlab.collectives.replay import RoundState
from simlab.units import MIB, bytes_text
from simlab.views.chart import Words
from simlab.views.language import LANGUAGE

ALGORITHM_COLOURS: dict[str, str] = LANGUAGE["algorithms"]
# outlines of what a round brought: added to what was there, or put in its place
ADDED_COLOUR, REPLACED_COLOUR = LANGUAGE["rounds"]["added"], LANGUAGE["rounds"]["replaced"]
# of a cell with all contributions
DARK = LANGUAGE["rounds"]["complete"]
MOST_NAMED = 4
"""The most ranks whose contributions are named in a cell; of more they are counted."""
MOST_OF = 8
"""The most ranks of which a cell says of how many it counts; of more it has no room for that."""


class Grid(NamedTuple):
    """One step: a row per rank, a column per part of the buffer."""

    title: str
    rows: list[str]
    columns: list[str]
    shares: list[list[float]]
    """[row][column] the contributions that are summed in the cell, as a fraction of all."""
    texts: list[list[str]]
    """[row][column] which ranks contributed ('0+1', '' for none), or how many of them ('1 of 8') if there are more
    than `MOST_NAMED`, and the number alone above `MOST_OF`; 'Σ' stands for all of them. `cell_words`
    says what such a text means."""
    added: list[tuple[int, int]]
    """(row, column) of the cells to which what arrived in this round was added."""
    replaced: list[tuple[int, int]]
    """(row, column) of the cells whose content was replaced by what arrived in this round."""
    arrows: list[tuple[int, int]]
    """(row of the sender, row of the receiver), each pair once."""


class Curve(NamedTuple):
    """The line of one algorithm: its time and its bus bandwidth against the size of the buffer."""

    algorithm: str
    sizes_mib: list[float]
    times_ms: list[float]
    busbw_gb: list[float]
    chosen: list[int]
    """The indices of the points at which NCCL chooses this algorithm."""


def grid(step: RoundState) -> Grid:
    """The `Grid` of a replayed `RoundState`."""
    row = {rank: at for at, rank in enumerate(step.ranks)}
    column = {part: at for at, part in enumerate(step.parts)}
    whole = len(row)

    def text(content: Collection[int]) -> str:
        if not content:
            return ""
        if len(content) == whole:
            return "Σ"
        if whole <= MOST_NAMED:
            return "+".join(map(str, sorted(content)))
        return f"{len(content)} of {whole}" if whole <= MOST_OF else str(len(content))

    arrived = [
        (t.adds, (row[t.destination], column[part])) for t in step.transfers for part in t.parts
    ]
    return Grid(
        f"round {step.number}" if step.number else "at the start",
        [f"rank {rank}" for rank in row],
        [
            part
            if isinstance(part, str)
            else ".".join(map(str, part))
            if isinstance(part, tuple)
            else str(part)
            for part in column
        ],
        [[len(content) / whole for content in parts.values()] for parts in step.held.values()],
        [[text(content) for content in parts.values()] for parts in step.held.values()],
        sorted({cell for adds, cell in arrived if adds}),
        sorted({cell for adds, cell in arrived if not adds}),
        sorted({(row[t.source], row[t.destination]) for t in step.transfers}),
    )


def cell_words(ranks: int) -> tuple[Words, Words]:
    """What a legend calls the cells of a `Grid` of so many ranks: those that hold their own
    contribution only, and those that hold the sum of some. It says what stands in them."""
    own, some = Words("its own only", "只有自己的"), Words("sum of some ranks", "部分和")
    if ranks <= MOST_NAMED:
        return own, some
    if ranks <= MOST_OF:
        return (
            Words(f"1 of {ranks}: {own.en}", f"1 / {ranks}：{own.zh}"),
            Words(
                f"k of {ranks}: sum of k of the {ranks} ranks",
                f"k / {ranks}：{ranks} 个 rank 中 k 个之和",
            ),
        )
    return (  # there may be room for no number at all
        Words(f"{own.en}: 1 of {ranks} ranks", f"{own.zh}：{ranks} 个 rank 中 1 个"),
        Words(f"sum of k of {ranks} ranks", f"{ranks} 个 rank 中 k 个之和"),
    )


def arrow_x(view: Grid, source: int, destination: int) -> float:
    """Where the arrow between two rows is, left of the grid, in columns. Arrows between neighbouring
    rows are nearest to the grid."""
    far = abs(destination - source) != 1
    return -0.5 - 0.22 * len(view.columns) * (0.75 if far else 0.25)


def listed(names: Sequence[str], comma: str) -> str:
    """The parts that are called `names`; of three or more with consecutive numbers the first and the
    last one."""
    numbers = [int(name) for name in names if name.isdecimal()]
    if len(names) > 2 and numbers == [*range(numbers[0], numbers[0] + len(names))]:
        return f"{names[0]}–{names[-1]}"
    return comma.join(names)


def sends(step: RoundState) -> list[str]:
    """[one line per transfer of `step`: who sends which parts to whom, and what becomes of them]"""
    names = dict(zip(step.parts, grid(step).columns))
    lines = []
    for t in step.transfers:
        parts = (
            "everything"
            if len(names) == 1
            else f"part{'s' * (len(t.parts) > 1)} {listed([names[part] for part in t.parts], ', ')}"
        )
        lines.append(
            f"{t.source} → {t.destination}: {parts} ({bytes_text(t.size_bytes)}), {'added' if t.adds else 'put in place'}"
        )
    return lines


def curves(points: Sequence[CurvePoint]) -> list[Curve]:
    """[`Curve` of each algorithm] of an `all_reduce_curve`."""
    sizes = [point.size_bytes / MIB for point in points]
    found = []
    for name in points[0].times:
        times = [point.times[name] for point in points]
        chosen = [at for at, point in enumerate(points) if point.chosen.algorithm == name]
        found.append(
            Curve(
                name,
                sizes,
                [t.seconds * 1e3 for t in times],
                [t.busbw_bytes_per_s / 1e9 for t in times],
                chosen,
            )
        )
    return found
