"""What every rank does with a `PlanJob`: check, predict, run, compare. The same function on all ranks; rank 0 answers."""

import json
import math
import time
from pathlib import Path
from statistics import mean

import torch
import torch.distributed as dist

from realrun.allocator import begin_peak, peak_bytes
from realrun.box import Box, Overhead
from realrun.channels import Channels
from realrun.checkpoints import Checkpoints
from realrun.clock import now, offset_from_rank_0
from realrun.cursor import Cursor
from realrun.faults import Fault
from realrun.model import Stage
from realrun.parallel.group import Observer
from realrun.parallel.mesh import Layout, Mesh, check_groups
from realrun.parallel.precision import TYPES
from realrun.plan_executor import PlanExecutor
from realrun.progress import Progress, line
from realrun.recorder import CHECK_STEP, EXECUTING, IDLE, Recorder, Recording
from realrun.reference import single_process, single_training
from realrun.session import device_name, gather_bytes
from realrun.text import batch

LEARNING_RATE = 1e-3
OVERHEAD_ROUNDS, OVERHEAD_S = 30, 4e-3  # how often, and of how long a computation and a round, the overhead is measured


class PlanSession:
    """One rank's side of one job. `groups` are the two directed groups, see `realrun.channels`."""

    def __init__(self, job, rank, device, groups, say):
        self.job, self.rank, self.device, self.groups, self.say = job, rank, device, groups, say
        self.plan, self.layout = job.executed, Layout(job.executed, job.executed.order.split("-"))
        self.instructions = job.instructions(rank)
        self.box = Box(job) if job.box is not None else None

    def run(self):
        """The facts of the run on rank 0; None elsewhere."""
        job, folder = self.job, self.job.folder
        self.offset_s, self.uncertainty_s = offset_from_rank_0(self.rank, job.ranks)
        self.mesh, self.made = self._mesh()
        check_groups(self.mesh.groups, self.rank, job.ranks)
        self.mesh.traffic.clear()
        self.say("\n".join(self.layout.cube().splitlines()))
        if self.box:
            self._predict(folder)
        self._predict_on_machine()
        recorder = Recorder(
            folder / f"rank{self.rank}.records", (1 + job.warmup + job.steps) * len(self.instructions), self.offset_s
        )  # fmt: skip
        checked = self._check(recorder) if job.check else {}
        trained = self._train(recorder)
        parts = gather_bytes(json.dumps(checked | trained).encode())
        recordings = gather_bytes(recorder.contents())
        recorder.close()
        self.mesh.close()
        for group in self.made:
            dist.destroy_process_group(group)
        if self.rank:
            return None
        return self._result([json.loads(part) for part in parts], [Recording.parse(data) for data in recordings])

    # links ------------------------------------------------------------------------------------------------------

    def _mesh(self):
        """(`Mesh`, [process groups made for it]): torch's collectives, or in the box rounds of messages, which can be paced."""
        if self.box is None:
            return Mesh(self.layout, self.rank, backend="nccl" if self.device.type == "cuda" else "gloo"), []
        made, channels = [], {}
        for dimension in ("tp", "cp", "dp-cp", "pp"):
            directed = {direction: dist.new_group() for direction in (1, -1)}
            made += directed.values()
            channels[dimension] = self._channels(directed, (0.0, None))
        return Mesh(self.layout, self.rank, channels=channels), made

    def _channels(self, groups, pace):
        return Channels(self.rank, self.device, groups, clock_offset_s=self.offset_s, pace=pace)

    def _executor(self, recorder, dtype, *, padded, check_bytes=True, fault=None):
        channels = self._channels(self.groups, (0.0, None) if self.box else None)
        seconds = self.box.seconds(self.rank) if padded else None
        if padded:
            latency_s, wire_s = self.box.message_s()
            message_bytes = next((i.size_bytes for i in self.instructions if i.kind == "message"), 0)
            channels.pace = latency_s, message_bytes / wire_s if wire_s and message_bytes else None
        self.connect(channels)

        settle = torch.cuda.current_stream().synchronize if self.device.type == "cuda" else lambda: None

        def cursor(activations):
            return Cursor(
                self.rank, self.instructions, recorder, seconds=seconds, check_bytes=check_bytes, activations=activations, settle=settle
            )

        sizes = self.job.sizes | {"microbatch_size": self.plan.microbatch_size}
        return PlanExecutor(
            sizes, self.plan, self.job.program, self.mesh, channels, cursor, dtype=dtype, device=self.device, recorder=recorder,
            optimizer=lambda parameters: torch.optim.Adam(parameters, lr=LEARNING_RATE), fault=fault, loss_scale=self.job.loss_scale,
        )  # fmt: skip

    def connect(self, channels):
        """NCCL makes a pair's connection at its first message: in one order on all ranks."""
        ranks = next(group for group in self.layout.groups("pp") if self.rank in group)
        talk = {
            tuple(sorted((rank, step.destination))) for rank, steps in enumerate(self.job.program.lowered) for step in steps
            if step.destination is not None
        }  # fmt: skip
        channels.connect(sorted((ranks[a], ranks[b]) for a, b in talk))

    # prediction -------------------------------------------------------------------------------------------------

    def _predict(self, folder):
        """Measure the overhead; rank 0 writes the prediction, before anything of the plan has run."""
        self.say("measuring what processes need besides")
        overheads = [json.loads(data) for data in gather_bytes(json.dumps(self._overhead()).encode())]
        if self.rank == 0:
            rounds = [part["round_s"] for part in overheads if part["round_s"] is not None]
            self.overhead = Overhead(mean(part["compute_s"] for part in overheads), mean(rounds) if rounds else 0.0)
            self.box.predicted(self.overhead).save(folder / "predicted.json")
        dist.barrier()

    def _predict_on_machine(self):
        """Rank 0 writes what the step takes on the machine that `job` names, if it does."""
        if self.job.predict_on is not None:
            if self.rank == 0:
                self.job.prediction().save(self.job.folder / "predicted.json")
            dist.barrier()

    def _overhead(self):
        """{"compute_s", "round_s"} of this rank: by how much a padded computation, and each round of a paced all-reduce, is late."""
        group = next((group for group in self.mesh.groups.values() if group.size > 1), None)
        rounds = 2 * (group.size - 1) if group else 1
        observer = _Paced(rounds * OVERHEAD_S)
        if group:
            before, group.observer = group.observer, observer
        late, slow = [], []
        dist.barrier()
        for _ in range(OVERHEAD_ROUNDS):
            start_s = now()
            time.sleep(max(0.0, start_s + OVERHEAD_S - now()))
            late.append(now() - start_s - OVERHEAD_S)
            if group:
                pending = group.all_reduce(torch.zeros(64))
                start_s = now()
                pending.wait()
                slow.append(now() - start_s - rounds * OVERHEAD_S)
        if group:
            group.observer = before
            self.mesh.traffic.clear()
        return {"compute_s": _typical(late), "round_s": _typical(slow) / rounds if slow else None}

    # the run ----------------------------------------------------------------------------------------------------

    def _check(self, recorder):
        """{"gradient_error", "loss", "expected_loss"} of this rank: a step in float64 up to its gradients, against `single_process`."""
        self.say(f"{self.job.name}: gradients against one process")
        executor = self._executor(recorder, torch.float64, padded=False, check_bytes=False)
        tokens, targets = self._batch(0)
        sizes = self.job.sizes | {"microbatch_size": self.plan.microbatch_size}
        expected_loss, expected = single_process(sizes, self.job.program.stages, tokens, targets, torch.float64)
        dist.barrier()
        executor.gradients(CHECK_STEP, tokens, targets)
        worst = 0.0
        for number in executor.stages:
            whole = Stage(sizes, number, self.job.program.stages).to(self.device, torch.float64)
            for name, parameter in whole.named_parameters():
                parameter.data = expected[number][name]
            worst = max(worst, executor.gradient_error(number, whole))
        self.mesh.traffic.clear()
        return {"gradient_error": worst, "loss": self._whole(executor.loss), "expected_loss": expected_loss}

    def _train(self, recorder):
        """Warm-up and measured steps; of each this rank's part of the loss, then what it sent in all of them, and what it holds."""
        self.say(f"{self.job.name}: {self.job.warmup} warm-up and {self.job.steps} measured steps")
        fault = Fault.of(self.job.fault, self.job.ranks) if self.job.fault else None
        executor = self._executor(recorder, TYPES[self.plan.precision], padded=self.box is not None, fault=fault)
        checkpoints = Checkpoints(self.job, executor, self.rank, self.say)
        first, progress = checkpoints.resume(), Progress(self.job, self.box.slow_down if self.box else None)
        losses, norms, vitals = [], [], []
        for number in range(first, self.job.warmup + self.job.steps):
            tokens, targets = self._batch(number)
            if number <= max(first, self.job.warmup):
                begin_peak(self.device)
            recorder.phase(EXECUTING)  # from before ranks wait for each other until after
            dist.barrier()
            start_s = now()
            loss, norm = executor.step(number - self.job.warmup, tokens, targets)
            norms.append(norm if math.isfinite(norm) else None)
            recorder.phase(EXECUTING)
            vitals.append(self._vitals(loss, executor))
            recorder.phase(IDLE)
            losses.append(sum(rank["loss"] for rank in vitals[-1]))
            if said := progress.step(number, losses[-1], now() - start_s, vitals[-1]):
                self.say(line(said), said)
            checkpoints.after(number + 1)
        checkpoints.finish()
        sent = {}
        for entry in self.mesh.traffic:
            dimension = entry.dimension.partition("-")[0]
            sent[dimension] = sent.get(dimension, 0.0) + entry.sent_bytes
        sent["pp"] = sent.get("pp", 0.0) + executor.message_bytes
        sent = {dimension: size / len(losses) for dimension, size in sent.items()}  # last: sums of thirds would not be exact
        memory_bytes, allocator_bytes = executor.memory_bytes(), peak_bytes(self.device)
        reference = self._reference(len(losses), first) if self.job.reference else None
        return {
            "reference_losses": reference,
            "first_step": first,
            "losses": losses,
            "norms": norms,
            "loss_scale": executor.scaler and executor.scaler.scale,
            "vitals": vitals if self.rank == 0 else None,
            "progress": progress.said if self.rank == 0 else None,
            "sent_bytes": sent,
            "memory_bytes": memory_bytes,
            "allocator_bytes": allocator_bytes,
        }

    def _reference(self, steps, first):
        """[loss of each step] of the same training in one process, in fp32; None but on rank 0, for whom the others wait."""
        losses = None
        if self.rank == 0 and first == 0:
            self.say(f"{self.job.name}: the same in one process")
            sizes = self.job.sizes | {"microbatch_size": self.plan.microbatch_size}
            batches = (self._batch(number) for number in range(steps))
            losses = single_training(sizes, self.job.program.stages, batches, LEARNING_RATE, limit=1.0)
        dist.barrier()
        return losses

    def _whole(self, part):
        """The mean loss of all tokens, from each rank's part."""
        total = torch.tensor([part if self.layout.coordinates(self.rank)["tp"] == 0 else 0.0], dtype=torch.float64)
        dist.all_reduce(total)
        return total.item()

    def _vitals(self, loss, executor):
        """[of each rank: {"loss": its part, "computed_s", "waited_s": of its step, "activations": peak bytes}]"""
        part = loss if self.mesh["tp"].place == 0 else 0.0
        own = [part, executor.cursor.computed_s, executor.cursor.waited_s, executor.activations.peak_bytes]
        every = [torch.zeros(len(own), dtype=torch.float64) for _ in range(self.job.ranks)]
        dist.all_gather(every, torch.tensor(own, dtype=torch.float64))
        return [dict(zip(("loss", "computed_s", "waited_s", "activations"), row.tolist())) for row in every]

    def _batch(self, step):
        plan = self.plan
        return batch(step, plan.dp * plan.microbatches, plan.microbatch_size, self.job.sizes["seq"])

    def _result(self, parts, recordings):
        """Write the traces; the plain facts of the run for the report."""
        from realrun.plan_report import measured_traces, result

        folder = Path(self.job.folder)
        traces = measured_traces(self.job, recordings, device_name(self.device))
        for step, trace in enumerate(traces):
            trace.save(folder / f"measured-step-{step}.json")
        for record in folder.glob("rank*.records"):
            record.unlink()
        facts = result(self.job, parts, traces)
        if self.box:
            facts["slow_down"] = self.box.slow_down
            facts["overhead_s"] = {"compute": self.overhead.compute_s, "round": self.overhead.round_s}
        return facts


class _Paced(Observer):
    """Every communication shall take `seconds_each`."""

    def __init__(self, seconds_each):
        self.seconds_each = seconds_each

    def seconds(self, begun):
        return self.seconds_each


def _typical(samples):
    """Their mean without the largest and the smallest tenth."""
    ordered = sorted(samples)
    cut = len(ordered) // 10
    return mean(ordered[cut : len(ordered) - cut])
