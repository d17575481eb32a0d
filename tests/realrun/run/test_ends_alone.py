"""Stages of the embedding or the head only, on one rank: their gradients, and the simulator's list
of what the rank does. `test_plan_executor` has them on several."""

import pytest
import torch
from realrun_plans import ERROR, SIZES, Gradients, alone, data, model_of, plan_of

from realrun.comm.channels import Channels
from realrun.comm.mesh import Mesh
from realrun.run.conformance import Conformance
from realrun.run.executor import Executor
from simlab.lowering.build import program_of
from simlab.lowering.instructions import COMPUTE, rank_instructions

ONE = {"dp": 1, "tp": 1, "pp": 1, "cp": 1}


@pytest.mark.parametrize("fields", [
    {"schedule": "interleaved-1f1b", "chunks": 4, "stage_layers": (0, 3, 1, 0)},
    {"schedule": "interleaved-1f1b", "chunks": 4, "stage_layers": (0, 2, 2, 0), "recompute": "full"},
    {"schedule": "looped-bfs", "chunks": 6, "stage_layers": "ends-count-as-layers"},
    {"schedule": "zb-v", "stage_layers": (0, 4)}, {"schedule": "zb-v", "stage_layers": (4, 0)},
    {"schedule": "interleaved-1f1b", "chunks": 2, "stage_layers": (1, 3)},
], ids=str)  # fmt: skip
def test_gradients_are_those_of_one_process_and_the_list_is_kept(fields):
    plan = plan_of(ONE | {"microbatches": 4} | fields).check(model_of(SIZES))
    program, layers = program_of(plan), plan.layers_of_stages(SIZES["layers"])
    instructions = rank_instructions(model_of(SIZES), plan, program, 0)
    executor = Executor(
        SIZES,
        plan,
        program,
        Mesh.of_one(),
        Channels(0, torch.device("cpu"), {}),
        lambda activations: Conformance(
            0, instructions, check_bytes=False, activations=activations
        ),
        dtype=torch.float64,
        optimizer=Gradients,
        limit=None,
        stage_layers=layers,
    )
    expected_loss, expected = alone(4, program.stages, torch.float64, tuple(layers))
    loss = executor.gradients(0, *data(plan, 0))
    assert loss == pytest.approx(expected_loss, rel=ERROR["float64"])
    assert executor.gradient_error(expected) < ERROR["float64"]
    for number, stage in executor.stages.items():
        kinds = [name.split()[0] for name in stage.units]
        first, last = number == 0, number == program.stages - 1
        assert kinds == ["embedding"] * first + ["layer"] * layers[number] + ["head"] * last
    # each layer computes once forward for each microbatch
    forwards = [i for i in instructions if i.action == COMPUTE and "F" in str(i.op)]
    assert len({(str(i.op), i.name) for i in forwards}) == 4 * (SIZES["layers"] + 2)
