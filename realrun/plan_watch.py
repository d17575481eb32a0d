"""What the launcher can tell of a plan's run from outside: where each rank is in its list, and whom the others wait for."""

import time

from realrun.plan_report import Members
from realrun.recorder import RUNNING, Progress
from realrun.watch import step_text
from simlab.instructions import BEGIN, WAIT


class PlanWatch:
    """Watches the recordings of a `PlanJob`'s ranks in its folder."""

    def __init__(self, job):
        self._job, self._members = job, Members(job.executed)
        self._lists = [job.instructions(rank) for rank in range(job.ranks)]
        self._moved_at_s, self._last = time.monotonic(), None

    def stuck(self):
        """None while some rank moves or none is executing; after `timeout_s` without: one line that says who waits for whom."""
        seen, now_s = self._progress(), time.monotonic()
        if seen != self._last or not any(progress and progress.executing for progress in seen):
            self._last, self._moved_at_s = seen, now_s
            return None
        if now_s - self._moved_at_s < self._job.timeout_s:
            return None
        return f"{self._job.name}: no rank has moved for {self._job.timeout_s:g} s: {self._blame(seen)}"

    def place_of(self, rank):
        """Where `rank` was last seen, in words."""
        return self._place(rank, self._progress()[rank])

    def save_partial(self):
        """[paths of what was recorded of a broken run]: the recordings themselves."""
        return sorted(self._job.folder.glob("rank*.records"))

    def _progress(self):
        return [Progress.load(self._job.folder / f"rank{rank}.records") for rank in range(self._job.ranks)]

    def _at(self, rank, progress):
        """The instruction that `rank` is at."""
        position = progress.current.position if progress and progress.current else 0
        return self._lists[rank][min(position, len(self._lists[rank]) - 1)]

    def _place(self, rank, progress):
        if not (progress and progress.executing):
            return "outside the steps"
        instruction = self._at(rank, progress)
        name = f"{instruction.op} {instruction.name}".strip()
        if progress.current is None or instruction.action != WAIT:
            doing = "running" if progress.current and progress.current.state == RUNNING else "at"
        else:
            doing = f"waiting for the {instruction.dimension} {instruction.kind} of"
        step = f" in {step_text(progress.current.step)}" if progress.current else ""
        return f"{doing} {name}{step}"

    def _blame(self, seen):
        """Ranks that wait for a communication which others have not begun, and what those are doing instead."""
        waiting = {rank: self._at(rank, p) for rank, p in enumerate(seen) if p and p.current and self._at(rank, p).action == WAIT}
        at_work = [rank for rank in range(len(seen)) if rank not in waiting]
        lines = [f"rank {rank} is {self._place(rank, seen[rank])}" for rank in at_work]
        for rank, instruction in waiting.items():
            late = [
                other for other in self._members.ranks(rank, instruction) if other != rank and not self._begun(other, instruction, seen)
            ]
            text = f"rank {rank} waits for the {instruction.dimension} {instruction.kind} of {instruction.op} {instruction.name}"
            lines.append(text + (f", which rank {', '.join(map(str, late))} has not begun" if late else ""))
        return "; ".join(lines)

    def _begun(self, rank, instruction, seen):
        """Whether `rank` has come past the begin of the communication `instruction` in this step."""
        progress = seen[rank]
        position = progress.current.position if progress and progress.current else 0
        return any(
            other.action == BEGIN and (other.op, other.name) == (instruction.op, instruction.name) for other in self._lists[rank][:position]
        )
