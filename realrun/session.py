"""What every rank does with a job: calibrate, predict, run, check. The same function on all ranks; rank 0 answers."""

import json
import platform
import tempfile
import time
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist

from realrun.channels import Channels
from realrun.clock import offset_from_rank_0
from realrun.compute import CudaTimer, HostTimer
from realrun.copies import Copies
from realrun.executor import Executor
from realrun.job import usable_cores
from realrun.measure import fit_link, link_times, op_gaps, op_times, typical
from realrun.merge import step_trace
from realrun.model import Stage
from realrun.recorder import CHECK_STEP, Recorder, Recording
from realrun.reference import gradient_error, single_process
from realrun.text import batch
from simlab.calibration import Calibration
from simlab.program import Op, Program

GAP_MICROBATCHES = 16


class Session:
    """One rank's side of one job. `groups` are the two directed groups, see `realrun.channels`."""

    def __init__(self, job, rank, device, groups, say):
        self.job = job
        self.rank = rank
        self.world = job.ranks
        self.device = device
        self.groups = groups
        self.say = say  # rank 0 tells people what is going on
        self.out = Path(job.out)
        model = job.model
        self.message_shape = (model["microbatch_size"], model["seq"], model["hidden"])

    def run(self):
        """{"runs": [one dict per program], ...} on rank 0; None elsewhere."""
        job = self.job
        self.offset_s, self.uncertainty_s = offset_from_rank_0(self.rank, self.world)
        pace = (job.link_s, job.link_bytes_per_s) if job.paced else None
        self.channels = Channels(self.rank, self.device, self.groups, clock_offset_s=self.offset_s, pace=pace)
        self.channels.connect(job.pairs())
        calibrations = self._calibrate()
        runs = [self._run_program(name, calibrations) for name in job.programs]
        if self.rank != 0:
            return None
        return {"calibrations": [str(job.calibration_path(stages)) for stages in job.stage_counts], "runs": runs}

    # calibration and prediction -----------------------------------------------------------------------------

    def _calibrate(self):
        """{number of stages: `Calibration`} on rank 0 (None elsewhere), written to the out folder before anything runs."""
        job = self.job
        self.say("calibrating: each op kind and each link alone")
        at_once = {"real": 1, "cuda": self.world}.get(job.compute, usable_cores())
        times = {}
        for stages in job.stage_counts:
            program = next(program for program in map(job.program, job.programs) if program.stages == stages)
            executor = self._executor(program, torch.float32, recorder=None)
            tokens, targets = self._batch(program, 0)
            times[stages] = op_times(executor, tokens, targets, self.world, at_once, job.orders(stages))
        links = link_times(self.channels, job.pairs(), (self.message_shape, torch.float32))
        mine = {"ops": times, "links": [[*pair, samples] for pair, samples in links.items()],
                "gaps": self._op_gaps(), "clock": [self.offset_s, self.uncertainty_s]}  # fmt: skip
        everyone = [json.loads(data) for data in gather_bytes(json.dumps(mine).encode())]
        if self.rank != 0:
            return None
        calibrations = {stages: self._calibration(everyone, stages) for stages in job.stage_counts}
        for stages, calibration in calibrations.items():
            calibration.save(job.calibration_path(stages))
        return calibrations

    def _op_gaps(self):
        """[seconds between two ops of this rank], measured in a step of a pipeline of its own, with one stage of one layer."""
        visits = [(Op(0, "F", microbatch), Op(0, "B", microbatch)) for microbatch in range(GAP_MICROBATCHES)]
        program = Program([[op for visit in visits for op in visit]])
        stage = Stage(self.job.model | {"layers": 1}, 0, 1).to(self.device, torch.float32)
        padding = self.job.padding(self.world) if self.job.compute == "padded" else None
        with tempfile.TemporaryDirectory() as folder:
            recorder = Recorder(Path(folder) / "records", len(program.ranks[0]), self.offset_s)
            executor = Executor(program, 0, {0: stage}, self.channels, self._timer(padding), recorder, (self.message_shape, torch.float32))
            gaps = op_gaps(executor, *self._batch(program, 0))
            recorder.close()
        return gaps

    def _calibration(self, everyone, stages):
        job, seconds, links = self.job, {}, {}
        for part in everyone:
            for stage, kinds in part["ops"][str(stages)].items():
                seconds[int(stage)] = {kind: median(samples) for kind, samples in kinds.items()}
            for a, b, samples in part["links"]:
                links[f"{a}-{b}"] = links[f"{b}-{a}"] = fit_link(samples)
        return Calibration(
            op_seconds={kind: [seconds[stage][kind] for stage in sorted(seconds)] for kind in seconds[0]},
            links=links,
            op_gap_s=typical([gap for part in everyone for gap in part["gaps"]]),
            message_bytes=job.message_bytes,
            cores=usable_cores() if job.compute == "real" else None,
            metadata={
                "compute": job.compute, "why_compute": job.why_compute, "model": job.model,
                "asked_forward_s": job.forward_s if job.compute == "padded" else None,
                "asked_backward_s": job.backward_s if job.compute == "padded" else None,
                "asked_link_s": job.link_s, "asked_link_bytes_per_s": job.link_bytes_per_s,
                "device": device_name(self.device), "cores_of_machine": usable_cores(), "torch": torch.__version__,
                "clock_offset_s": [part["clock"][0] for part in everyone],
                "clock_uncertainty_s": [part["clock"][1] for part in everyone],
                "measured_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            },
        )  # fmt: skip

    # one program --------------------------------------------------------------------------------------------

    def _run_program(self, name, calibrations):
        job, program, folder = self.job, self.job.program(name), self.out / name
        folder.mkdir(parents=True, exist_ok=True)
        if self.rank == 0:
            program.to_csv(folder / "program.csv")
            if job.checked:
                calibrations[program.stages].predict(program).save(folder / "predicted.json")
        dist.barrier()
        self.say(f"{name}: gradients against one process")
        steps = job.warmup + job.steps
        recorder = Recorder(folder / f"rank{self.rank}.records", (1 + steps) * len(program.ranks[self.rank]), self.offset_s)
        self.copies = Copies(program)
        checked = self._check_gradients(program, recorder)
        self.say(f"{name}: {job.warmup} warm-up and {job.steps} measured steps")
        losses = self._train(program, recorder)
        parts = gather_bytes(json.dumps({**checked, "losses": losses}).encode())
        recordings = gather_bytes(recorder.contents())
        recorder.close()
        self.copies.close()
        if self.rank != 0:
            return None
        return self._result(name, program, [json.loads(part) for part in parts], recordings)

    def _check_gradients(self, program, recorder):
        """{"gradient_error", "loss", "expected_loss"} of this rank: one step in float64 against `single_process`."""
        executor = self._executor(program, torch.float64, recorder, padded=False)
        tokens, targets = self._batch(program, 0)
        # first the reference: CUDA may wait for the whole device when it loads a kernel, posted receives included
        expected_loss, expected = single_process(self.job.model, program.stages, tokens, targets, torch.float64)
        dist.barrier()
        loss = executor.step(CHECK_STEP, tokens, targets)
        self.copies.sum_gradients(self.rank, executor.stages)
        worst = max(gradient_error(module, expected[stage]) for stage, module in executor.stages.items())
        return {"gradient_error": worst, "loss": loss, "expected_loss": expected_loss}

    def _train(self, program, recorder):
        """Warm-up and measured steps with Adam; of each step the loss of this rank's microbatches, if the last stage is here."""
        executor = self._executor(program, torch.float32, recorder)
        optimizer = torch.optim.Adam([p for module in executor.stages.values() for p in module.parameters()], lr=1e-3)
        losses = []
        for step in range(-self.job.warmup, self.job.steps):
            tokens, targets = self._batch(program, step + self.job.warmup)
            dist.barrier()
            losses.append(executor.step(step, tokens, targets))
            self.copies.sum_gradients(self.rank, executor.stages)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return [loss for loss in losses if loss is not None]

    def _result(self, name, program, parts, recordings):
        """Write the traces; the plain facts of the run for the report."""
        folder = self.out / name
        recordings = [Recording.parse(data) for data in recordings]
        extra = {"compute": self.job.compute, "device": device_name(self.device), "model": self.job.model}
        traces = [step_trace(program, recordings, step, self.job.message_bytes, extra) for step in range(self.job.steps)]
        for step, trace in enumerate(traces):
            trace.save(folder / f"measured-step-{step}.json")
        for record in folder.glob("rank*.records"):
            record.unlink()
        return {
            "schedule": name,
            "folder": str(folder),
            "gradient_error": max(part["gradient_error"] for part in parts),
            "loss_error": abs(sum(part["loss"] or 0.0 for part in parts) / parts[0]["expected_loss"] - 1),
            "losses": [sum(losses) for losses in zip(*(part["losses"] for part in parts if part["losses"]))],
        }

    # small parts --------------------------------------------------------------------------------------------

    def _executor(self, program, dtype, recorder, *, padded=True):
        stages = {stage: Stage(self.job.model, stage, program.stages).to(self.device, dtype) for stage in program.stages_of(self.rank)}
        padding = self.job.padding(program.stages) if padded and self.job.compute == "padded" else None
        return Executor(program, self.rank, stages, self.channels, self._timer(padding), recorder, (self.message_shape, dtype))

    def _timer(self, padding):
        return CudaTimer() if self.device.type == "cuda" else HostTimer(padding)

    def _batch(self, program, step):
        model = self.job.model
        tokens, targets = batch(step, program.microbatches, model["microbatch_size"], model["seq"])
        return tokens.to(self.device), targets.to(self.device)


def gather_bytes(data):
    """[bytes of each rank] on rank 0, [] elsewhere; called by all ranks. No pickle is involved."""
    world, rank = dist.get_world_size(), dist.get_rank()
    sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(world)]
    dist.all_gather(sizes, torch.tensor([len(data)]))
    longest = max(int(size) for size in sizes)
    mine = torch.zeros(longest, dtype=torch.uint8)
    mine[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    parts = [torch.zeros(longest, dtype=torch.uint8) for _ in range(world)] if rank == 0 else None
    dist.gather(mine, parts)
    return [part.numpy().tobytes()[: int(size)] for part, size in zip(parts, sizes)] if rank == 0 else []


def device_name(device):
    """The device as a person knows it."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"cpu ({platform.machine()})"
