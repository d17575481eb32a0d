"""What must not depend on how kernels and communications are arranged: each has the operation that
it is a part of, and overlap changes neither what is computed nor what is sent."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plan_oracles import changed, plan_of

import simlab as sl
from simlab.layer.operation import OperationKind
from simlab.lowering.kernels import UnitKernels, kernel_names
from simlab.lowering.pieces import BEGIN, COMPUTE, WAIT, Slice, unit_pieces

GPT = sl.Model(layers=2, hidden=256, heads=16, vocab=1024, positions=128, seq=128, tied_head=False)
LLAMA = replace(GPT, kv_heads=4, ffn=512, gated_mlp=True, bias=False, positions=0)
EXPERTS = replace(LLAMA, experts=4, experts_per_token=2)
MIXED = replace(EXPERTS, expert_ffn=128, shared_experts=1, dense_layers=1, qk_norm=True)
LATENT = replace(
    MIXED, kv_heads=16, qk_norm=False, q_rank=48, kv_rank=32, rope_size=8, value_size=12
)
MODELS = {"gpt": GPT, "llama": LLAMA, "experts": EXPERTS, "mixed": MIXED}
ONE = replace(sl.load_cluster("dgx-a100"), gpus_per_node=1, host_op_s=0.0)

plans = st.builds(
    lambda **fields: plan_of(**fields),
    tp=st.sampled_from([1, 2, 4]), cp=st.sampled_from([1, 2, 4]), dp=st.sampled_from([1, 2]),
    zero=st.sampled_from([0, 3]), sequence_parallel=st.booleans(),
    recompute=st.sampled_from(["none", "selective", "per-op", "full"]),
    cp_kind=st.sampled_from(["ring", "all-to-all", "all-gather"]),
    cp_layout=st.sampled_from(["zigzag", "contiguous"]),
    precision=st.sampled_from(["bf16", "fp32"]), library=st.sampled_from(["megatron", "torch"]),
)  # fmt: skip


@pytest.mark.parametrize(
    "model", [LLAMA, EXPERTS, MIXED, LATENT], ids=["llama", "experts", "mixed", "latent"]
)
@pytest.mark.parametrize(
    "fields", [{}, {"attention": "unfused"}, {"recompute": "full", "fused": False}], ids=str
)
def test_if_all_operations_are_twice_as_fast_all_that_is_computed_takes_half(model, fields):
    """Of a model without biases, whose gradients are the only ones that no operation of the forward
    has: so each kernel, forward, backward or computed again, belongs to one."""
    plan = sl.Plan(microbatches=2, dropout=False, **fields)
    twice = dict.fromkeys(kernel_names(model, plan), 2)
    before, after = (
        sl.predict(model, plan, ONE, faster=faster).waterfall_s.compute for faster in (None, twice)
    )
    assert after == pytest.approx(before / 2, rel=1e-12)


def test_each_product_of_latent_attention_has_an_operation_of_its_own():
    kernels = UnitKernels(LATENT, sl.Plan())["layer"].forward
    assert OperationKind.OTHER not in {kernel.operation for kernel in kernels}
    latents = [str(its.operation) for its in kernels if its.name.startswith(("q ", "kv "))]
    assert latents == ["q down", "q up", "kv down", "kv up"]


@given(st.sampled_from([*MODELS]), plans)
def test_a_kernel_of_a_backward_has_the_operation_that_its_name_begins_with(name, plan):
    """But for what no kernel of the forward makes: biases' gradients and ZeRO-3's copies."""
    for kernels in UnitKernels(MODELS[name], plan).values():
        forward = {kernel.operation for kernel in kernels.forward}
        assert (
            all(isinstance(its, OperationKind) for its in forward)
            and OperationKind.OTHER not in forward
        )
        of_name = {kernel.name: kernel.operation for kernel in kernels.forward}
        for kernel in (*kernels.input_grad, *kernels.weight_grad, *kernels.recompute):
            if kernel.operation in (OperationKind.BIAS, OperationKind.COPY):
                assert kernel.name.startswith(str(kernel.operation))
                continue
            assert kernel.operation in forward
            before = kernel.name.split(" input")[0].split(" weight")[0].split(" grad")[0]
            if before in of_name:
                assert kernel.operation == of_name[before]
            else:  # a communication, or the sum of a residual's two gradients
                assert kernel.name.split()[0] in {
                    str(kernel.operation).split()[0], *(n.split()[0] for n in of_name)
                }  # fmt: skip


def test_communications_of_attention_and_of_an_input_that_is_gathered_again_are_named():
    """The names stand in pictures, and in the table of what a step waits for."""
    exchanged = UnitKernels(LLAMA, sl.Plan(cp=2, cp_kind="all-to-all"))["layer"].forward
    names = [kernel.name for kernel in exchanged if kernel.name.endswith("exchange")]
    assert names == ["q exchange", "k exchange", "v exchange", "result exchange"]
    backward = UnitKernels(LLAMA, sl.Plan(tp=2, sequence_parallel=True))["layer"]
    carried = {}
    for kernel in (*backward.input_grad, *backward.weight_grad):
        if hasattr(kernel, "carries"):
            carried.setdefault(kernel.carries, set()).add("grad" in kernel.name)
    assert carried["input again"] == {False} and carried["input gradient"] == {True}


@given(st.sampled_from([*MODELS]), plans)
def test_a_sum_of_a_gradient_runs_beside_the_product_that_it_does_not_come_from(name, plan):
    """The input's gradient is made by one product of the backward, so its sum may run beside the
    other, which makes the weight's; what is gathered is for the other or for both."""
    for unit in ("layer", "head"):
        kernels = UnitKernels(MODELS[name], plan)[unit]
        there = {
            k.place for k in (*kernels.input_grad, *kernels.weight_grad) if hasattr(k, "place")
        }
        for kernel in kernels.input_grad:
            if getattr(kernel, "dimension", "") == "tp":
                role = "weight" if kernel.carries == "input gradient" else "input"
                assert kernel.beside == (kernel.operation, role) and kernel.beside in there


def made(pieces):
    """({kernel: how much of it is computed}, {dimension and kind: bytes sent})"""
    computed, sent = Counter(), Counter()
    for piece in pieces:
        for kernel in piece.kernels:
            kernel, part = kernel if isinstance(kernel, Slice) else (kernel, 1.0)
            computed[kernel] += part
        if piece.action == BEGIN:
            sent[piece.dimension, piece.kind] += piece.size_bytes
    return dict(computed), dict(sent)


@given(st.sampled_from([*MODELS]), plans)
def test_overlap_changes_neither_what_is_computed_nor_what_is_sent(name, plan):
    kernels = UnitKernels(MODELS[name], plan)
    for unit in kernels.values():
        for kind in "FBIW":
            found = [
                unit_pieces(unit, kind, changed(plan, tp_overlap=overlap))
                for overlap in ("none", "weight-grad", "pipelined")
            ]
            computed, sent = made(found[0])
            for pieces in found:
                assert made(pieces) == (pytest.approx(computed), pytest.approx(sent))
                begun = [piece[1:] for piece in pieces if piece.action == BEGIN]
                awaited = [piece[1:] for piece in pieces if piece.action == WAIT]
                assert sorted(map(str, begun)) == sorted(map(str, awaited))
                assert len({(its[2], its[0]) for its in begun}) == len(begun), "names tell apart"
        whole, halves = (
            Counter(kernel for kind in kinds for kernel in made(unit_pieces(unit, kind, plan))[0])
            for kinds in ("B", "IW")
        )
        assert whole == halves


@pytest.mark.parametrize("tp", [2, 4])
@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_of_a_pipelined_communication_only_a_tp_th_has_nothing_beside_it(tp, sequence_parallel):
    """Which is the first piece of what is gathered and the last one of what is summed; of each
    product beside one, all but a tp-th runs meanwhile."""
    plan = plan_of(tp=tp, sequence_parallel=sequence_parallel, tp_overlap="pipelined")
    (layer,) = [UnitKernels(GPT, plan)["layer"]]
    for kind, cut in (("F", 4 if sequence_parallel else 2), ("I", 4 if sequence_parallel else 2)):
        alone, beside = {}, {}
        pieces = unit_pieces(layer, kind, plan)
        for at, piece in enumerate(pieces):
            if piece.action != BEGIN or ("piece" not in piece.name and piece.part == 1):
                continue
            runs = pieces[at + 1].action == COMPUTE
            name = piece.name.split(",")[0]
            assert name not in (beside if runs else alone)
            (beside if runs else alone)[name] = piece.part
            if runs:
                (its,) = pieces[at + 1].kernels
                assert its.part == pytest.approx(1 - 1 / tp)
                first = "gather" in name
                assert (name in alone) == first
            else:
                assert piece.name.endswith("first piece" if "gather" in name else "last piece")
        assert len(alone) == len(beside) == cut and set(alone) == set(beside)
        assert set(alone.values()) == {1 / tp} and set(beside.values()) == {1 - 1 / tp}
