"""Ranks that are started once and then carry out one function after another: what a file of tests
on collectives shares."""

import math
import tempfile
import traceback
from datetime import timedelta
from multiprocessing.connection import wait
from pathlib import Path

from realrun.launch.start import process_context
from tests.support.patience import PATIENCE_S
from tests.support.realrun_processes import awake

ERROR = 1e-9  # of float64 results


class Ranks:
    """`count` processes in a gloo group on loopback, which rest between two functions. A function that fails ends them; the next call
    starts new ones."""

    def __init__(self, count):
        self.count = count
        self._processes, self._pipes = [], []

    def __call__(self, function, *arguments):
        """[function(rank, *arguments) of each rank]; the function and all values are picklable."""
        if not self._processes:
            self._start()
        try:
            with awake(self._processes):
                for pipe in self._pipes:
                    pipe.send((function, arguments))
                return self._answers()
        except BaseException:
            self.close()
            raise

    def close(self):
        """End the processes."""
        if not self._processes:
            return
        for process in self._processes:
            process.kill()
            process.join()
        for pipe in self._pipes:
            pipe.close()
        self._processes, self._pipes = [], []
        self._folder.cleanup()

    def _start(self):
        context = process_context()  # torch is imported once, then forked
        self._folder = tempfile.TemporaryDirectory()
        store = Path(self._folder.name) / "store"  # new groups meet in it, too
        for rank in range(self.count):
            ours, theirs = context.Pipe()
            self._processes.append(
                context.Process(
                    target=_serve, args=(theirs, rank, self.count, str(store)), daemon=True
                )
            )
            self._processes[-1].start()
            theirs.close()
            self._pipes.append(ours)
        self._answers()

    def _answers(self):
        answers = {}
        while len(answers) < self.count:
            ready = wait(
                [pipe for rank, pipe in enumerate(self._pipes) if rank not in answers], PATIENCE_S
            )
            assert ready, f"ranks {sorted(set(range(self.count)) - set(answers))} do not answer"
            for pipe in ready:
                answers[self._pipes.index(pipe)] = answer = pipe.recv()
                assert "error" not in answer, answer["error"]
        return [answers[rank]["value"] for rank in range(self.count)]


def on_ranks(count, function, *arguments):
    """[function(rank, *arguments) of each rank], as `Ranks` says, in processes for this alone."""
    ranks = Ranks(count)
    try:
        return ranks(function, *arguments)
    finally:
        ranks.close()


def _serve(pipe, rank, world, store):
    import torch
    import torch.distributed as dist

    from realrun.launch.worker import use_loopback

    use_loopback()
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=PATIENCE_S),
    )
    pipe.send({"value": None})
    while True:
        try:
            function, arguments = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send({"value": function(rank, *arguments)})
        except BaseException:
            pipe.send({"error": f"rank {rank}:\n{traceback.format_exc()}"})


def error(actual, expected):
    """The largest difference, relative to the largest expected value; infinite if shapes differ or
    a value is no number."""
    if actual.shape != expected.shape:
        return math.inf
    difference = (actual - expected).abs().max().item() / (expected.abs().max().item() or 1.0)
    return math.inf if math.isnan(difference) else difference
