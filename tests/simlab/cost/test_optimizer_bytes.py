"""What the optimizer's step moves, against the bytes that torch's own optimizer reads and writes."""

from dataclasses import replace

import pytest

import simlab as sl
from simlab.cost.optimizer import FOREACH_BYTES, OPTIMIZER_BYTES
from simlab.cost.roofline import efficiencies_of
from simlab.layer.parameters import stage_parameters

torch = pytest.importorskip("torch")
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402  (it needs torch)

MODEL = sl.Model(layers=4, hidden=512, heads=8, vocab=4096, positions=256, seq=256)
A100 = replace(sl.load_cluster("dgx-a100"), host_op_s=0.0, gpus_per_node=1)
NUMBERS = 1 << 20


class ListedBytes(TorchDispatchMode):
    """Counts the bytes that ops on lists of tensors read and write, each tensor once. An op whose
    name ends in '_' writes its first list, any other one its result."""

    bytes = 0

    def __torch_dispatch__(self, op, types, arguments=(), options=None):
        result = op(*arguments, **(options or {}))
        lists = [its for its in arguments if isinstance(its, (list, tuple))]
        written = lists[0] if op._schema.name.endswith("_") and lists else result
        read = {id(t): t for its in lists for t in its if isinstance(t, torch.Tensor)}
        tensors = [*read.values(), *(written if isinstance(written, (list, tuple)) else ())]
        self.bytes += sum(t.nbytes for t in tensors if t.numel() >= NUMBERS)
        return result


def adam_bytes():
    """Bytes for each parameter of the second step of torch's AdamW over lists."""
    parameters = [torch.nn.Parameter(torch.empty(NUMBERS, device="meta")) for _ in range(2)]
    optimizer = torch.optim.AdamW(parameters, foreach=True)
    for parameter in parameters:
        parameter.grad = torch.empty_like(parameter)
    optimizer.step()
    with ListedBytes() as moved:
        optimizer.step()
    return moved.bytes / (2 * NUMBERS)


def test_torchs_adam_moves_what_its_ops_over_lists_do():
    """Besides, the norm reads each gradient, and clipping reads and writes it."""
    assert adam_bytes() + 4 + 8 == FOREACH_BYTES


def per_parameter(**fields):
    """Bytes for each parameter in the optimizer's step, from what four layers more take."""
    plan = sl.Plan(**fields)
    four, eight = (
        sl.predict(replace(MODEL, layers=layers), plan, A100).optimizer_s for layers in (4, 8)
    )
    reached = A100.gpu.memory_bandwidth_bytes_per_s * efficiencies_of(A100.gpu).memory
    return (eight - four) * reached / (4 * stage_parameters(MODEL, plan, 1))


@pytest.mark.parametrize("library", ["torch", "fsdp1", "megatron", "nanotron"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_library_of_flat_buffers_moves_what_a_fused_kernel_does_and_torch_what_lists_do(
    library, precision
):
    """A fused kernel reads gradient, weight and two moments and writes all but the gradient, in
    fp32; the norm reads gradients, and clipping reads and writes them. In bf16 the weight's copy is
    written and the 16-bit gradient cleared; nanotron clears the fp32 one, in either."""
    fused = 4 * 4 + 3 * 4 + 4 + 8 + (4 if precision == "bf16" else 0)
    nanotron = 4 * 4 + 3 * 4 + 4 + 8 + 4 + (2 if precision == "bf16" else 0)
    expected = {"megatron": fused, "nanotron": nanotron}.get(library, FOREACH_BYTES)
    assert per_parameter(library=library, precision=precision) == pytest.approx(expected, rel=1e-6)


def test_with_a_loss_scaler_gradients_are_copied_unscaled_and_searched_besides():
    """The 6 bytes of the copy from 16 to 32 bits and the 8 of unscaling."""
    more = OPTIMIZER_BYTES["fp16"] - OPTIMIZER_BYTES["bf16"]
    assert more == 6 + 8
    assert per_parameter(precision="fp16") == pytest.approx(OPTIMIZER_BYTES["fp16"], rel=1e-6)
