"""The program: for each rank, the ordered list of ops it runs. The only representation of a schedule.

The text form of an op is PyTorch's: `2F0` is stage 2, forward, microbatch 0. The kinds are

    F  forward
    B  full backward (input and weight gradients together)
    I  input gradient only      (the zero-bubble papers call this "B")
    W  weight gradient only

A program as CSV has one row per rank and one op per cell: the "compute_only" format of
torch.distributed.pipelining, so torch's own runtime can execute it. `(0F1;3B0)OVERLAP_F_B` is torch's mark for a pair: a
forward and, beside it, a backward of another microbatch, so that the one's communication hides behind the other's computing.
Idle time is never part of a program; empty cells are dropped when one is read, and so is torch's mark `0REDUCE_GRAD`, which is
no compute op. Bubbles are measured, from a trace.
"""

import csv
import re
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

from simlab.errors import InputError

BACKWARD = "B or I"
LIVE_CHANGE = {"F": 1, "B": -1, "I": 0, "W": -1}  # by op kind: microbatches of its stage that are held, more or fewer
WEIGHT_GRAD_MEMORY = 0.5  # unless told otherwise: the part of a microbatch's activations that stays from I to W, M_W / M_B
_OP_TEXT = re.compile(r"(\d{1,9})([FBIW])(\d{1,9})")
_COMMUNICATION_TEXT = re.compile(r"\d+(SEND_|RECV_|UNSHARD|RESHARD)")
_NO_OP_TEXT = re.compile(r"(\d+REDUCE_GRAD)?")  # idle, or torch's mark for where data parallelism would reduce gradients
_PAIR_TEXT = re.compile(r"\((.*);(.*)\)OVERLAP_F_B")


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

    slot:          a number of its own, 0 <= slot < number of ops: its place in `Program.rank_of`.
    awaited_slots: those of the needs that the rank's own earlier ops do not meet; -1 for an op that is not in the program.
    destination:   the rank that gets the result, or None if it stays here.
    """

    op: Op
    slot: int
    awaited_slots: tuple[int, ...]
    destination: int | None


@dataclass(frozen=True)
class Program:
    """What every rank runs, in order.

    ranks:  one tuple of `Op` per rank.
    name:   where it came from (a schedule's name or a file), for titles only.
    paired: the forwards that run beside the op after them, a backward: both start together, both results are there at the end.
            The executor runs `unpaired` programs.

    Making one checks nothing: `simlab.validation` holds the rules.
    """

    ranks: tuple[tuple[Op, ...], ...]
    name: str = ""
    paired: frozenset[Op] = frozenset()

    def __post_init__(self):
        object.__setattr__(self, "ranks", tuple(tuple(ops) for ops in self.ranks))
        object.__setattr__(self, "paired", frozenset(self.paired))

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
        return 1 + max(map(itemgetter(0), self.rank_of), default=-1)

    @cached_property
    def microbatches(self):
        """Number of microbatches: one more than the highest microbatch index."""
        return 1 + max(map(itemgetter(2), self.rank_of), default=-1)

    def stages_of(self, rank):
        """The stages that `rank` holds, in ascending order."""
        return sorted({op.stage for op in self.ranks[rank]})

    def needs(self, op):
        """The ops whose results `op` uses. The one dependency rule, asked by everything else.

        F(s, m) needs F(s-1, m).  B(s, m) and I(s, m) need F(s, m) and the input gradient of the next stage,
        which B(s+1, m) or I(s+1, m) makes, whichever the program has.  W(s, m) needs I(s, m).
        """
        return tuple(Op(stage, self._kind(stage, kind, op.microbatch), op.microbatch) for stage, kind in self._sources(*op[:2]))

    def user(self, op):
        """The op of a *neighbouring stage* that uses `op`'s result, or None: where its output goes."""
        target = self._target(*op[:2])
        return None if target is None else Op(target[0], self._kind(*target, op.microbatch), op.microbatch)

    def _sources(self, stage, kind):
        """The (stage, kind)s of what an op needs, all of its own microbatch; `BACKWARD` is whichever the program has."""
        if kind == "F":
            return ((stage - 1, "F"),) if stage > 0 else ()
        if kind == "W":
            return ((stage, "I"),)
        return ((stage, "F"), (stage + 1, BACKWARD)) if stage < self.stages - 1 else ((stage, "F"),)

    def _target(self, stage, kind):
        """The (stage, kind) that uses what an op makes, or None."""
        if kind == "F":
            return (stage + 1, "F") if stage < self.stages - 1 else None
        return (stage - 1, BACKWARD) if kind in "BI" and stage > 0 else None

    def _kind(self, stage, kind, microbatch):
        """`kind`; of `BACKWARD`, the op that makes the input gradient: I where the program splits it (has I or W), else B."""
        if kind != BACKWARD:
            return kind
        return "I" if (stage, "I", microbatch) in self.rank_of or (stage, "W", microbatch) in self.rank_of else "B"

    @cached_property
    def lowered(self):
        """[per rank] its ops with what each awaits from other ranks and where its result goes: `Step`s.

        Works on invalid programs too: a need that nobody meets is awaited for ever.
        """
        columns = {}  # (stage, kind): {microbatch: slot}
        for slot, (stage, kind, microbatch) in enumerate(self.rank_of):
            columns.setdefault((stage, kind), {})[microbatch] = slot
        backwards = {(stage, BACKWARD): self._backwards(stage, columns) for stage in {stage for stage, _ in columns}}
        rules, places = {}, columns | backwards
        for pair, column in columns.items():  # the columns of itself, of the one or two ops that it needs, and of the op that uses it
            first, second, *_ = [*(places.get(source, {}) for source in self._sources(*pair)), None, None]
            rules[pair] = column, first, second, places.get(self._target(*pair), {})
        owners = list(self.rank_of.values())
        return [_steps(ops, rank, rules, owners) for rank, ops in enumerate(self.ranks)]

    def _backwards(self, stage, columns):
        """{microbatch: slot of the op that makes its input gradient}, see `_kind`."""
        whole, split, rest = (columns.get((stage, kind), {}) for kind in "BIW")
        if not whole or not (split or rest):
            return whole or split
        return {m: slot for m, slot in whole.items() if m not in rest} | split

    @cached_property
    def texts(self):
        """[by slot] the text form of each op."""
        return [f"{stage}{kind}{microbatch}" for stage, kind, microbatch in self.rank_of]

    def unpaired(self):
        """The same ops in the same order, none of them beside another."""
        return replace(self, paired=frozenset())

    # text and CSV -----------------------------------------------------------------------------------------

    def __str__(self):
        return "\n".join(map(" ".join, self.ranks_as_text))

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
        cells = [[_parse_cell(cell.strip(), rank, at) for at, cell in enumerate(row)] for rank, row in enumerate(rows)]
        ranks = [list(chain.from_iterable(row)) for row in cells]
        if not any(ranks):
            raise InputError("no op in it: a program has one row per rank and one op such as 2F0 per cell")
        return cls(ranks, name, {ops[0] for row in cells for ops in row if len(ops) == 2})

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
        """[per rank] the text of its cells: one op each, or a pair."""
        return [self._cells(iter(ops)) for ops in self.ranks]

    def _cells(self, ops):
        return [f"({op};{next(ops)})OVERLAP_F_B" if op in self.paired else str(op) for op in ops]


def _steps(ops, rank, rules, owners):
    """[`Step` of each of `ops`], see `Program.lowered`. A large program has hundreds of thousands: nothing is hashed but numbers."""
    done, steps = bytearray(len(owners)), []
    for op in ops:
        stage, kind, microbatch = op
        own, first, second, users = rules[stage, kind]
        awaited_slots, destination = (), None
        if first is not None:
            need = first.get(microbatch, -1)
            if need < 0 or not done[need]:
                awaited_slots = (need,)
            if second is not None:
                need = second.get(microbatch, -1)
                if need < 0 or not done[need]:
                    awaited_slots += (need,)
        if microbatch in users:
            destination = owners[users[microbatch]]
            if destination == rank:
                destination = None
        slot = own[microbatch]
        done[slot] = True
        steps.append(tuple.__new__(Step, (op, slot, awaited_slots, destination)))
    return steps


def _parse_cell(cell, rank, at):
    """[the ops in `cell`]: one, none where it is idle, a forward and a backward where they are a pair."""
    if _NO_OP_TEXT.fullmatch(cell):
        return []
    if _COMMUNICATION_TEXT.match(cell):
        raise InputError(
            f"rank {rank}, cell {at + 1}: {cell[:40]!r} is a communication op; give the compute-only form "
            "(F B I W): sends and receives are derived from it"
        )
    pair = _PAIR_TEXT.fullmatch(cell)
    try:
        ops = [Op.parse(text) for text in (pair.groups() if pair else (cell,))]
        if pair and (ops[0].kind != "F" or ops[1].kind not in "BI"):
            raise InputError(f"{cell[:60]!r} is not a pair: OVERLAP_F_B is for a forward and a backward, as in (0F1;3B0)OVERLAP_F_B")
        return ops
    except InputError as error:
        raise InputError(f"rank {rank}, cell {at + 1}: {error}") from error
