"""What the launcher can tell from outside: who makes progress, who waits for whom, who died where."""

import signal
import time
from pathlib import Path

from realrun.merge import recordings_in, step_trace
from realrun.recorder import CHECK_STEP, RUNNING, Progress
from simlab.validation import deadlock, wait_text, waits


class Watch:
    """Watches the recordings of a job's ranks in its out folder."""

    def __init__(self, job):
        self._job = job
        self._programs = {name: job.program(name) for name in job.programs}
        self._moved_at_s = time.monotonic()
        self._last = None

    def stuck(self):
        """None while some rank moves or none is executing; after `timeout_s` without: one line that says who waits."""
        name, seen = now_at = self._current()
        now_s = time.monotonic()
        if name is None or now_at != self._last:
            self._last, self._moved_at_s = now_at, now_s
            return None
        if now_s - self._moved_at_s < self._job.timeout_s:
            return None
        return f"{name}: no rank has moved for {self._job.timeout_s:g} s: {self._who_waits(name, seen)}"

    def _current(self):
        """(name, [`Progress` of each rank]) of the program that is executing; (None, []) between steps."""
        for name in self._programs:
            ranks = [Progress.load(Path(self._job.out) / name / f"rank{rank}.records") for rank in range(self._job.ranks)]
            if any(progress and progress.executing for progress in ranks):
                return name, ranks
        return None, []

    def _who_waits(self, name, ranks):
        program = self._programs[name]
        positions = _positions(program, ranks)
        waiting = waits(program, positions)
        at_work = [_at_work(rank, *item) for rank, item in enumerate(zip(ranks, positions, program.ranks)) if rank not in waiting]
        if waiting and not any(at_work):
            return str(deadlock(program, positions))
        return "; ".join([text for text in at_work if text] + [wait_text(wait) for wait in waiting.values()])

    def place_of(self, rank):
        """Where `rank` was last seen, in words."""
        name, ranks = self._current()
        current = ranks[rank].current if name and ranks[rank] else None
        if current is None:
            return "outside the steps"
        doing = "running" if current.state == RUNNING else "waiting to run"
        return f"{doing} {self._programs[name].ranks[rank][current.position]} in {step_text(current.step)} of {name}"

    def save_partial(self):
        """Write what was recorded of a broken run: [paths of the partial traces, one per step begun]."""
        paths = []
        for name, program in self._programs.items():
            folder = Path(self._job.out) / name
            recordings = recordings_in(folder, self._job.ranks)
            steps = sorted({record.step for recording in recordings if recording for record in recording.records})
            for step in steps:
                trace = step_trace(program, recordings, step, 0, {"partial": True, "compute": self._job.compute})
                paths.append(folder / f"partial-{step_text(step).replace(' ', '-')}.json")
                trace.save(paths[-1])
        return paths


def _positions(program, ranks):
    """[how many ops of the current step each rank has run]: every step adds as many records as the rank has ops."""
    done = [progress.done if progress else 0 for progress in ranks]
    steps = max((done[r] - (rank.current is None)) // len(program.ranks[r]) for r, rank in enumerate(ranks) if rank and rank.executing)
    return [max(0, min(len(ops), count - steps * len(ops))) for count, ops in zip(done, program.ranks)]


def _at_work(rank, progress, position, ops):
    """What `rank`, which waits for no op, has been doing all the time; None if it has done its part of the step."""
    if position == len(ops):
        return f"rank {rank} has run all its ops, but not all that it sent was received" if progress and progress.executing else None
    if not (progress and progress.current):
        return f"rank {rank} has not begun the step"
    if progress.current.state == RUNNING:
        return f"rank {rank} has been running {ops[position]} since then"
    return f"rank {rank} stands at {ops[position]}, although what it needs was sent"


def step_text(step):
    """A step's number in words."""
    if step == CHECK_STEP:
        return "gradient check"
    return f"step {step}" if step >= 0 else f"warm-up {-step}"


def exit_text(exitcode):
    """How a process ended, in words."""
    if exitcode == -9:
        return "was killed by signal 9 (SIGKILL: by hand, or by the system because memory ran out)"
    if exitcode < 0:
        return f"was killed by signal {-exitcode} ({signal.strsignal(-exitcode)})"
    return f"ended with exit code {exitcode}"
