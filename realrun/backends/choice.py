"""The choice of the back-end that a job asks for. It needs no torch before it is asked to run."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from realrun.backends.torch.ops import TorchPlaces
from realrun.run.job import Job
from realrun.run.watch import InstructionPlaces, Places, ProgramPlaces, Watch

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

    from realrun.run.backend import Backend


class Backends:
    """The back-ends of one process, which is rank `rank`. groups: see `realrun.comm.channels`."""

    def __init__(
        self, rank: int, device: "torch.device", groups: "dict[int, dist.ProcessGroup]"
    ) -> None:
        from realrun.backends.torch.backend import Meshes

        self._rank, self._device, self._groups, self._meshes = rank, device, groups, Meshes()

    def of(self, job: Job, say: Callable[[str], None]) -> "Backend":
        """The `realrun.run.backend.Backend` that `job` asks for."""
        from realrun.backends.native import NativeBackend
        from realrun.backends.torch.backend import TorchBackend

        if job.backend == "torch":
            return TorchBackend(job, self._rank, self._device, self._meshes)
        return NativeBackend(job, self._rank, self._device, self._groups, say)


def watch_of(job: Job) -> Watch:
    """The `Watch` that looks after the ranks of `job` while they run, wherever this process moves
    meanwhile."""
    runs: dict[str, tuple[Path, Places]]
    if job.programs is not None:
        facts = {"compute": job.compute}
        runs = {
            run.name: (run.folder.absolute(), ProgramPlaces(run.name, run.program, facts))
            for run in job.runs
        }
    elif job.backend == "torch":
        runs = {job.name: (job.folder.absolute(), TorchPlaces(job))}
    else:
        instructions = [job.instructions(rank) for rank in range(job.ranks)]
        runs = {job.name: (job.folder.absolute(), InstructionPlaces(job.executed, instructions))}
    return Watch(job.ranks, job.timeout_s, runs)
