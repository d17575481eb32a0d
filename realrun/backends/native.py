"""The native back-end, which is realrun's own executor. Plans run at full speed or in a box, and
each rank is held to the simulator's list. Pipelines are timed op by op, and predicted from a
calibration."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from realrun.backends.calibration import Calibrator
from realrun.comm.channels import Channels, Pace
from realrun.comm.mesh import Mesh, check_groups, groups_of
from realrun.measure.overhead import mean_overhead
from realrun.measure.timers import CudaTimer, HostTimer
from realrun.parallel.copies import Copies
from realrun.parallel.precision import TYPES
from realrun.record.activations import SavedActivations
from realrun.record.instructions import measured_traces
from realrun.record.merge import step_trace
from realrun.record.recorder import Recorder, Recording
from realrun.record.step_log import OpLog, StepLog
from realrun.run.box import Box, Overhead
from realrun.run.conformance import Conformance
from realrun.run.executor import Executor
from realrun.run.faults import Fault
from realrun.run.job import Job, Run
from realrun.run.session import LEARNING_RATE
from simlab.program import Program
from simlab.trace import Trace

Log = Callable[[SavedActivations], StepLog]
"""What makes the log of a training."""


class NativeBackend:
    """A `realrun.run.backend.Backend`. groups: the two directed groups, see
    `realrun.comm.channels`."""

    def __init__(
        self,
        job: Job,
        rank: int,
        device: torch.device,
        groups: dict[int, dist.ProcessGroup],
        say: Callable[[str], None],
    ) -> None:
        self.job, self.rank, self.device, self.groups, self.say = job, rank, device, groups, say
        plan = job.executed
        self.layout = plan.layout
        self.box = Box(job) if job.box is not None else None
        self.time_scale = None if self.box is None else self.box.time_scale
        self.overhead = Overhead()
        self.instructions = job.instructions(rank) if job.programs is None else []

    def open(self, clock_offset_s: float, uncertainty_s: float) -> None:
        """See `Backend`. Groups are torch's, or in a box rounds of messages, which can be paced."""
        self.clock = clock_offset_s, uncertainty_s
        self.made: list[dist.ProcessGroup] = []
        self.copies: dict[str, Copies] = {}
        if self.box is None:
            backend = "nccl" if self.device.type == "cuda" else "gloo"
            self.mesh = Mesh(self.layout, self.rank, backend=backend)
        else:
            channels = {}
            for dimension in groups_of(self.layout):
                directed = {direction: dist.new_group() for direction in (1, -1)}
                self.made += directed.values()
                channels[dimension] = self._channels(directed, (0.0, None))
            self.mesh = Mesh(self.layout, self.rank, channels=channels)
        check_groups(self.mesh.groups, self.rank, self.job.ranks)
        self.mesh.traffic.clear()
        self.links = self._links()

    def close(self) -> None:
        """See `Backend`."""
        for copies in self.copies.values():
            copies.close()
        self.mesh.close()
        for group in self.made:
            dist.destroy_process_group(group)

    def _channels(self, groups: dict[int, dist.ProcessGroup], pace: Pace | None) -> Channels:
        return Channels(self.rank, self.device, groups, clock_offset_s=self.clock[0], pace=pace)

    def _links(self) -> Channels:
        """`Channels` to the other stages. NCCL makes a pair's connection at its first message, so
        that happens here, in one order on all ranks."""
        job = self.job
        pace: Pace | None = None
        if self.box is not None:
            pace = 0.0, None
        elif job.paced:
            pace = job.link_s, job.link_bytes_per_s
        channels = self._channels(self.groups, pace)
        ranks = self.layout.group("pp", self.rank)
        channels.connect(sorted((ranks[a], ranks[b]) for a, b in job.pairs()))
        return channels

    def predicted(self) -> dict[str, Trace]:
        """See `Backend`. A box is predicted once it is known what processes need besides, and
        pipelines from a calibration."""
        job = self.job
        if self.box is not None:
            self.say("measuring what processes need besides")
            self.overhead = Overhead(*mean_overhead(self.mesh))
            return {} if self.rank else {job.name: self.box.predicted(self.overhead)}
        if job.programs is None:
            return {}
        self.say("calibrating: each op kind and each link alone")
        calibrations = Calibrator(
            job, self.rank, self.device, self.links, self.clock, self._timed, self._alone
        ).calibrations()
        if self.rank or not job.checked:
            return {}
        return {run.name: calibrations[run.program.stages].predict(run.program) for run in job.runs}

    def _timed(self, run: Run) -> Executor:
        """The `Executor` of a program as it is timed."""
        return self._executor(run, self._op_log(run, None, padded=True), torch.float32)

    def _alone(self, program: Program, recorder: Recorder) -> Executor:
        """The `Executor` of a pipeline of this rank alone, with one layer."""
        run = self.job.pipeline("alone", program)
        padding = self.job.padding(self.job.ranks) if self.job.compute == "padded" else None
        return Executor(
            self.job.sizes | {"layers": 1},
            run.plan,
            program,
            Mesh.of_one(),
            self.links,
            lambda activations: OpLog(recorder, self._timer(padding), activations),
            dtype=torch.float32,
            device=self.device,
            optimizer=_adam,
        )

    def records(self, run: Run) -> int:
        """See `Backend`."""
        return len(run.program.ranks[self.rank] if self.job.programs else self.instructions)

    def training(self, run: Run, recorder: Recorder, *, checking: bool) -> Executor:
        """See `Backend`: an `Executor`."""
        dtype = torch.float64 if checking else TYPES[run.plan.precision]
        log = (
            self._conformance(recorder, checking)
            if self.job.programs is None
            else self._op_log(run, recorder, padded=not checking)
        )
        self.mesh.traffic.clear()
        return self._executor(run, log, dtype, checking=checking)

    def _executor(
        self, run: Run, log: Log, dtype: torch.dtype, *, checking: bool = False
    ) -> Executor:
        job, channels = self.job, self.links
        if self.box is not None and not checking:
            latency_s, wire_s = self.box.message_s()
            size = next((i.size_bytes for i in self.instructions if i.kind == "message"), 0)
            channels.pace = latency_s, size / wire_s if wire_s and size else None
        return Executor(
            job.sizes | {"microbatch_size": run.plan.microbatch_size},
            run.plan,
            run.program,
            self.mesh,
            channels,
            log,
            dtype=dtype,
            device=self.device,
            optimizer=_adam,
            limit=job.clip_norm,
            fault=Fault.of(job.fault, job.ranks) if job.fault and not checking else None,
            loss_scale=job.loss_scale,
            valid=job.checked,
            stage_layers=job.stage_layers,
            copies=self._copies(run),
        )

    def _copies(self, run: Run) -> Copies | None:
        """The `Copies` of a program's stages, which are made once for each program; None for a
        plan."""
        if self.job.programs is None:
            return None
        if run.name not in self.copies:
            self.copies[run.name] = Copies(run.program)
        return self.copies[run.name]

    def _op_log(self, run: Run, recorder: Recorder | None, *, padded: bool) -> Log:
        """What makes of `SavedActivations` the log that notes each op."""
        padded = padded and self.job.compute == "padded"
        padding = self.job.padding(run.program.stages) if padded else None
        return lambda activations: OpLog(recorder, self._timer(padding), activations)

    def _timer(self, padding: dict[str, float] | None) -> CudaTimer | HostTimer:
        return CudaTimer() if self.device.type == "cuda" else HostTimer(padding)

    def _conformance(self, recorder: Recorder, checking: bool) -> Log:
        """What makes of `SavedActivations` the log that holds this rank to its list."""
        on_cuda = self.device.type == "cuda"
        settle = torch.cuda.current_stream().synchronize if on_cuda else lambda: None
        seconds = self.box.seconds(self.rank) if self.box is not None and not checking else None
        return lambda activations: Conformance(
            self.rank,
            self.instructions,
            recorder,
            seconds=seconds,
            check_bytes=not checking,
            activations=activations,
            settle=settle,
        )

    def traces(self, run: Run, recordings: Sequence[Recording], device: str) -> list[Trace]:
        """See `Backend`. A plan's trace has a span for each instruction, and a pipeline's a span
        for each op."""
        job = self.job
        if job.programs is None:
            return measured_traces(job, recordings, device)
        facts = {"compute": job.compute, "device": device, "model": job.sizes}
        return [
            step_trace(run.program, recordings, step, job.message_bytes, facts)
            for step in job.kept_steps
        ]

    def facts(self) -> dict[str, Any]:
        """See `Backend`."""
        if self.box is None:
            return {}
        overhead = {"compute": self.overhead.compute_s, "round": self.overhead.round_s}
        return {"time_scale": self.time_scale, "overhead_s": overhead}


def _adam(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=LEARNING_RATE, fused=True)
