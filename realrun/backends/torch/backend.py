"""The back-end that runs a plan by torch's own means."""

import logging
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh

from realrun.backends.torch.ops import ops_of
from realrun.backends.torch.training import TorchTraining
from realrun.comm.mesh import device_mesh
from realrun.measure.timers import CudaTimer, HostTimer
from realrun.record.merge import from_zero
from realrun.record.recorder import Recorder, Recording
from realrun.record.step_log import OpLog
from realrun.run.job import Job, Run
from simlab.spec.layout import Layout
from simlab.trace import OPTIMIZER, Span, Trace


class Meshes:
    """The `DeviceMesh`es of a process, each made once. DTensor remembers meshes, so the groups of
    an equal mesh must live as long as the process."""

    def __init__(self) -> None:
        self._made: dict[Any, DeviceMesh] = {}

    def of(self, layout: Layout, device_type: str) -> DeviceMesh:
        """The mesh of `layout`. All ranks call it together."""
        key = device_type, *layout.sizes.items()
        if key not in self._made:
            backend = "nccl" if device_type == "cuda" else None
            self._made[key] = device_mesh(layout, device_type, backend)
        return self._made[key]


class TorchBackend:
    """A `realrun.run.backend.Backend`. meshes: the `Meshes` of this process."""

    time_scale: float | None = None

    def __init__(self, job: Job, rank: int, device: torch.device, meshes: Meshes) -> None:
        self.job, self.rank, self.device, self.meshes = job, rank, device, meshes
        self.layout = job.executed.layout
        self.ops = ops_of(job, rank)

    def open(self, clock_offset_s: float, uncertainty_s: float) -> None:
        """See `Backend`."""
        # that no op in place may follow the head: none does
        warnings.filterwarnings("ignore", "FSDP2-wrapped module")
        # the check's full tensors may be slow
        logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)
        # on each rank that has lost another one, a screenful
        logging.getLogger("torch.distributed.pipelining.schedules").setLevel(logging.CRITICAL)
        self.mesh = self.meshes.of(self.layout, self.device.type)

    def close(self) -> None:
        """The meshes stay, see `Meshes`."""

    def predicted(self) -> dict[str, Trace]:
        """See `Backend`. It predicts nothing."""
        return {}

    def records(self, run: Run) -> int:
        """See `Backend`."""
        return len(self.ops)

    def training(self, run: Run, recorder: Recorder, *, checking: bool) -> TorchTraining:
        """See `Backend`."""
        timer = CudaTimer() if self.device.type == "cuda" else HostTimer()
        return TorchTraining(
            self.job,
            self.rank,
            self.device,
            self.layout,
            self.mesh,
            OpLog(recorder, timer),
            self.ops,
            dtype=torch.float64 if checking else torch.float32,
            precision="fp32" if checking else self.job.executed.precision,
        )

    def traces(self, run: Run, recordings: Sequence[Recording], device: str) -> list[Trace]:
        """See `Backend`. A trace has a span for each op, and one for what follows the last
        backward."""
        steps = sorted({r.step for r in recordings[0].records} & set(self.job.kept_steps))
        return [self._trace(recordings, step, device) for step in steps]

    def _trace(self, recordings: Sequence[Recording], step: int, device: str) -> Trace:
        spans = []
        for rank, recording in enumerate(recordings):
            ops, late_s = ops_of(self.job, rank), recording.clock_offset_s
            for record in recording.records:
                if record.step != step:
                    continue
                op, times_s = ops[record.position], (record.start_s + late_s, record.end_s + late_s)
                if isinstance(op, str):
                    spans.append(Span(rank, OPTIMIZER, OPTIMIZER, *times_s, kind=OPTIMIZER))
                else:
                    spans.append(Span.of_op(op, rank, *times_s))
        zero_s = min(span.start_s for span in spans)
        metadata = {
            "name": self.job.name,
            "source": "measured",
            "ranks": self.job.ranks,
            "level": "instructions",
            "step": step,
            "device": device,
            "exposed_s": [],
        }
        return Trace(*from_zero(spans, [], zero_s), metadata)

    def facts(self) -> dict[str, Any]:
        """See `Backend`. It adds none."""
        return {}
