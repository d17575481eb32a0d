"""What every rank does with a `Job`: predict, check, train, report. The same on all ranks and with
every back-end; rank 0 answers."""

import json
import math
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from realrun.checkpoint.policy import Checkpoints
from realrun.comm.clock import now, offset_from_rank_0
from realrun.comm.control import gather_bytes
from realrun.model.reference import single_process, single_training
from realrun.model.text import batch
from realrun.record.allocator import begin_peak, device_name, peak_bytes
from realrun.record.losses import LossFile
from realrun.record.recorder import CHECK_STEP, EXECUTING, IDLE, Recorder, Recording
from realrun.run.backend import Backend
from realrun.run.job import Job, Run
from realrun.run.life import (
    PHASE_LIMIT_S,
    SAVE_LIMIT_S,
    UNLIMITED_S,
    Doing,
    Ended,
    Stop,
    signal_name,
)
from realrun.run.progress import TrainingProgress, line

LEARNING_RATE = 1e-3


class Session:
    """One rank's side of one job, run by `backend`, a `realrun.run.backend.Backend`."""

    def __init__(
        self,
        job: Job,
        rank: int,
        device: torch.device,
        backend: Backend,
        say: Callable[..., Any],
        doing: Doing,
        stop: Stop,
    ) -> None:
        """say: called with a line of progress. doing: told what the rank does from now on. stop:
        whether it was asked to end."""
        self.job, self.rank, self.device, self.backend, self.say = job, rank, device, backend, say
        self.doing, self.stop = doing, stop
        self.coordinates = backend.layout.coordinates(rank)

    def run(self) -> list[dict[str, Any]] | None:
        """[of each of the job's runs, what was measured on all ranks], for `realrun.report.facts`:
        {"parts": [of each rank], "backend": what that adds}. Traces are in the runs' folders. None
        on other ranks than 0."""
        job, backend = self.job, self.backend
        self.enter("comparing clocks and calibrating")
        self.offset_s, uncertainty_s = offset_from_rank_0(self.rank, job.ranks)
        backend.open(self.offset_s, uncertainty_s)
        if job.programs is None:
            self.say("\n".join(backend.layout.cube().splitlines()))
        self._predict()
        self._end_if_asked()
        answers = [self._run(run) for run in job.runs]
        backend.close()
        return None if self.rank else answers

    def _predict(self) -> None:
        """Rank 0 writes the predictions, if there are any, before anything has run."""
        predicted = self.backend.predicted()
        if self.job.predict_on is not None and self.rank == 0:
            predicted = {self.job.name: self.job.prediction()}
        for run in self.job.runs:
            if self.rank == 0 and self.job.programs is not None:
                run.folder.mkdir(parents=True, exist_ok=True)
                run.program.to_csv(run.folder / "program.csv")
            if run.name in predicted:
                predicted[run.name].save(run.folder / "predicted.json")
        dist.barrier()

    def _run(self, run: Run) -> dict[str, Any]:
        path = run.folder / f"rank{self.rank}.records"
        records = self.job.recorded_steps * self.backend.records(run)
        self.recorder = Recorder(path, records, self.offset_s)
        own = self._check(run) if self.job.check else {}
        self._end_if_asked()
        own |= self._train(run)
        self.enter("gathering recordings and writing traces", SAVE_LIMIT_S)
        parts = gather_bytes(json.dumps(own).encode())
        recordings = gather_bytes(self.recorder.contents())
        self.recorder.close()
        if self.rank:
            return {}
        parsed = [Recording.parse(data) for data in recordings]
        self._save(run, [recording for recording in parsed if recording is not None])
        return {"parts": [json.loads(part) for part in parts], "backend": self.backend.facts()}

    def _save(self, run: Run, recordings: list[Recording]) -> None:
        """Write the traces in place of the recordings."""
        for trace in self.backend.traces(run, recordings, device_name(self.device)):
            trace.save(run.folder / f"measured-step-{trace.metadata['step']}.json")
        for record in run.folder.glob("rank*.records"):
            record.unlink()

    def _check(self, run: Run) -> dict[str, float]:
        """{"gradient_error", "loss", "expected_loss"} of this rank: a step in float64 up to its
        gradients, against `single_process`."""
        self.enter("checking gradients")
        self.say(f"{run.name}: gradients against one process")
        training = self.backend.training(run, self.recorder, checking=True)
        tokens, targets = self._batch(run, 0)
        # first the reference: CUDA may wait for the whole device when it loads a kernel, posted
        # receives included
        data = tokens.to(self.device), targets.to(self.device)
        expected_loss, expected = single_process(
            self._sizes(run), run.program.stages, *data, torch.float64, self.job.stage_layers
        )
        dist.barrier()
        self.recorder.phase(EXECUTING)
        part = training.gradients(CHECK_STEP, tokens, targets)
        self.recorder.phase(IDLE)
        return {
            "gradient_error": training.gradient_error(expected),
            "loss": self._mean_loss(part),
            "expected_loss": expected_loss,
        }

    def _mean_loss(self, part: float) -> float:
        """The mean loss of all tokens, from each rank's part."""
        total = torch.tensor([self._own_part(part)], dtype=torch.float64)
        dist.all_reduce(total)
        return total.item()

    def _own_part(self, part: float) -> float:
        """Of the loss: ranks of one tensor-parallel group have the same."""
        return part if self.coordinates.tp == 0 else 0.0

    def _train(self, run: Run) -> dict[str, Any]:
        """Warm-up and measured steps: losses, norms and vitals of each, then what this rank sent,
        and what it holds."""
        job = self.job
        boxed = ""
        if (scale := self.backend.time_scale) is not None:
            times = f"{job.box_model.name} on {job.box_cluster.name}, {scale:,.1f} times as slow"
            boxed = f", paced in a box to the times of {times}"
        self.say(f"{run.name}: {job.warmup} warm-up and {job.steps} measured steps{boxed}")
        training = self.backend.training(run, self.recorder, checking=False)
        checkpoints = Checkpoints(job, training, self.rank, self.say)
        self.enter("loading a checkpoint", SAVE_LIMIT_S)
        first = checkpoints.resume()
        self.enter("training", UNLIMITED_S)  # steps have a watch of their own
        progress = TrainingProgress(job, self.backend.time_scale)
        file = LossFile(run.folder, first) if self.rank == 0 else None
        losses, norms = [], []
        vitals: deque[list[dict[str, float]]] = deque(maxlen=job.recorded_steps)
        for number in range(first, job.warmup + job.steps):
            tokens, targets = self._batch(run, number)
            if number <= max(first, job.warmup):
                begin_peak(self.device)
            self.recorder.phase(EXECUTING)  # from before ranks wait for each other until after
            if signal_number := self.stop.agreed():
                self.recorder.phase(IDLE)
                self._end(signal_number, number, first, checkpoints)
            start_s = now()
            loss, norm = training.step(number - job.warmup, tokens, targets)
            norms.append(norm if math.isfinite(norm) else None)
            if (own := training.vitals()) is None:
                losses.append(self._mean_loss(loss))
            else:
                vitals.append(self._everyones({"loss": self._own_part(loss)} | own))
                losses.append(sum(rank["loss"] for rank in vitals[-1]))
                if said := progress.step(number, losses[-1], now() - start_s, vitals[-1]):
                    self.say(line(said), said)
            self.recorder.phase(IDLE)
            if file is not None:
                file.write(number + 1, losses[-1], norms[-1], now() - start_s)
            self._save_after(number + 1, checkpoints)
        self.enter("saving the last checkpoint", SAVE_LIMIT_S)
        if job.checkpoint_every:
            checkpoints.save_now(job.warmup + job.steps)
        checkpoints.finish()
        if file is not None:
            file.close()
        measured = {
            "first_step": first,
            "losses": losses,
            "norms": norms,
            "loss_scale": training.scaler and training.scaler.scale,
            "vitals": list(vitals) if self.rank == 0 else None,
            "progress": (list(progress.said) or None) if self.rank == 0 else None,
            "sent_bytes": training.sent_bytes(len(losses)),
            "memory_bytes": training.memory_bytes(),
            "allocator_bytes": peak_bytes(self.device),
        }
        if job.reference and job.checkpoint_every and (signal_number := self.stop.agreed()):
            self._end(signal_number, job.warmup + job.steps, first, checkpoints)
        reference = self._reference(run, len(losses), first) if job.reference else None
        return measured | {"reference_losses": reference}

    def _save_after(self, steps: int, checkpoints: Checkpoints) -> None:
        """Save if it is time. A save that waits for the one before has the time of a save."""
        if checkpoints.is_time(steps):
            self.enter("waiting for the checkpoint before", SAVE_LIMIT_S)
            checkpoints.begin(steps)
            self.enter("training", UNLIMITED_S)

    def _end_if_asked(self) -> None:
        """`Ended` between two phases before the first step, if any rank was asked to."""
        if self.job.checkpoint_every and (number := self.stop.agreed()):
            raise Ended(
                f"{self.job.name} was asked to end by {signal_name(number)} while {self.doing()} and "
                "did, before its first step; it had nothing new to save",
                number,
            )

    def _end(self, number: int, steps: int, first: int, checkpoints: Checkpoints) -> NoReturn:
        """Save what `steps` have made, since `first`, and raise `Ended`."""
        self.enter(f"saving because of {signal_name(number)}", SAVE_LIMIT_S)
        done = (
            f"{self.job.name} was asked to end by {signal_name(number)} and did, after step {steps}"
        )
        done += f" of {self.job.warmup + self.job.steps}"
        saved = checkpoints.save_now(steps) if steps > first else None
        checkpoints.finish()
        if saved is None:
            raise Ended(f"{done}; it had nothing new to save", number)
        raise Ended(f"{done}; {saved} has it", number)

    @staticmethod
    def _everyones(own: dict[str, float]) -> list[dict[str, float]]:
        """[of each rank, {name: number}]"""
        every = [torch.zeros(len(own), dtype=torch.float64) for _ in range(dist.get_world_size())]
        dist.all_gather(every, torch.tensor(list(own.values()), dtype=torch.float64))
        return [dict(zip(own, row.tolist())) for row in every]

    def _reference(self, run: Run, steps: int, first: int) -> list[float] | None:
        """[loss of each step] of the same training in one process, in fp32; None but on rank 0, for
        whom the others wait."""
        losses = None
        self.enter("waiting while rank 0 trains the same in one process", UNLIMITED_S)
        if self.rank == 0 and first == 0:
            self.say(f"{run.name}: the same in one process")
            losses = single_training(
                self._sizes(run),
                run.program.stages,
                self._reference_batches(run, steps),
                LEARNING_RATE,
                limit=self.job.clip_norm,
                stage_layers=self.job.stage_layers,
            )
        dist.barrier()
        return losses

    def _reference_batches(
        self, run: Run, steps: int
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """The batch of each step; each step has the time of a phase."""
        for number in range(steps):
            self.enter(f"training the same in one process, step {number + 1} of {steps}")
            yield self._batch(run, number)

    def enter(self, text: str, limit_s: float = PHASE_LIMIT_S) -> None:
        """Note what the rank does from now on, for no longer than `limit_s`, or than the job's
        timeout if that is more."""
        self.doing.enter(text, max(limit_s, self.job.timeout_s))

    def _sizes(self, run: Run) -> dict[str, int]:
        return self.job.sizes | {"microbatch_size": run.plan.microbatch_size}

    def _batch(self, run: Run, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        plan = run.plan
        return batch(step, plan.dp * plan.microbatches, plan.microbatch_size, self.job.sizes["seq"])
