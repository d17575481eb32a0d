"""The calibration of a job's pipelines: each op kind and each link is measured alone, before
anything runs."""

import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from realrun.backends.op_times import op_gaps, op_times
from realrun.comm.channels import Channels
from realrun.comm.control import gather_bytes, greatest
from realrun.measure.cores import usable_cores
from realrun.measure.disturbance import Disturbance, disturbance
from realrun.measure.pings import PAUSE_S, fit_link, link_times, typical
from realrun.model.text import batch
from realrun.record.allocator import device_name
from realrun.record.recorder import Recorder
from realrun.run.executor import Executor
from realrun.run.job import Job, Run
from simlab.program import Op, Program
from simlab.training.calibration import Calibration

GAP_MICROBATCHES = 16
TRIES = 3
"""How often a calibration is measured that something else on the machine disturbs."""


class Calibrator:
    """One rank's part of the calibration of `job`. All ranks call the same methods together.

    channels:    `Channels` to the other ranks.
    clock:       (offset from rank 0's clock, how far that may be off), s.
    executor_of: function of a run that returns the `Executor` of its program in this rank's compute
                 mode.
    alone:       function of a program of one rank and a recorder that returns its `Executor`, with
                 one layer.
    """

    def __init__(
        self,
        job: Job,
        rank: int,
        device: torch.device,
        channels: Channels,
        clock: tuple[float, float],
        executor_of: Callable[[Run], Executor],
        alone: Callable[[Program, Recorder], Executor],
    ) -> None:
        self.job, self.rank, self.device, self.channels = job, rank, device, channels
        self.clock, self.executor_of, self.alone = clock, executor_of, alone
        sizes = job.sizes
        self.form = (sizes["microbatch_size"], sizes["seq"], sizes["hidden"]), torch.float32

    def calibrations(self) -> dict[int, Calibration]:
        """{number of stages: `Calibration`} on rank 0, which are written to the out folder before
        anything runs; {} elsewhere. What something else disturbs is measured again, `TRIES` times
        at most, and the least disturbed counts."""
        job = self.job
        padded = job.compute == "padded"
        asked_s = {count: job.padding(count) if padded else {} for count in job.stage_counts}
        tries: list[tuple[Disturbance, list[dict[str, Any]]]] = []
        for _ in range(TRIES):
            everyone = self._measured()
            if self.rank == 0:
                tries.append((disturbance(everyone, asked_s, job.link_s), everyone))
            if not greatest(self.rank == 0 and tries[-1][0].tells):
                break
        if self.rank != 0:
            return {}
        least, everyone = min(tries, key=lambda one: one[0].times)
        calibrations = {stages: self._calibration(everyone, stages) for stages in job.stage_counts}
        for stages, calibration in calibrations.items():
            calibration.metadata |= {
                "calibrated_times": len(tries),
                "disturbed_by": least.text if least.tells else None,
            }
            calibration.save(job.calibration_path(stages))
        return calibrations

    def _measured(self) -> list[dict[str, Any]]:
        """[per rank] what each measured, on rank 0; [] elsewhere."""
        job = self.job
        at_once = {"real": 1, "cuda": job.ranks}.get(job.compute or "", usable_cores())
        times = {}
        for stages in job.stage_counts:
            run = next(run for run in job.runs if run.program.stages == stages)
            executor = self.executor_of(run)
            given = self._batch(run.program), self.form, at_once, job.orders(stages)
            times[stages] = op_times(executor, *given)
        links = link_times(self.channels, job.pairs(), self.form, pause_s=pause_s(job))
        mine = {
            "ops": times,
            "links": [[*pair, samples] for pair, samples in links.items()],
            "gaps": self._op_gaps(),
            "clock": self.clock,
        }
        return [json.loads(data) for data in gather_bytes(json.dumps(mine).encode())]

    def _op_gaps(self) -> list[float]:
        """The seconds between two ops of this rank, measured in a step of a pipeline of its own,
        with one stage of one layer."""
        visits = [
            (Op(0, "F", microbatch), Op(0, "B", microbatch))
            for microbatch in range(GAP_MICROBATCHES)
        ]
        program = Program([[op for visit in visits for op in visit]])
        with tempfile.TemporaryDirectory() as folder:
            recorder = Recorder(Path(folder) / "records", len(program.ranks[0]), self.clock[0])
            gaps = op_gaps(self.alone(program, recorder), recorder, *self._batch(program))
            recorder.close()
        return gaps

    def _batch(self, program: Program) -> tuple[Tensor, Tensor]:
        sizes = self.job.sizes
        data = batch(0, program.microbatches, sizes["microbatch_size"], sizes["seq"])
        return data[0].to(self.device), data[1].to(self.device)

    def _calibration(self, everyone: list[dict[str, Any]], stages: int) -> Calibration:
        job = self.job
        seconds: dict[int, dict[str, float]] = {}
        links: dict[str, dict[str, float]] = {}
        for part in everyone:
            for stage, kinds in part["ops"][str(stages)].items():
                seconds[int(stage)] = {kind: median(samples) for kind, samples in kinds.items()}
            for a, b, samples in part["links"]:
                links[f"{a}-{b}"] = links[f"{b}-{a}"] = fit_link(samples)
        return Calibration(
            op_seconds={
                kind: [seconds[stage][kind] for stage in sorted(seconds)] for kind in seconds[0]
            },
            links=links,
            op_gap_s=typical([gap for part in everyone for gap in part["gaps"]]),
            message_bytes=job.message_bytes,
            cores=usable_cores() if job.compute == "real" else None,
            metadata={
                "compute": job.compute,
                "why_compute": job.why_compute,
                "model": job.sizes,
                "asked_forward_s": job.forward_s if job.compute == "padded" else None,
                "asked_backward_s": job.backward_s if job.compute == "padded" else None,
                "asked_link_s": job.link_s,
                "asked_link_bytes_per_s": job.link_bytes_per_s,
                "device": device_name(self.device),
                "cores_of_machine": usable_cores(),
                "torch": torch.__version__,
                "clock_offset_s": [part["clock"][0] for part in everyone],
                "clock_uncertainty_s": [part["clock"][1] for part in everyone],
                "measured_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            },
        )


def pause_s(job: Job) -> float:
    """Seconds that a rank of `job` sleeps before each send that is timed: as long as its padded
    forward takes, and at most `PAUSE_S`."""
    if job.compute != "padded" or job.forward_s is None:
        return PAUSE_S
    return min(PAUSE_S, job.forward_s)
