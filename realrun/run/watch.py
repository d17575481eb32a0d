"""What the launcher can tell from outside: who makes progress, who waits for whom, who died
where."""

import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from realrun.record.instructions import Members
from realrun.record.merge import recordings_in, step_trace
from realrun.record.recorder import CHECK_STEP, RUNNING, RankProgress
from realrun.run.life import OwnTime
from simlab.lowering.instructions import BEGIN, WAIT, Instruction
from simlab.program import Op, Program
from simlab.program.validation import deadlock, wait_text, waits
from simlab.spec.plan import Plan

OUTSIDE = "outside the steps"
"""The place of a rank that executes nothing of a list."""
CONSEQUENCES = (
    "connection closed",
    "connection reset",
    "connection refused",
    "broken pipe",
    "timed out",
    "socket",
)
"""Of what a rank says when it has lost another one."""


class Places(Protocol):
    """What the positions of ranks in their lists mean, in words."""

    def place(self, rank: int, progress: RankProgress | None) -> str:
        """Where `rank` is, such as 'running 0F3 in step 2'."""

    def who_waits(self, seen: list[RankProgress | None]) -> str:
        """What each rank does or waits for; seen: the progress of each."""

    def save_partial(self, folder: Path) -> list[Path]:
        """Write what was recorded of a broken run, if there is more to it than the recordings: the
        files in which it is."""


class Watch:
    """Watches the recordings of a job's ranks while they run.

    ranks:     how many there are.
    timeout_s: without progress, after which they are stuck.
    runs:      {name: (folder, `Places`)} of what they run, one after the other.
    """

    def __init__(
        self, ranks: int, timeout_s: float, runs: Mapping[str, tuple[Path, Places]]
    ) -> None:
        self._ranks, self.timeout_s, self._runs = ranks, timeout_s, runs
        self._time, self._moved_at_s = OwnTime(), 0.0
        self._last: tuple[str | None, list[RankProgress | None]] | None = None

    def stuck(self) -> str | None:
        """None while some rank moves or none is executing; after `timeout_s` without: one line that
        says who waits."""
        name, seen = now_at = self._current()
        now_s = self._time.now_s()
        if name is None or now_at != self._last:
            self._last, self._moved_at_s = now_at, now_s
            return None
        if now_s - self._moved_at_s < self.timeout_s:
            return None
        who = self._runs[name][1].who_waits(seen)
        return f"{name}: no rank has moved for {self.timeout_s:g} s: {who}"

    def place_of(self, rank: int) -> str:
        """Where `rank` was last seen, in words."""
        name, seen = self._current()
        if name is None:
            return OUTSIDE
        return self._runs[name][1].place(rank, seen[rank])

    def save_partial(self) -> list[Path]:
        """[paths of what was recorded of a broken run]"""
        return [
            path for folder, places in self._runs.values() for path in places.save_partial(folder)
        ]

    def _current(self) -> tuple[str | None, list[RankProgress | None]]:
        """(name, [`RankProgress` of each rank]) of what is executing; (None, []) between steps."""
        for name, (folder, _) in self._runs.items():
            ranks = [
                RankProgress.load(folder / f"rank{rank}.records") for rank in range(self._ranks)
            ]
            if any(progress and progress.executing for progress in ranks):
                return name, ranks
        return None, []


class ProgramPlaces:
    """`Places` of ranks that note the ops of `program`. facts: what a partial trace says of the
    run, besides."""

    def __init__(self, name: str, program: Program, facts: dict[str, Any]) -> None:
        self._name, self._program, self._facts = name, program, facts

    def place(self, rank: int, progress: RankProgress | None) -> str:
        """See `Places`."""
        if not (progress and progress.current):
            return OUTSIDE
        current = progress.current
        doing = "running" if current.state == RUNNING else "waiting to run"
        op = self._program.ranks[rank][current.position]
        return f"{doing} {op} in {step_text(current.step)} of {self._name}"

    def who_waits(self, seen: list[RankProgress | None]) -> str:
        """See `Places`: a circle of ranks that wait for each other is a deadlock."""
        program = self._program
        positions = _positions(program, seen)
        waiting = waits(program, positions)
        at_work = [
            _at_work(rank, *item)
            for rank, item in enumerate(zip(seen, positions, program.ranks))
            if rank not in waiting
        ]
        if waiting and not any(at_work):
            return str(deadlock(program, positions))
        return "; ".join(
            [text for text in at_work if text] + [wait_text(wait) for wait in waiting.values()]
        )

    def save_partial(self, folder: Path) -> list[Path]:
        """See `Places`: a partial trace of each step begun."""
        paths, recordings = [], recordings_in(folder, len(self._program.ranks))
        steps = {record.step for its in recordings if its for record in its.records}
        for step in sorted(steps):
            facts = {"partial": True} | self._facts
            trace = step_trace(self._program, recordings, step, 0, facts)
            paths.append(folder / f"partial-{step_text(step).replace(' ', '-')}.json")
            trace.save(paths[-1])
        return paths


class InstructionPlaces:
    """`Places` of ranks that note the instructions of a plan. instructions: [list of each rank]."""

    def __init__(self, plan: Plan, instructions: list[list[Instruction]]) -> None:
        self._members, self._lists = Members(plan), instructions

    def place(self, rank: int, progress: RankProgress | None) -> str:
        """See `Places`."""
        if not (progress and progress.executing):
            return OUTSIDE
        instruction = self._at(rank, progress)
        name = f"{instruction.op} {instruction.name}".strip()
        if progress.current is None or instruction.action != WAIT:
            doing = "running" if progress.current and progress.current.state == RUNNING else "at"
        else:
            doing = f"waiting for the {instruction.dimension} {instruction.kind} of"
        step = f" in {step_text(progress.current.step)}" if progress.current else ""
        return f"{doing} {name}{step}"

    def who_waits(self, seen: list[RankProgress | None]) -> str:
        """See `Places`: ranks that wait for a communication which others have not begun, and what
        those are doing instead."""
        waiting = {
            rank: self._at(rank, p)
            for rank, p in enumerate(seen)
            if p and p.current and self._at(rank, p).action == WAIT
        }
        at_work = [rank for rank in range(len(seen)) if rank not in waiting]
        lines = [f"rank {rank} is {self.place(rank, seen[rank])}" for rank in at_work]
        for rank, instruction in waiting.items():
            late = [
                other
                for other in self._members.ranks(rank, instruction)
                if other != rank and not self._begun(other, instruction, seen)
            ]
            text = f"rank {rank} waits for the {instruction.dimension} {instruction.kind} of {instruction.op} {instruction.name}"
            lines.append(
                text + (f", which rank {', '.join(map(str, late))} has not begun" if late else "")
            )
        return "; ".join(lines)

    def save_partial(self, folder: Path) -> list[Path]:
        """See `Places`: the recordings themselves."""
        return sorted(folder.glob("rank*.records"))

    def _at(self, rank: int, progress: RankProgress | None) -> Instruction:
        """The instruction that `rank` is at."""
        position = progress.current.position if progress and progress.current else 0
        return self._lists[rank][min(position, len(self._lists[rank]) - 1)]

    def _begun(self, rank: int, instruction: Instruction, seen: list[RankProgress | None]) -> bool:
        """Whether `rank` has come past the begin of the communication `instruction` in this
        step."""
        progress = seen[rank]
        position = progress.current.position if progress and progress.current else 0
        return any(
            other.action == BEGIN and (other.op, other.name) == (instruction.op, instruction.name)
            for other in self._lists[rank][:position]
        )


def _positions(program: Program, ranks: list[RankProgress | None]) -> list[int]:
    """[how many ops of the current step each rank has run]: every step adds as many records as the
    rank has ops."""
    done = [progress.done if progress else 0 for progress in ranks]
    steps = max(
        (done[r] - (rank.current is None)) // len(program.ranks[r])
        for r, rank in enumerate(ranks)
        if rank and rank.executing
    )
    return [
        max(0, min(len(ops), count - steps * len(ops))) for count, ops in zip(done, program.ranks)
    ]


def _at_work(
    rank: int, progress: RankProgress | None, position: int, ops: Sequence[Op]
) -> str | None:
    """What `rank`, which waits for no op, has been doing all the time; None if it has done its part
    of the step."""
    if position == len(ops):
        return (
            f"rank {rank} has run all its ops, but not all that it sent was received"
            if progress and progress.executing
            else None
        )
    if not (progress and progress.current):
        return f"rank {rank} has not begun the step"
    if progress.current.state == RUNNING:
        return f"rank {rank} has been running {ops[position]} since then"
    return f"rank {rank} stands at {ops[position]}, although what it needs was sent"


def step_text(step: int) -> str:
    """A step's number in words."""
    if step == CHECK_STEP:
        return "gradient check"
    return f"step {step}" if step >= 0 else f"warm-up {-step}"


def exit_text(exitcode: int) -> str:
    """How a process ended, in words."""
    if exitcode == -9:
        return "was killed by signal 9 (SIGKILL: by hand, or by the system because memory ran out)"
    if exitcode < 0:
        return f"was killed by signal {-exitcode} ({signal.strsignal(-exitcode)})"
    return f"ended with exit code {exitcode}"


def is_consequence(error: str) -> bool:
    """Whether a rank's error follows from another rank's, so that it is not the cause."""
    return any(word in error.lower() for word in CONSEQUENCES)
