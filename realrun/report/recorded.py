"""What a run that broke off has recorded: its whole steps as traces, and where each rank was."""

from collections import Counter
from dataclasses import replace
from typing import NamedTuple

from realrun.backends.choice import watch_of
from realrun.record.instructions import measured_traces
from realrun.record.merge import recordings_in, step_trace
from realrun.record.recorder import RankProgress, Recording
from realrun.run.job import Job, Run
from simlab.errors import InputError
from simlab.trace import Trace


class Recorded(NamedTuple):
    """What is in the folder of a run."""

    steps: list[Trace]
    """Of each step that all ranks have recorded whole."""
    places: list[str]
    """Where each rank was."""


def recorded(job: Job, run: Run) -> Recorded:
    """What the ranks of `job` have recorded of `run` in its folder. `InputError` where a rank has
    recorded nothing."""
    found = recordings_in(run.folder, job.ranks)
    recordings = [one for one in found if one is not None]
    if not recordings and (run.folder / "measured.json").exists():
        raise InputError(
            f"{str(run.folder)!r} is of a run that came to its end: see its report.html, and `simlab why` with "
            "its measured.json"
        )
    if len(recordings) < job.ranks:
        lacking = [str(rank) for rank, one in enumerate(found) if one is None]
        raise InputError(f"{str(run.folder)!r} has no recording of rank {', '.join(lacking)}")
    seen = [RankProgress.load(run.folder / f"rank{rank}.records") for rank in range(job.ranks)]
    watch = watch_of(job)
    places = [watch.place_of(rank) for rank in range(job.ranks)]
    whole = _whole_steps(recordings, seen)
    return Recorded(_traces(job, run, recordings, whole), places)


def _whole_steps(recordings: list[Recording], seen: list[RankProgress | None]) -> list[int]:
    """The measured steps of which every rank has all records: as many as of its longest step, and
    none that it is in."""
    steps: set[int] | None = None
    for recording, progress in zip(recordings, seen):
        counts = Counter(record.step for record in recording.records if record.step >= 0)
        most = max(counts.values(), default=0)
        own = {step for step, count in counts.items() if count == most}
        if progress and progress.executing and progress.current:
            own.discard(progress.current.step)
        steps = own if steps is None else steps & own
    return sorted(steps or ())


def _traces(job: Job, run: Run, recordings: list[Recording], steps: list[int]) -> list[Trace]:
    if not steps:
        return []
    if job.programs is not None:
        facts = {"compute": job.compute, "model": job.sizes}
        size = job.message_bytes
        return [step_trace(run.program, recordings, step, size, facts) for step in steps]
    until = replace(job, steps=steps[-1] + 1)  # it keeps the last ones
    if job.backend == "torch":
        import torch

        from realrun.backends.torch.backend import Meshes, TorchBackend

        backend = TorchBackend(until, 0, torch.device("cpu"), Meshes())
        traces = backend.traces(run, recordings, "cpu")
    else:
        traces = measured_traces(until, recordings, "cpu")
    return [trace for trace in traces if trace.metadata["step"] in steps]
