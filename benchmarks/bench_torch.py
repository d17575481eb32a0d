"""Ours beside torch.distributed.pipelining: its runtime executing the same program, its visualizer
drawing the same schedule."""

import contextlib
import io
import tempfile
from pathlib import Path
from statistics import median

import simlab as sl
from realrun.comm.clock import now
from realrun.measure.timers import HostTimer

RUNTIME_PROGRAMS = {"1f1b": (4, 8), "zb-h1": (4, 8)}
PADDING = {"F": 0.02, "B": 0.04, "I": 0.02, "W": 0.02}  # seconds
TIMES = sl.OpTimes(
    forward_s=PADDING["F"],
    backward_s=PADDING["B"],
    input_grad_s=PADDING["I"],
    weight_grad_s=PADDING["W"],
)
STEPS, WARMUP = 15, 3
MOST_GRADIENT_DIFFERENCE = 1e-4  # relative, in fp32
DRAWINGS = [
    ("interleaved-1f1b", "Interleaved1F1B", 4, 8, 5),
    ("zb-v", "ZBVZeroBubble", 4, 8, 5),
    ("interleaved-1f1b", "Interleaved1F1B", 8, 32, 3),
]


# the runtimes
# -----------------------------------------------------------------------------------------------


class OpTimer(HostTimer):
    """Padded compute that also notes [(op kind, seconds)]; both runtimes' ops are padded by one of
    these."""

    def __init__(self):
        super().__init__(PADDING)
        self.taken = []

    def finish(self, kind, start):
        end = super().finish(kind, start)
        self.taken.append((kind, end - start))
        return end


def runtime_row(name):
    """A row: median seconds of a step of program `name`, executed by us and by torch's runtime in
    turn, on the same processes.

    Both have the same stages, batch, gloo group, padding to the same op times, and a step is timed
    the same way: on rank 0 from one barrier to the next. What torch does inside an op, once it has
    waited for the message, is within the padding. Left
    out: the optimizer; on torch's side the merging of outputs (it is told not to). AssertionError
    if the two did not execute the same ops or their gradients differ.
    """
    from tests.support.realrun_ranks import on_ranks

    ranks, microbatches = RUNTIME_PROGRAMS[name]
    program = sl.generate(name, ranks, microbatches)
    with tempfile.TemporaryDirectory() as folder:
        program.to_csv(Path(folder) / "program.csv")
        answers = on_ranks(ranks, both_runtimes, str(program), folder)
    for rank, answer in enumerate(answers):
        kinds = sorted(op.kind for op in program.ranks[rank])
        for side in ("ours", "torch"):
            assert answer[side]["kinds"] == kinds, (
                f"rank {rank}: {side} executed {answer[side]['kinds']} instead of {kinds}"
            )
    difference = max(answer["gradient_difference"] for answer in answers)
    assert difference <= MOST_GRADIENT_DIFFERENCE, f"the gradients differ by {difference:.1e}"
    steps = {side: answers[0][side]["steps_s"] for side in ("ours", "torch")}
    late = {side: max(answer[side]["late_s"] for answer in answers) for side in steps}
    return {
        "what": f"{name} p={ranks} m={microbatches}",
        "ops": len(program.rank_of),
        "ours_s": median(steps["ours"]),
        "torch_s": median(steps["torch"]),
        "ratio": median(steps["ours"]) / median(steps["torch"]),
        "ideal_s": sl.simulate(program, TIMES).step_s,  # the padded times and nothing else
        "gradient_difference": difference,
        "median_op_late_s": late,  # by how much padded ops outlast their time, on the worst rank
        "steps_s": steps,
    }


def both_runtimes(rank, program_text, folder):
    """What rank `rank` saw: of each side its steps' seconds, op kinds per step and lateness; and
    how far the gradients differ."""
    import torch.distributed as dist

    program = sl.Program.from_text(program_text)
    sides = {"ours": our_side(rank, program, folder), "torch": torch_side(rank, program, folder)}
    found = {side: {"steps_s": []} for side in sides}
    gradients = {}
    for number in range(-WARMUP, STEPS):
        for side in sorted(sides, reverse=number % 2 == 1):  # neither is always the first
            step, module, timer, _ = sides[side]
            module.zero_grad(set_to_none=True)
            timer.taken.clear()
            dist.barrier()
            start_s = now()
            step(number)
            dist.barrier()
            elapsed_s = now() - start_s
            if number >= 0:
                found[side]["steps_s"].append(elapsed_s)
                found[side].setdefault("late", []).extend(
                    seconds - PADDING[kind] for kind, seconds in timer.taken
                )
            found[side]["kinds"] = sorted(kind for kind, _ in timer.taken)
            gradients[side] = {name: p.grad for name, p in module.named_parameters()}
    for side in sides:
        found[side]["late_s"] = median(found[side].pop("late"))
    difference_from = sides["ours"][3]
    return found | {"gradient_difference": difference_from({rank: gradients["torch"]})}


def our_side(rank, program, folder):
    """(a function that runs one step, the stage, its timer, the function that says how far its
    gradients are from others) of our executor, recording as in any run."""
    import torch

    from realrun.comm.channels import Channels
    from realrun.comm.mesh import Mesh
    from realrun.record.recorder import Recorder
    from realrun.record.step_log import OpLog
    from realrun.run.executor import Executor
    from tests.support.realrun_processes import both_directions

    (model, _), timer = _model_and_stage(rank, program), OpTimer()
    recorder = Recorder(
        Path(folder) / f"rank{rank}.records", (WARMUP + STEPS) * len(program.ranks[rank]), 0.0
    )
    plan = sl.Plan(
        pp=len(program.ranks),
        microbatches=program.microbatches,
        microbatch_size=model["microbatch_size"],
        seq=model["seq"],
        precision="fp32",
    )
    executor = Executor(
        model,
        plan,
        program,
        Mesh(plan.layout, rank),
        Channels(rank, torch.device("cpu"), both_directions()),
        lambda activations: OpLog(recorder, timer, activations),
        dtype=torch.float32,
        optimizer=torch.optim.Adam,
    )
    tokens, targets = _batch(program, model)
    step = lambda number: executor.gradients(number, tokens, targets)  # noqa: E731
    return step, executor.stages[rank], timer, executor.gradient_error


def torch_side(rank, program, folder):
    """The same of torch's runtime, with the program loaded from its CSV, and plain linear layers:
    it splits their backward itself."""
    import torch
    from torch.distributed.pipelining import PipelineStage
    from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

    from realrun.model.gpt import loss
    from realrun.model.split import SplitLinear

    model, module, timer = *_model_and_stage(rank, program), OpTimer()
    for layer in module.modules():
        if isinstance(layer, SplitLinear):
            # ours would compute the weight gradient in I and again in W
            layer.__class__ = torch.nn.Linear
    stage = PipelineStage(module, rank, program.stages, torch.device("cpu"))
    part = pad(stage, timer, lambda output, target: loss(output, target) / program.microbatches)
    runtime = _PipelineScheduleRuntime(
        [stage], program.microbatches, loss_fn=part, scale_grads=False
    )
    runtime._load_csv(Path(folder) / "program.csv", format="compute_only")
    tokens, targets = _batch(program, model)
    whole = [tokens.flatten(0, 1)] if stage.is_first else []
    target = {"target": targets.flatten(0, 1)} if stage.is_last else {}
    return lambda number: runtime.step(*whole, **target, return_outputs=False), module, timer, None


def pad(stage, timer, loss):
    """Stretch the ops of torch's `stage` by `timer`; returns the loss function to give to torch,
    `loss` being part of the last F.

    torch waits for an op's message before it calls these methods, so they are the op and no more,
    as with our executor.
    """
    forward, backward, weight_grad = (
        stage.forward_one_chunk,
        stage.backward_one_chunk,
        stage.backward_weight_one_chunk,
    )
    begun = []

    def padded_forward(*args, **kwargs):
        begun.append(timer.begin("F"))
        output = forward(*args, **kwargs)
        if not stage.is_last:
            timer.finish("F", begun.pop())
        return output

    def padded_loss(output, target):
        value = loss(output, target)
        if begun:  # empty where torch tries the stage out before the first step
            timer.finish("F", begun.pop())
        return value

    def padded_backward(*args, full_backward=True, **kwargs):
        kind = "B" if full_backward else "I"
        start = timer.begin(kind)
        backward(*args, full_backward=full_backward, **kwargs)
        timer.finish(kind, start)

    def padded_weight_grad(*args, **kwargs):
        start = timer.begin("W")
        weight_grad(*args, **kwargs)
        timer.finish("W", start)

    stage.forward_one_chunk, stage.backward_one_chunk, stage.backward_weight_one_chunk = (
        padded_forward,
        padded_backward,
        padded_weight_grad,
    )
    return padded_loss


def _model_and_stage(rank, program):
    from realrun.model.gpt import Stage
    from realrun.run.job.pipelines import SMALL

    model = SMALL | {"layers": SMALL["layers"] * program.stages}
    return model, Stage(model, rank, program.stages)


def _batch(program, model):
    from realrun.model.text import batch

    return batch(0, program.microbatches, model["microbatch_size"], model["seq"])


# the pictures
# -----------------------------------------------------------------------------------------------


def drawing_row(ours, torchs, ranks, microbatches, rounds):
    """A row: median seconds from a schedule's name to a PNG of it, ours and torch's in turn.

    Ours generates, simulates and draws; torch's generates, places the ops in time by their
    dependencies (`add_spacing`; it prints every time step, which here goes nowhere) and draws, with
    F, I, W = 1 and B = 2 as here. The pictures differ: torch's grows with the schedule and names
    every op, ours has one size, and names ops where they are wide enough. Their pixels are in the
    row.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    taken, pixels = {"ours": [], "torch": []}, {}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds + 1):
            for side, draw, name in (("ours", draw_ours, ours), ("torch", draw_torchs, torchs)):
                path = Path(folder) / f"{side}.png"
                start_s = now()
                # first a small one, not counted: it loads fonts
                draw(name, *((ranks, microbatches) if number else (2, 4)), path)
                taken[side].append(now() - start_s)
                plt.close("all")
                height, width = plt.imread(path).shape[:2]
                pixels[side] = [width, height]
    ours_s, torch_s = (median(seconds[1:]) for seconds in taken.values())
    return {
        "what": f"{ours} p={ranks} m={microbatches}",
        "ours_s": ours_s,
        "torch_s": torch_s,
        "ratio": ours_s / torch_s,
        "pixels": pixels,
    }


def draw_ours(name, ranks, microbatches, path):
    """Write a picture of our schedule `name`."""
    trace = sl.simulate(sl.generate(name, ranks, microbatches), TIMES)
    sl.timeline(trace).savefig(path)


def draw_torchs(name, ranks, microbatches, path):
    """Write torch's picture of its schedule `name`."""
    from torch.distributed.pipelining._schedule_visualizer import (
        get_schedule_ops,
        visualize_schedule,
    )

    with contextlib.redirect_stdout(io.StringIO()):
        ops = get_schedule_ops(name, ranks, microbatches, add_spacing=True)
    visualize_schedule(ops, str(path))


def not_drawn_by_torch():
    """{torch's name of a schedule: the error with which its visualizer fails on it, with and
    without spacing}."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from torch.distributed.pipelining._schedule_visualizer import (
        get_schedule_ops,
        visualize_schedule,
    )

    failures = {}
    for name in (
        "GPipe",
        "1F1B",
        "Interleaved1F1B",
        "LoopedBFS",
        "InterleavedZeroBubble",
        "ZBVZeroBubble",
        "DualPipeV",
    ):
        for spaced in (False, True):
            try:
                with contextlib.redirect_stdout(io.StringIO()):
                    visualize_schedule(
                        get_schedule_ops(name, 2, 4, add_spacing=spaced), io.BytesIO()
                    )
            except Exception as error:
                failures.setdefault(name, []).append(f"{type(error).__name__}: {error}")
            plt.close("all")
    return failures
