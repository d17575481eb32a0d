"""What a job needs of the machine: bytes on the disk and in memory, and connections."""

from collections.abc import Iterable

from realrun.record.recorder import RECORD
from realrun.run.job import pipelines
from realrun.run.job.derived import Derived
from simlab.program import Program

STATE_BYTES, ACTIVATION_BYTES = 48, 8 * 16
"""Bytes of a parameter on each rank: in training, and in float64 with its gradient for the check of
gradients, which each rank computes by itself, and for the reference. Bytes of the activations of a
layer, a token and a hidden value in that check, in float64."""


def record_bytes(job: Derived) -> int:
    """Bytes of the records of all ranks, in the run that has most."""
    steps = job.recorded_steps
    if job.programs is not None:
        return max(steps * RECORD.size * len(run.program.rank_of) for run in job.runs)
    per_step = max(len(job.instructions(rank)) for rank in range(job.ranks))
    return job.ranks * steps * per_step * RECORD.size


def pairs(programs: Iterable[Program]) -> list[tuple[int, int]]:
    """[(a, b)], a < b: the pipeline ranks that exchange messages in any of `programs`."""
    talk = {
        (min(rank, step.destination), max(rank, step.destination))
        for program in programs
        for rank, steps in enumerate(program.lowered)
        for step in steps
        if step.destination is not None
    }
    return sorted(talk)


def model_bytes(job: Derived) -> float:
    """Bytes that all ranks together need for the model, about."""
    if job.programs is not None:
        return pipelines.model_bytes(job.sizes, [run.program for run in job.runs])
    tokens = job.given.global_batch * job.sizes["seq"]
    activations = ACTIVATION_BYTES * job.sizes["hidden"] * job.sizes["layers"] * tokens
    return job.ranks * (job.model.parameters * STATE_BYTES + activations)
