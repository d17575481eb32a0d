"""The program: for each rank, the ordered list of ops it runs. The only representation of a schedule.

The text form of an op is PyTorch's: `2F0` is stage 2, forward, microbatch 0. The kinds are

    F  forward
    B  full backward (input and weight gradients together)
    I  input gradient only      (the zero-bubble papers call this "B")
    W  weight gradient only

A program as CSV has one row per rank and one op per cell: the "compute_only" format of
torch.distributed.pipelining, so torch's own runtime can execute it. Idle time is never part of a
program; empty cells are dropped when one is read, and so are torch's marks that are not compute ops
(`0REDUCE_GRAD`; a pair such as `(0F1;3B0)OVERLAP_F_B` is read as its two ops). Bubbles are measured, from a trace.
"""

import csv
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from simlab.errors import InputError

LIVE_CHANGE = {"F": 1, "B": -1, "I": 0, "W": -1}  # by op kind: microbatches of its stage that are held, more or fewer
_OP_TEXT = re.compile(r"(\d{1,9})([FBIW])(\d{1,9})")
_COMMUNICATION_TEXT = re.compile(r"\d+(SEND_|RECV_|UNSHARD|RESHARD)")
_NO_OP_TEXT = re.compile(r"(\d+REDUCE_GRAD)?")  # idle, or torch's mark for where data parallelism would reduce gradients
_PAIR_TEXT = re.compile(r"\((.*);(.*)\)OVERLAP_F_B")  # torch's mark for a forward beside a backward: here one after the other


class Op(NamedTuple):
    """One unit of work of one stage on one microbatch, e.g. `Op(2, "F", 0)`, written `2F0`."""

    stage: int
    kind: str
    microbatch: int

    def __str__(self):
        return f"{self.stage}{self.kind}{self.microbatch}"

    @classmethod
    def parse(cls, text):
        """The op that `text` names; `InputError` if it names none."""
        match = _OP_TEXT.fullmatch(text.strip())
        if match is None:
            raise InputError(f"{text[:40]!r} is not an op: an op reads like 2F0 (stage 2, one of F B I W, microbatch 0)")
        return cls(int(match[1]), match[2], int(match[3]))


class Step(NamedTuple):
    """One op of one rank, with where its inputs come from and where its output goes.

    text:          the op's text form.
    slot:          a number of its own, 0 <= slot < number of ops.
    awaits:        the needs that the rank's own earlier ops do not meet: they come from another rank.
    awaited_slots: their slots; -1 for an op that is not in the program.
    destination:   the rank that gets the result, or None if it stays here.
    """

    op: Op
    text: str
    slot: int
    awaits: tuple[Op, ...]
    awaited_slots: tuple[int, ...]
    destination: int | None


@dataclass(frozen=True)
class Program:
    """What every rank runs, in order.

    ranks: one tuple of `Op` per rank.
    name:  where it came from (a schedule's name or a file), for titles only.

    Making one checks nothing: `simlab.validation` holds the rules.
    """

    ranks: tuple[tuple[Op, ...], ...]
    name: str = ""

    def __post_init__(self):
        object.__setattr__(self, "ranks", tuple(tuple(ops) for ops in self.ranks))

    @cached_property
    def rank_of(self):
        """{op: the rank that runs it}; the first rank where several do."""
        owner = {}
        for rank, ops in enumerate(self.ranks):
            for op in ops:
                owner.setdefault(op, rank)
        return owner

    @cached_property
    def stages(self):
        """Number of stages: one more than the highest stage index."""
        return 1 + max((op.stage for op in self.rank_of), default=-1)

    @cached_property
    def microbatches(self):
        """Number of microbatches: one more than the highest microbatch index."""
        return 1 + max((op.microbatch for op in self.rank_of), default=-1)

    def stages_of(self, rank):
        """The stages that `rank` holds, in ascending order."""
        return sorted({op.stage for op in self.ranks[rank]})

    def needs(self, op):
        """The ops whose results `op` uses. The one dependency rule, asked by everything else.

        F(s, m) needs F(s-1, m).  B(s, m) and I(s, m) need F(s, m) and the input gradient of the next stage,
        which B(s+1, m) or I(s+1, m) makes, whichever the program has.  W(s, m) needs I(s, m).
        """
        stage, kind, microbatch = op
        if kind == "F":
            return (Op(stage - 1, "F", microbatch),) if stage > 0 else ()
        if kind == "W":
            return (Op(stage, "I", microbatch),)
        forward = Op(stage, "F", microbatch)
        if stage == self.stages - 1:
            return (forward,)
        return (forward, self.backward(stage + 1, microbatch))

    def backward(self, stage, microbatch):
        """The op that makes `stage`'s input gradient of `microbatch`: I where the program splits it (has I or W), else B."""
        split = Op(stage, "I", microbatch)
        return split if split in self.rank_of or Op(stage, "W", microbatch) in self.rank_of else Op(stage, "B", microbatch)

    def user(self, op):
        """The op of a *neighbouring stage* that uses `op`'s result, or None: where its output goes."""
        stage, kind, microbatch = op
        if kind == "F" and stage < self.stages - 1:
            return Op(stage + 1, "F", microbatch)
        if kind in "BI" and stage > 0:
            return self.backward(stage - 1, microbatch)
        return None

    @cached_property
    def lowered(self):
        """[per rank] its ops with what each awaits from other ranks and where its result goes: `Step`s.

        Works on invalid programs too: a need that nobody meets is awaited for ever.
        """
        slots = {op: slot for slot, op in enumerate(self.rank_of)}
        return [list(self._steps(rank, slots)) for rank in range(len(self.ranks))]

    def _steps(self, rank, slots):
        own = set()
        for op in self.ranks[rank]:
            awaits = tuple([need for need in self.needs(op) if need not in own])
            destination = self.rank_of.get(self.user(op))
            own.add(op)
            awaited_slots = tuple([slots.get(need, -1) for need in awaits])
            yield Step(op, str(op), slots[op], awaits, awaited_slots, None if destination == rank else destination)

    # text and CSV -----------------------------------------------------------------------------------------

    def __str__(self):
        return "\n".join(" ".join(map(str, ops)) for ops in self.ranks)

    @classmethod
    def from_text(cls, text, *, name="text"):
        """One rank per line, ops apart by white space or commas. `InputError` names the rank and the cell."""
        return cls._from_cells([re.split(r"[\s,]+", line.strip()) for line in text.splitlines() if line.strip()], name)

    @classmethod
    def from_csv(cls, path):
        """Read torch's "compute_only" CSV. `InputError` names the file, rank and cell."""
        path = Path(path)
        try:
            with path.open(newline="", encoding="utf-8-sig") as file:  # "-sig": spreadsheets put a byte order mark in front
                rows = [row for row in csv.reader(file) if row]  # a blank line is no rank
        except OSError as error:
            raise InputError(f"cannot read {str(path)!r}: {error.strerror}") from error
        except (UnicodeDecodeError, csv.Error) as error:
            raise InputError(f"{str(path)!r} is not a CSV text file: {error}") from error
        try:
            return cls._from_cells(rows, path.stem)
        except InputError as error:
            raise InputError(f"{path.name}: {error}") from error

    @classmethod
    def _from_cells(cls, rows, name):
        ranks = [[op for at, cell in enumerate(row) for op in _parse_cell(cell.strip(), rank, at)] for rank, row in enumerate(rows)]
        if not any(ranks):
            raise InputError("no op in it: a program has one row per rank and one op such as 2F0 per cell")
        return cls(ranks, name)

    @classmethod
    def from_trace(cls, trace):
        """What ran, in the order in which it ran on each rank."""
        ranks = [[] for _ in range(trace.ranks)]
        for span in sorted(trace.compute(), key=lambda span: span.start_s):
            ranks[span.rank].append(Op.parse(span.op))
        return cls(ranks, trace.metadata.get("name", "trace"))

    def to_csv(self, path):
        """Write torch's "compute_only" CSV, one row per rank."""
        with Path(path).open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(self.ranks_as_text)

    @property
    def ranks_as_text(self):
        return [[str(op) for op in ops] for ops in self.ranks]


def _parse_cell(cell, rank, at):
    """[the ops in `cell`]: one, none where it is idle, two where torch overlaps them."""
    if _NO_OP_TEXT.fullmatch(cell):
        return []
    if _COMMUNICATION_TEXT.match(cell):
        raise InputError(
            f"rank {rank}, cell {at + 1}: {cell[:40]!r} is a communication op; give the compute-only form "
            "(F B I W): sends and receives are derived from it"
        )
    pair = _PAIR_TEXT.fullmatch(cell)
    try:
        return [Op.parse(text) for text in (pair.groups() if pair else (cell,))]
    except InputError as error:
        raise InputError(f"rank {rank}, cell {at + 1}: {error}") from error
