"""The split backward: I and W together are B, and W redoes nothing of I."""

import pytest
import torch

from realrun.executor import OP_FUNCTIONS, Executor
from realrun.model import Stage
from realrun.split import SplitLinear
from realrun.text import batch
from simlab.program import Op, Program

SIZES = {"layers": 2, "hidden": 32, "heads": 2, "seq": 16, "microbatch_size": 2}


def one_stage(kinds):
    """An `Executor` of one float64 stage after `kinds` of microbatch 0, and its module."""
    module = Stage(SIZES, 0, 1).double()
    program = Program.from_text("0F0 0I0 0W0")
    executor = Executor(program, 0, {0: module}, None, None, None, ((2, 16, 32), torch.float64))
    executor.tokens, executor.targets = batch(0, 1, 2, 16)
    executor.saved, executor.kept, executor.losses = {}, {}, []
    for kind in kinds:
        OP_FUNCTIONS[kind](executor, Op(0, kind, 0), None)
    return executor, module


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
    linear = {f"{name}.{which}" for name, layer in module.named_modules() if isinstance(layer, SplitLinear) for which in ("weight", "bias")}
    assert {name for name, gradient in gradients(module).items() if gradient is None} == linear & set(gradients(module))


def test_i_frees_some_of_the_activations_and_w_the_rest():
    executors = [one_stage(kinds)[0] for kinds in ("F", "FI", "FIW")]
    held = [executor.activations for executor in executors]
    assert [ledger.live for ledger in held] == [1, 1, 0]
    assert held[0].bytes > held[1].bytes > held[2].bytes == 0


def test_after_i_a_layer_computes_its_weight_gradients_again_by_itself():
    _, module = one_stage("FIW")
    assert all(layer.keep is None for layer in module.modules() if isinstance(layer, SplitLinear))
