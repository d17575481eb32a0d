"""What a plan's library changes: what torch copies, keeps and computes again, against counts by
hand."""

from dataclasses import replace

import pytest
from stage_memory import stage_memory

import simlab as sl
from simlab.cost.roofline import efficiencies_of
from simlab.layer.parameters import stage_parameters
from simlab.lowering.kernels import Matmul, Memory, embedding_kernels, head_kernels, layer_kernels
from simlab.lowering.traffic import traffic
from simlab.memory.activations import layer_activations_bytes
from simlab.memory.states import optimizer_bytes, state_bytes
from simlab.training.fit import COMMUNICATOR_BYTES, PAIR_BYTES, reserve_bytes

LLAMA = sl.load_model("llama-3-8b")
GPT = sl.load_model("gpt3-175b")
FSDP2 = sl.Plan(dp=8, zero=3, library="torch", attention="flash-2", seq=8192)


def copies(kernels):
    return [
        sum(k.size_bytes for k in part if isinstance(k, Memory) and "copy" in k.name)
        for part in kernels[:3]
    ]


@pytest.mark.parametrize("unit", ["embedding", "head"])
def test_fsdp2_copies_a_units_parameters_out_twice_and_its_gradients_in_once(unit):
    """In bf16 2 bytes read and 2 written of each parameter; its gradient is read in 2 and written
    in the 4 that are reduced."""
    kernels_of, end = {
        "embedding": (embedding_kernels, {"first": True}), "head": (head_kernels, {"last": True}),
    }[unit]  # fmt: skip
    parameters = stage_parameters(LLAMA, FSDP2, 0, **end)
    assert copies(kernels_of(LLAMA, FSDP2)) == [4 * parameters, 4 * parameters, 6 * parameters]


def test_what_stays_gathered_over_a_step_is_not_copied_for_each_microbatch():
    pipeline, parameters = replace(FSDP2, pp=2), stage_parameters(LLAMA, FSDP2, 1)
    gathered = copies(layer_kernels(LLAMA, replace(pipeline, reshard=False)))
    assert gathered == [0, 0, 6 * parameters]
    again = copies(layer_kernels(LLAMA, pipeline))
    assert again == [4 * parameters, 4 * parameters, 6 * parameters]


def test_a_whole_recomputation_needs_no_copy_of_its_own():
    full = layer_kernels(LLAMA, replace(FSDP2, recompute="full"))
    assert not [k for k in full.recompute if "copy" in k.name]
    assert copies(full)[:2] == copies(layer_kernels(LLAMA, FSDP2))[:2]


def products(kernels):
    return {k.name: k.n for k in kernels if isinstance(k, Matmul)}


def test_per_op_recomputes_k_output_and_the_gates_other_half_of_a_llama():
    """torchtitan counts a layer's products q, k, v, output, gate, up, down and computes every
    second one again."""
    kernels = layer_kernels(LLAMA, replace(FSDP2, recompute="per-op"))
    assert products(kernels.recompute) == {"qkv": 8 * 128, "output": 4096, "up": 14336}
    flops = sum(k.flops for k in kernels.recompute if isinstance(k, Matmul))
    again = LLAMA.hardware_flops_per_token(8192, "per-op", flash=True) - LLAMA.flops_per_token(8192)
    assert LLAMA.layers * flops == pytest.approx(8192 * again)


def test_per_op_recomputes_k_output_and_down_of_a_gpt():
    kernels = layer_kernels(GPT, sl.Plan(recompute="per-op"))
    assert products(kernels.recompute) == {"qkv": 12288, "output": 12288, "down": 12288}
    flops = sum(k.flops for k in kernels.recompute if isinstance(k, Matmul))
    again = GPT.hardware_flops_per_token(recompute="per-op", flash=True) - GPT.flops_per_token()
    assert GPT.layers * flops == pytest.approx(GPT.seq * again)


def test_per_op_keeps_what_it_does_not_compute_again():
    """Of a token of a Llama-3 8B layer, in bf16: its input, q, v, attention's output and 32 fp32
    numbers, the gate's product, down's."""
    kept = 2 * (4096 + 4096 + 1024 + 4096 + 14336 + 4096) + 4 * 32
    assert layer_activations_bytes(LLAMA, FSDP2, "per-op") == 8192 * kept


def test_torchs_states_are_16_bytes_a_parameter_and_megatrons_18():
    def each(plan):
        states = state_bytes(plan)
        return states.parameter + states.gradient + optimizer_bytes(plan)

    assert (each(FSDP2), each(sl.Plan())) == (16, 18)
    assert each(replace(FSDP2, precision="fp32")) == each(sl.Plan(precision="fp32")) == 16


def test_torchs_loss_holds_twelve_bytes_a_logit_and_megatrons_six():
    """torch: log-probabilities, the gradient of the loss with respect to them and with respect to
    the logits, all in fp32, are there at the same moment. Megatron-LM's loss works in place: 4
    bytes, and 2 of the gradient that it casts to bf16."""
    plan, tokens = sl.Plan(seq=8192), 8192
    held = [stage_memory(LLAMA, p, 0, last=True) for p in (replace(plan, library="torch"), plan)]
    # the message and the norm's result in bf16, a norm's fp32 number of each token
    kept = 2 * 2 * tokens * LLAMA.hidden + 4 * tokens
    logits, weight = tokens * LLAMA.vocab, 2 * LLAMA.hidden * LLAMA.vocab
    torchs = kept + weight  # autocast's copy of the head's weight in bf16
    assert [its.activations for its in held] == [torchs + 4 * logits, kept + 4 * logits]
    assert [its.activations + its.buffers for its in held] == [
        torchs + 12 * logits,
        kept + 6 * logits,
    ]


def test_a_library_that_is_unknown_is_refused():
    with pytest.raises(
        sl.InputError, match="library = 'deepspeed': give one of megatron, nanotron, torch, fsdp1"
    ):
        sl.Plan(library="deepspeed")


NANOTRON = sl.Plan(dp=4, tp=4, sequence_parallel=True, library="nanotron", seq=8192)
TOKENS = 8192


def a_layer_more(plan):
    one, two = (stage_memory(LLAMA, plan, layers).activations for layers in (1, 2))
    return two - one


@pytest.mark.parametrize(
    ("fields", "valid"), [({"zero": 3}, "ZeRO-1 at most"), ({"precision": "fp8"}, "bf16")]
)
def test_what_nanotron_has_not_is_refused(fields, valid):
    (name,) = fields
    with pytest.raises(sl.InputError, match=f"{name} = .*{valid}"):
        sl.Plan(dp=8, library="nanotron", **fields)


@pytest.mark.parametrize("library", ["megatron", "nanotron"])
def test_a_scale_for_each_row_is_torchaos(library):
    with pytest.raises(sl.InputError, match=r"fp8-rowwise.*give library = 'torch' or 'fsdp1'"):
        sl.Plan(dp=8, library=library, precision="fp8-rowwise")


def test_nanotron_keeps_the_activated_gate():
    """silu(gate) beside gate, up and their product: 2 bytes each, on a quarter of the MLP."""
    more = a_layer_more(NANOTRON) - a_layer_more(replace(NANOTRON, library="megatron"))
    assert more == 2 * TOKENS * LLAMA.ffn / 4


def test_nanotron_gathers_inputs_again_as_megatron_does():
    """Its option tp_recompute_allgather is on unless a configuration says otherwise."""
    sent = [
        traffic(LLAMA, replace(NANOTRON, library=library))[0].tp
        for library in ("megatron", "nanotron")
    ]
    assert sent[0] == sent[1] > 0


NODE = replace(sl.load_cluster("dgx-h100", nodes=2), host_op_s=0.0)


def added_s(fields, cluster=NODE):
    """By how much nanotron's update takes longer than Megatron-LM's, without the host."""
    plan = replace(NANOTRON, **fields)
    its, other = (
        sl.predict(LLAMA, replace(plan, library=library), cluster).optimizer_s
        for library in ("nanotron", "megatron")
    )
    return its - other


def test_nanotron_clips_and_clears_all_gradients_and_copies_what_it_gathers():
    """Megatron-LM moves 44 bytes for each parameter of its own part. nanotron moves 30 of these, 16
    for each that it holds, and with ZeRO-1 12 more to copy what it has gathered."""
    held = stage_parameters(LLAMA, NANOTRON, LLAMA.layers, first=True, last=True)
    gpu = NODE.gpu
    bandwidth = gpu.memory_bandwidth_bytes_per_s * efficiencies_of(gpu).memory
    assert added_s({}) == pytest.approx((30 + 16 - 44) * held / bandwidth, rel=1e-3)
    sharded = (30 - 44) * held / 4 + (16 + 12) * held
    assert added_s({"zero": 1, "dp_overlap": False}) == pytest.approx(sharded / bandwidth, rel=1e-3)


def test_each_tensor_that_nanotron_gathers_is_an_op_for_each_rank():
    """Six tensors of each of 32 layers, from four ranks."""
    fields = {"zero": 1, "dp_overlap": False}
    slow = replace(NODE, host_op_s=1e-2)
    plan = replace(NANOTRON, **fields)
    update_s = 12 * 32 * 1e-2  # as with every library: an op for each of twelve tensors
    found = sl.predict(LLAMA, plan, slow).optimizer_s
    # and the norm of the gradients, 87 µs
    assert found == pytest.approx(update_s + 6 * 32 * 4 * 1e-2, abs=1e-4)


def test_nanotron_adds_gradients_and_copies_queries_keys_and_values():
    """4 bytes for a gradient beyond a product that adds to its sum, and two bytes read and written of
    32 heads, and of 8 heads' keys and values three times."""
    plan = replace(NANOTRON, tp=1, sequence_parallel=False)
    its, other = (
        layer_kernels(LLAMA, replace(plan, library=it)) for it in ("nanotron", "megatron")
    )
    parameters = stage_parameters(LLAMA, plan, 1)
    added = its.weight_grad[-1].size_bytes
    assert added == 4 * parameters and len(its.weight_grad) == len(other.weight_grad) + 1
    (copies,) = [k for k in its.forward if k.name == "order of q, k and v"]
    assert copies.size_bytes == 2 * 2 * TOKENS * (32 + 3 * 2 * 8) * 128


def test_nanotron_has_communicators_of_all_ranks_and_of_a_replica():
    plan = sl.Plan(dp=4, tp=2, pp=2, library="nanotron", microbatches=4)
    more = reserve_bytes(plan) - reserve_bytes(replace(plan, library="megatron"))
    # of 16 and of 4 ranks, but none of the 2 of a pipeline
    assert more == 2 * COMMUNICATOR_BYTES - PAIR_BYTES


def test_with_zero_1_nanotron_reduces_all_gradients_to_all_ranks():
    """An all-reduce instead of a reduce-scatter of 4 bytes a gradient: half as much again."""
    sent = [
        traffic(LLAMA, replace(NANOTRON, zero=1, dp_overlap=False, library=library))[0].dp
        for library in ("megatron", "nanotron")
    ]
    parameters = stage_parameters(LLAMA, NANOTRON, LLAMA.layers, first=True, last=True)
    assert sent[1] - sent[0] == pytest.approx(3 / 4 * 4 * parameters, rel=1e-6)


@pytest.mark.parametrize("zero, of_ddp", [(0, 2), (1, 0)])
def test_nanotron_holds_16_bit_gradients_until_a_backward_is_over_and_buckets_of_ddp(zero, of_ddp):
    """Beside Megatron-LM's bytes: those of DDP's buckets, and at the end of a backward 2 more."""
    plan = replace(NANOTRON, tp=1, zero=zero, sequence_parallel=False, seq=16)
    held = [stage_memory(LLAMA, replace(plan, library=it), 4) for it in ("megatron", "nanotron")]
    parameters = stage_parameters(LLAMA, plan, 4)
    more = sum(held[1]) - sum(held[0])
    assert more == pytest.approx((2 + of_ddp) * parameters, rel=0.05)


def test_transformer_engine_keeps_inputs_of_products_in_8_bits_and_torch_does_not():
    """A byte less of two norms' results and of the gated product, and a byte more of attention's
    result, which is kept in 16 bits for attention's own backward, too."""
    plan = sl.Plan(seq=TOKENS)
    less = a_layer_more(plan) - a_layer_more(replace(plan, precision="fp8"))
    assert less == TOKENS * (LLAMA.hidden + LLAMA.ffn)
    bounds = [
        layer_activations_bytes(LLAMA, replace(plan, precision=p), "none") for p in ("bf16", "fp8")
    ]
    assert bounds[0] - bounds[1] == less
    torch = replace(plan, dp=2, zero=3, library="torch")
    assert a_layer_more(torch) == a_layer_more(replace(torch, precision="fp8"))
