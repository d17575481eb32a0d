"""torch.distributed.pipelining as an oracle: its runtime executes our programs, its schedules are
read as ours."""

import csv
from types import SimpleNamespace

import pytest
from realrun_processes import random_program
from realrun_ranks import on_ranks

from simlab.errors import ProgramError
from simlab.program import Op, Program
from simlab.program.validation import errors, validate
from simlab.schedules import SCHEDULES, generate

SIZES = {"layers": 8, "hidden": 32, "heads": 2, "seq": 16, "microbatch_size": 2}
LIMIT = 1e-10


# torch executes ours
# ----------------------------------------------------------------------------------------


def torch_runs(rank, programs):
    """{program: {stage: gradient error}} of this rank's stages after torch's runtime has run each
    CSV."""
    import torch
    from torch.distributed.pipelining import PipelineStage
    from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

    from realrun.model.gpt import Stage, loss
    from realrun.model.reference import gradient_error, single_process
    from realrun.model.text import batch

    found = {}
    for name, (path, placement, microbatches) in programs.items():
        count = len(placement)
        modules = {
            stage: Stage(SIZES, stage, count).double()
            for stage in range(count)
            if placement[stage] == rank
        }
        stages = [
            PipelineStage(module, stage, count, torch.device("cpu"))
            for stage, module in modules.items()
        ]
        part = lambda output, target, m=microbatches: loss(output, target) / m  # noqa: E731
        runtime = _PipelineScheduleRuntime(stages, microbatches, loss_fn=part, scale_grads=False)
        runtime._load_csv(path, format="compute_only")
        tokens, targets = batch(0, microbatches, SIZES["microbatch_size"], SIZES["seq"])
        whole = {"target": targets.flatten(0, 1)} if count - 1 in modules else {}
        runtime.step(*([tokens.flatten(0, 1).contiguous()] if 0 in modules else []), **whole)
        _, expected = single_process(SIZES, count, tokens, targets, torch.float64)
        found[name] = {
            str(stage): gradient_error(module, expected[stage]) for stage, module in modules.items()
        }
    return found


# all but DualPipe: torch's runtime has a stage on one rank, DualPipe on two
PROGRAMS = {name: generate(name, 4, 8) for name in SCHEDULES if name != "dualpipe"}
# torch's runtime wants the microbatches in order on the last stage: it keeps losses in a list
PROGRAMS["a random one with two stages per rank"] = random_program(
    [0, 1, 2, 3, 0, 1, 2, 3], 4, seed=11, in_order=True
)


def placement(program):
    """[per stage] the rank that holds it."""
    return [program.rank_of[Op(stage, "F", 0)] for stage in range(program.stages)]


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """{program: {stage: gradient error}} of all programs, run by torch on four processes."""
    folder, programs = tmp_path_factory.mktemp("torch"), {}
    for name, program in PROGRAMS.items():
        program.to_csv(folder / f"{name}.csv")
        programs[name] = (str(folder / f"{name}.csv"), placement(program), program.microbatches)
    ranks = on_ranks(4, torch_runs, programs)
    return {
        name: {int(stage): error for rank in ranks for stage, error in rank[name].items()}
        for name in programs
    }


@pytest.mark.parametrize("name", PROGRAMS)
def test_torchs_own_runtime_executes_our_csv_and_gets_the_gradients_of_one_process(answers, name):
    assert sorted(answers[name]) == list(range(PROGRAMS[name].stages))
    assert max(answers[name].values()) <= LIMIT


# we read torch's
# --------------------------------------------------------------------------------------------


def torch_order(schedule, stages, microbatches):
    """[per rank] torch's text of the cells of its schedule. Its classes ask a stage for no more
    than this before they run."""
    from torch.distributed.pipelining import schedules

    stage = SimpleNamespace(
        group_rank=0,
        group_size=stages,
        num_stages=stages,
        submod=None,
        is_first=True,
        is_last=False,
        has_backward=True,
    )
    made = getattr(schedules, schedule)(stage, microbatches, loss_fn=lambda *_: None)
    return [
        ["" if op is None else str(op) for op in made.pipeline_order[rank]]
        for rank in range(stages)
    ]


def test_torchs_description_of_1f1b_is_refused_for_what_is_wrong_with_it(tmp_path):
    """Its last rank's forwards are numbered 1 to m instead of 0 to m - 1; its executor does not use
    that list."""
    rows = torch_order("Schedule1F1B", 4, 8)
    with (tmp_path / "torch.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    program = Program.from_csv(tmp_path / "torch.csv")
    with pytest.raises(ProgramError) as caught:
        validate(program)
    assert str(caught.value) == "rank 3: 3F0 never runs, but 3B0 needs it"
    assert str(next(errors(program))) == str(caught.value)
