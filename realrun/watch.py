"""What the launcher can tell from outside: who makes progress, who waits for whom, who died where."""

import signal
import time
from pathlib import Path

from realrun.merge import recordings_in, step_trace
from realrun.recorder import RUNNING
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
        name, recordings = self._current()
        seen = (name, [recording and (len(recording.records), recording.current) for recording in recordings])
        now_s = time.monotonic()
        if name is None or seen != self._last:
            self._last, self._moved_at_s = seen, now_s
            return None
        if now_s - self._moved_at_s < self._job.timeout_s:
            return None
        return f"{name}: no rank has moved for {self._job.timeout_s:g} s: {self._who_waits(name, recordings)}"

    def _current(self):
        """(name, recordings) of the program that is executing; (None, []) between programs."""
        for name in self._programs:
            recordings = recordings_in(Path(self._job.out) / name, self._job.ranks)
            if any(recording and recording.executing for recording in recordings):
                return name, recordings
        return None, []

    def _who_waits(self, name, recordings):
        program = self._programs[name]
        currents = [recording.current if recording and recording.executing else None for recording in recordings]
        running = [
            f"rank {rank} has been running {program.ranks[rank][current.position]} since then"
            for rank, current in enumerate(currents)
            if current and current.state == RUNNING
        ]
        positions = [current.position if current else len(ops) for current, ops in zip(currents, program.ranks)]
        waiting = waits(program, positions)
        if waiting and not running:
            return str(deadlock(program, positions))
        return "; ".join(running + [wait_text(wait) for wait in waiting.values()])

    def place_of(self, rank):
        """Where `rank` was last seen, in words."""
        name, recordings = self._current()
        current = recordings[rank].current if name and recordings[rank] else None
        if current is None:
            return "between steps"
        doing = "running" if current.state == RUNNING else "waiting to run"
        step = f"step {current.step}" if current.step >= 0 else "warm-up" if current.step > -1000 else "the gradient check"
        return f"{doing} {self._programs[name].ranks[rank][current.position]} in {step} of {name}"

    def save_partial(self):
        """Write what was recorded of a broken run: [paths of the partial traces, one per step begun]."""
        paths = []
        for name, program in self._programs.items():
            folder = Path(self._job.out) / name
            recordings = recordings_in(folder, self._job.ranks)
            steps = sorted({record.step for recording in recordings if recording for record in recording.records})
            for step in steps:
                trace = step_trace(program, recordings, step, 0, {"partial": True, "compute": self._job.compute})
                label = f"step-{step}" if step >= 0 else f"warm-up{step}" if step > -1000 else "gradient-check"
                paths.append(folder / f"partial-{label}.json")
                trace.save(paths[-1])
        return paths


def exit_text(exitcode):
    """How a process ended, in words."""
    if exitcode < 0:
        return f"was killed by signal {-exitcode} ({signal.Signals(-exitcode).name})"
    return f"ended with exit code {exitcode}"
