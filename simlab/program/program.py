"""It defines `Program`, which holds for each rank the ordered list of ops that it runs.

A program is the only representation of a schedule.

The text form of an op is PyTorch's: `2F0` is stage 2, forward, microbatch 0. The kinds are

    F  forward
    B  full backward (input and weight gradients together)
    I  input gradient only      (the zero-bubble papers call this "B")
    W  weight gradient only

A program as CSV has one row per rank and one op per cell. This is the "compute_only" format of
torch.distributed.pipelining, so torch's own runtime can execute it. `(0F1;3B0)OVERLAP_F_B` is
torch's mark for a pair: a forward runs beside a backward of another microbatch, so that the
communication of one overlaps with the computation of the other. A program never contains idle time,
so empty cells are dropped when one is read. Torch's mark `0REDUCE_GRAD` is dropped, too, because it
is no compute op. A bubble is measured from a trace.
"""

import csv
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from io import StringIO
from itertools import chain
from operator import itemgetter
from pathlib import Path

from simlab.errors import InputError
from simlab.input_files import MOST_TABLE_BYTES, read_text
from simlab.program.cells import ops_of_cell
from simlab.program.op import Op
from simlab.program.steps import Columns, Rule, Step, steps_of_rank
from simlab.trace import Trace

BACKWARD = "B or I"
"""The kind of an op that makes an input gradient, where the program decides which one it is."""
LIVE_CHANGE = {"F": 1, "B": -1, "I": 0, "W": -1}
"""{op kind: by how much the op changes the number of microbatches that its stage holds}."""
WEIGHT_GRAD_MEMORY = 0.5
"""M_W / M_B unless the caller gives another value: the fraction of a microbatch's activations that
a rank still holds between I and W."""
SHORT = 32
"""The largest number of ops for which the `repr` of a program shows all of them."""


@dataclass(frozen=True)
class Program:
    """The ops that every rank runs, in order.

    ranks:  one tuple of `Op` per rank.
    name:   the name of the schedule or the file that it came from, which is used in titles only.
    paired: the forwards that run beside the op after them, which is a backward. Both ops of a pair
            start together, and both results are there when the pair ends. realrun executes those
            of a plan; a program that it is given runs without, see `unpaired`.

    A new program is not checked. `simlab.validate` checks one.
    """

    ranks: Sequence[Sequence[Op]]
    name: str = ""
    paired: Collection[Op] = frozenset()

    def __post_init__(self) -> None:
        object.__setattr__(self, "ranks", tuple(tuple(ops) for ops in self.ranks))
        object.__setattr__(self, "paired", frozenset(self.paired))

    @cached_property
    def rank_of(self) -> dict[Op, int]:
        """{op: the rank that runs it}; if several ranks run the op, the first of them."""
        owner: dict[Op, int] = {}
        for rank, ops in enumerate(self.ranks):
            for op in ops:
                owner.setdefault(op, rank)
        return owner

    @cached_property
    def stages(self) -> int:
        """Number of stages: one more than the highest stage index."""
        return 1 + max(map(itemgetter(0), self.rank_of), default=-1)

    @cached_property
    def microbatches(self) -> int:
        """Number of microbatches: one more than the highest microbatch index."""
        return 1 + max(map(itemgetter(2), self.rank_of), default=-1)

    def stages_of(self, rank: int) -> list[int]:
        """The stages that `rank` holds, in ascending order."""
        return self._stages_of_ranks[rank]

    @property
    def has_a_rank_for_each_stage(self) -> bool:
        """Whether each rank holds one stage, which no other rank has."""
        return sorted(self._stages_of_ranks) == [[stage] for stage in range(self.stages)]

    @cached_property
    def _stages_of_ranks(self) -> list[list[int]]:
        return [sorted({op.stage for op in ops}) for ops in self.ranks]

    def needs(self, op: Op) -> tuple[Op, ...]:
        """The ops whose results `op` uses. This is the only dependency rule.

        F(s, m) needs F(s-1, m). B(s, m) and I(s, m) need F(s, m) and the input gradient of the next
        stage, which B(s+1, m) or I(s+1, m) makes, whichever the program has. W(s, m) needs I(s, m).
        """
        return tuple(
            Op(stage, self._kind(stage, kind, op.microbatch), op.microbatch)
            for stage, kind in self._sources(*op[:2])
        )

    def user(self, op: Op) -> Op | None:
        """The op of a *neighbouring stage* that uses the result of `op`, or None if there is none."""
        target = self._target(*op[:2])
        return (
            None
            if target is None
            else Op(target[0], self._kind(*target, op.microbatch), op.microbatch)
        )

    def _sources(self, stage: int, kind: str) -> tuple[tuple[int, str], ...]:
        """The (stage, kind) of each op that an op of `stage` and `kind` needs.

        All of them belong to the same microbatch. `BACKWARD` stands for B or I, whichever the
        program has.
        """
        if kind == "F":
            return ((stage - 1, "F"),) if stage > 0 else ()
        if kind == "W":
            return ((stage, "I"),)
        return ((stage, "F"), (stage + 1, BACKWARD)) if stage < self.stages - 1 else ((stage, "F"),)

    def _target(self, stage: int, kind: str) -> tuple[int, str] | None:
        """The (stage, kind) of the op of a neighbouring stage that uses the result, or None."""
        if kind == "F":
            return (stage + 1, "F") if stage < self.stages - 1 else None
        return (stage - 1, BACKWARD) if kind in "BI" and stage > 0 else None

    def _kind(self, stage: int, kind: str, microbatch: int) -> str:
        """The kind of an op, where `BACKWARD` becomes I if the program has I or W, and B if not."""
        if kind != BACKWARD:
            return kind
        return (
            "I"
            if (stage, "I", microbatch) in self.rank_of or (stage, "W", microbatch) in self.rank_of
            else "B"
        )

    @cached_property
    def lowered(self) -> list[list[Step]]:
        """[per rank] a `Step` for each op: what it awaits from other ranks, and where its result
        goes.

        This also works for invalid programs, in which an op can await a result that never comes.
        """
        columns: Columns = {}
        for slot, (stage, kind, microbatch) in enumerate(self.rank_of):
            columns.setdefault((stage, kind), {})[microbatch] = slot
        backwards = {
            (stage, BACKWARD): self._backwards(stage, columns)
            for stage in {stage for stage, _ in columns}
        }
        places = columns | backwards
        rules: dict[tuple[int, str], Rule] = {}
        # A rule has the slots of the op, of the one or two ops that it needs, and of its user.
        for pair, column in columns.items():
            sources = [places.get(source, {}) for source in self._sources(*pair)]
            first, second, *_ = [*sources, None, None]
            target = self._target(*pair)
            rules[pair] = column, first, second, {} if target is None else places.get(target, {})
        owners = list(self.rank_of.values())
        return [steps_of_rank(ops, rank, rules, owners) for rank, ops in enumerate(self.ranks)]

    def _backwards(self, stage: int, columns: Columns) -> dict[int, int]:
        """{microbatch: slot of the op of `stage` that makes its input gradient}, see `_kind`."""
        whole, split, rest = (columns.get((stage, kind), {}) for kind in "BIW")
        if not whole or not (split or rest):
            return whole or split
        return {m: slot for m, slot in whole.items() if m not in rest} | split

    @cached_property
    def texts(self) -> list[str]:
        """The text form of each op, in the order of their slots."""
        return [f"{stage}{kind}{microbatch}" for stage, kind, microbatch in self.rank_of]

    def unpaired(self) -> "Program":
        """The same ops in the same order, where no op runs beside another."""
        return replace(self, paired=frozenset())

    def __repr__(self) -> str:
        ops = sum(map(len, self.ranks))
        if ops <= SHORT:
            return f"Program.from_text({str(self)!r}, name={self.name!r})"
        return f"<Program {self.name!r}: {len(self.ranks)} ranks, {self.microbatches} microbatches, {ops} ops>"

    # text and CSV
    # -----------------------------------------------------------------------------------------

    def __str__(self) -> str:
        return "\n".join(map(" ".join, self.ranks_as_text))

    @classmethod
    def from_text(cls, text: str, *, name: str = "text") -> "Program":
        """The program in `text`, which has one line per rank and white space or commas between ops.

        Raises `InputError`, which names the rank and the cell that cannot be read.
        """
        return cls._from_cells(
            [re.split(r"[\s,]+", line.strip()) for line in text.splitlines() if line.strip()], name
        )

    @classmethod
    def from_csv(cls, path: str | Path) -> "Program":
        """The program in a file in torch's "compute_only" CSV format.

        Raises `InputError`, which names the file, the rank and the cell that cannot be read.
        """
        path = Path(path)
        try:
            # Spreadsheets write a byte order mark at the start, which "-sig" removes.
            text = read_text(path, MOST_TABLE_BYTES, encoding="utf-8-sig", newline="")
            # A blank line is not a rank.
            rows = [row for row in csv.reader(StringIO(text, newline="")) if row]
        except csv.Error as error:
            raise InputError(f"{str(path)!r} is not a CSV text file: {error}") from error
        try:
            return cls._from_cells(rows, path.stem)
        except InputError as error:
            raise InputError(f"{path.name}: {error}") from error

    @classmethod
    def _from_cells(cls, rows: list[list[str]], name: str) -> "Program":
        cells = [
            [ops_of_cell(cell.strip(), rank, at) for at, cell in enumerate(row)]
            for rank, row in enumerate(rows)
        ]
        ranks = [list(chain.from_iterable(row)) for row in cells]
        if not any(ranks):
            raise InputError(
                "no op in it: a program has one row per rank and one op such as 2F0 per cell"
            )
        return cls(ranks, name, {ops[0] for row in cells for ops in row if len(ops) == 2})

    @classmethod
    def from_trace(cls, trace: Trace) -> "Program":
        """The ops that ran in `trace`, in the order in which they started on each rank.

        Raises `InputError` if a compute span of the trace is not of a whole op.
        """
        ranks: list[list[Op]] = [[] for _ in range(trace.ranks)]
        for span in sorted(trace.compute(), key=lambda span: span.start_s):
            ranks[span.rank].append(Op.of_span(span))
        return cls(ranks, trace.metadata.get("name", "trace"))

    def to_csv(self, path: str | Path) -> None:
        """Write a file in torch's "compute_only" CSV format, with one row per rank."""
        with Path(path).open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(self.ranks_as_text)

    @property
    def ranks_as_text(self) -> list[list[str]]:
        """[per rank] the text of its cells, each of which holds one op or a pair."""
        return [self._cells(iter(ops)) for ops in self.ranks]

    def _cells(self, ops: Iterator[Op]) -> list[str]:
        return [f"({op};{next(ops)})OVERLAP_F_B" if op in self.paired else str(op) for op in ops]
