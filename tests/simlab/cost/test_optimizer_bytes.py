"""What Adam's step moves with each library and precision."""

from dataclasses import replace

import pytest

import simlab as sl
from simlab.cost.optimizer import CLIPPING_BYTES
from simlab.cost.roofline import efficiencies_of
from simlab.layer.parameters import stage_parameters
from simlab.optimizers import ADAM

MODEL = sl.Model(layers=4, hidden=512, heads=8, vocab=4096, positions=256, seq=256)
A100 = replace(sl.load_cluster("dgx-a100"), host_op_s=0.0, gpus_per_node=1)


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
    lists = ADAM.listed_bytes + CLIPPING_BYTES
    expected = {"megatron": fused, "nanotron": nanotron}.get(library, lists)
    assert per_parameter(library=library, precision=precision) == pytest.approx(expected, rel=1e-6)


def test_with_a_loss_scaler_gradients_are_copied_unscaled_and_searched_besides():
    """The 6 bytes of the copy from 16 to 32 bits and the 8 of unscaling."""
    fp16, bf16 = (per_parameter(precision=precision) for precision in ("fp16", "bf16"))
    assert fp16 - bf16 == pytest.approx(6 + 8, rel=1e-6)
