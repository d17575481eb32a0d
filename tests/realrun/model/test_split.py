"""The split backward: I and W together are B, and W redoes nothing of I."""

import pytest
import torch

from realrun.comm.mesh import Mesh
from realrun.measure.timers import HostTimer
from realrun.model.split import SplitLinear
from realrun.model.text import batch
from realrun.record.step_log import OpLog
from realrun.run.executor import Executor
from simlab.program import Op, Program
from simlab.spec.plan import Plan

SIZES = {"layers": 2, "hidden": 32, "heads": 2, "seq": 16, "microbatch_size": 2}


def one_stage(kinds):
    """An `Executor` of one float64 stage after `kinds` of microbatch 0, and its module."""
    program = Program.from_text("0F0 0I0 0W0")
    plan = Plan(microbatches=1, microbatch_size=2, seq=16, precision="fp32")
    executor = Executor(
        SIZES,
        plan,
        program,
        Mesh.of_one(),
        None,
        lambda activations: OpLog(None, HostTimer()),
        dtype=torch.float64,
        optimizer=torch.optim.Adam,
    )
    executor.begin(0, *batch(0, 1, 2, 16))
    for kind in kinds:
        executor.run_op(Op(0, kind, 0))
    return executor, executor.stages[0]


def gradients(module):
    return {name: parameter.grad for name, parameter in module.named_parameters()}


@pytest.mark.parametrize("bias", [True, False])
def test_a_split_linear_computes_what_linear_computes(bias):
    torch.manual_seed(1)
    ours, theirs = SplitLinear(5, 3, bias=bias).double(), torch.nn.Linear(5, 3, bias=bias).double()
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(2, 4, 5, dtype=torch.float64)
    inputs = [x.clone().requires_grad_() for _ in range(2)]
    outputs = [layer(item) for layer, item in zip((ours, theirs), inputs)]
    for output in outputs:
        output.square().sum().backward()
    torch.testing.assert_close(outputs[0], outputs[1])
    torch.testing.assert_close(inputs[0].grad, inputs[1].grad)
    torch.testing.assert_close(ours.weight.grad, theirs.weight.grad)
    assert not bias or torch.allclose(ours.bias.grad, theirs.bias.grad)


def test_i_then_w_make_the_gradients_of_b():
    whole, split = gradients(one_stage("FB")[1]), gradients(one_stage("FIW")[1])
    for name, gradient in whole.items():
        torch.testing.assert_close(split[name], gradient, rtol=1e-12, atol=1e-14, msg=name)


def test_i_leaves_just_the_linear_layers_weight_gradients_to_w():
    module = one_stage("FI")[1]
    linear = {
        f"{name}.{which}"
        for name, layer in module.named_modules()
        if isinstance(layer, SplitLinear)
        for which in ("weight", "bias")
    }
    assert {
        name for name, gradient in gradients(module).items() if gradient is None
    } == linear & set(gradients(module))


def test_i_frees_some_of_the_activations_and_w_the_rest():
    executors = [one_stage(kinds)[0] for kinds in ("F", "FI", "FIW")]
    held = [executor.activations for executor in executors]
    assert [ledger.live for ledger in held] == [1, 1, 0]
    assert held[0].bytes > held[1].bytes > held[2].bytes == 0


def test_after_i_a_layer_computes_its_weight_gradients_again_by_itself():
    _, module = one_stage("FIW")
    assert all(layer.keep is None for layer in module.modules() if isinstance(layer, SplitLinear))
