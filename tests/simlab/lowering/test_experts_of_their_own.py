"""Experts that tensor-parallel ranks do not cut (`Plan.etp`), latent attention over tensor parallelism,
and tokens that cross to a node once (`Plan.dispatcher`), against closed forms."""

from dataclasses import replace
from itertools import combinations

import pytest

import simlab as sl
from simlab.collectives.group_shape import GroupShape
from simlab.collectives.nccl_algorithms import token_exchange_s
from simlab.cost.stage_times import StageCost
from simlab.errors import InputError
from simlab.layer.microbatch import visited
from simlab.layer.operation import OperationKind
from simlab.layer.parameters import expert_parameters, partial_parameters, stage_parameters
from simlab.lowering.build import program_of
from simlab.lowering.instructions import RankLowering
from simlab.lowering.kernels import Communication, UnitKernels
from simlab.memory.activations import layer_activations_bytes

MODEL = sl.Model(
    name="m", layers=4, hidden=256, heads=8, kv_heads=4, ffn=512, gated_mlp=True, bias=False,
    vocab=1024, seq=128, experts=8, experts_per_token=2, expert_ffn=96, dense_layers=1,
)  # fmt: skip
LATENT = sl.Model(
    name="latent", layers=2, hidden=256, heads=8, ffn=512, gated_mlp=True, bias=False, vocab=1024, seq=128,
    head_size=48, value_size=32, kv_rank=64, q_rank=96, rope_size=16,
)  # fmt: skip
EXPERT = 3 * 256 * 96
SPREAD = {"tp": 2, "sequence_parallel": True, "etp": 1}
NODE = sl.load_cluster("dgx-h100")


# groups
# ------------------------------------------------------------------------------------------------


def test_neighbours_share_experts_as_in_megatron():
    """Megatron-LM numbers ranks tp-cp-ep-dp-pp for experts, with tp = 1 of them."""
    layout = sl.Plan(dp=4, ep=4, **SPREAD).layout
    assert layout.group("ep", 0) == (0, 1, 2, 3) and layout.group("edp", 0) == (0, 4)


# parameters
# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shared", [0, 1])
@pytest.mark.parametrize("ep", [2, 4, 8])
def test_a_rank_holds_whole_experts(ep, shared):
    model = replace(MODEL, shared_experts=shared)
    plan = sl.Plan(dp=4, ep=ep, **SPREAD)
    cut = sl.Plan(dp=4, tp=2, sequence_parallel=True)
    routed, each = 8 * EXPERT, stage_parameters(model, cut, 3)
    own = stage_parameters(model, plan, 3)
    assert own == pytest.approx(each - 3 * routed / 2 + 3 * routed / ep)
    assert expert_parameters(model, plan, 3) == 3 * routed / ep
    # its router meets its own tokens only
    more = partial_parameters(model, plan, 3) - partial_parameters(model, cut, 3)
    assert more == 3 * 256 * 8
    units = RankLowering(model, plan, program_of(plan)).units[0]
    assert [unit.experts for unit in units] == [0, 0, *[8 // ep * EXPERT] * 3, 0]


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize("ep", [2, 4, 8])
def test_states_of_whole_experts_are_divided_over_their_holders(ep, zero):
    plan = sl.Plan(dp=4, ep=ep, zero=zero, **SPREAD)
    held = sl.predict(MODEL, plan, NODE).memory.rest(0)
    whole = stage_parameters(MODEL, plan, MODEL.layer_kinds, first=True, last=True)
    experts = 3 * 8 * EXPERT / ep
    for state, (size, first) in {"parameters": (2, 3), "gradients": (4, 2), "optimizer": (12, 1)}.items():  # fmt: skip
        shards = (4, 8 // ep) if zero >= first else (1, 1)
        numbers = (whole - experts) / shards[0] + experts / shards[1]
        assert held[state] == pytest.approx(size * numbers, rel=1e-3)


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
@pytest.mark.parametrize("q_rank", [0, 96])
def test_tensor_parallel_ranks_have_their_heads_and_all_products_down(tp, q_rank):
    model = replace(LATENT, q_rank=q_rank)
    down = 256 * (q_rank + 64 + 16)
    own = stage_parameters(model, sl.Plan(tp=tp), 1)
    parts = model.layer_parameters
    assert own == (parts["attention"] - down + parts["mlp"]) / tp + down + parts["norms"]
    assert partial_parameters(model, sl.Plan(tp=tp, sequence_parallel=True), 1) == (
        0 if tp == 1 else down + parts["norms"]
    )


# what is computed and sent
# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shared", [0, 1])
@pytest.mark.parametrize("plan", [{"ep": 4}, {"ep": 8}, {"ep": 4, "cp": 2}])
def test_a_layer_is_computed_once_by_all_ranks_together(plan, shared):
    """All tp x cp ranks of a replica compute what one GPU would, no more."""
    model = replace(MODEL, shared_experts=shared)
    plan = sl.Plan(**{"dp": 4, **SPREAD, **plan})
    flops = sum(k.flops for k in UnitKernels(model, plan)["layer"].forward)
    assert flops * plan.tp * plan.cp == 128 * sum(model.layer_flops().values())


def test_routed_experts_gather_nothing_and_sum_nothing_over_tensor_parallel_ranks():
    forward = UnitKernels(MODEL, sl.Plan(dp=4, ep=8, **SPREAD))["layer"].forward
    sent = [k.name for k in forward if isinstance(k, Communication)]
    assert sent == ["qkv gather", "output scatter", "dispatch", "combine"]
    shared = UnitKernels(replace(MODEL, shared_experts=1), sl.Plan(dp=4, ep=8, **SPREAD))["layer"]
    sent = [k.name for k in shared.forward if isinstance(k, Communication)]
    assert sent[2:] == ["dispatch", "combine", "shared up gather", "shared down scatter"]


@pytest.mark.parametrize("ep", [2, 4, 8])
def test_each_rank_exchanges_the_tokens_that_it_has(ep):
    """Half of the tokens of tensor parallelism of 2, x 2 experts, forward and backward, there and back,
    in three layers, of which (ep - 1) / ep leave the rank. Gradients of its experts go to the ranks that
    hold the same."""
    (sent,) = sl.traffic(MODEL, sl.Plan(dp=4, ep=ep, microbatches=2, zero=1, **SPREAD))
    assert sent.ep == 2 * 3 * 4 * (64 * 2) * 256 * 2 * (ep - 1) / ep
    holders = 8 // ep
    assert sent.edp == pytest.approx((4 + 2) * (holders - 1) / holders * 3 * 8 * EXPERT / ep)


@pytest.mark.parametrize("q_rank", [0, 96])
@pytest.mark.parametrize("tp", [2, 4])
def test_latents_are_gathered_where_sequences_are_cut(tp, q_rank):
    """Of 128 tokens the queries' latent (or the hidden states), that of keys and values with the rotary
    part, and the MLP's input are gathered; backward they are gathered again and their gradients
    scattered. Where sequences are whole, gradients of what enters a product up are summed."""
    model = replace(LATENT, q_rank=q_rank)

    def sent(kernels):
        return [(k.kind, k.size_bytes / 2 / 128) for k in kernels if isinstance(k, Communication)]

    entered = [q_rank or 256, 64 + 16, 256]
    layer = UnitKernels(model, sl.Plan(tp=tp, sequence_parallel=True))["layer"]
    gathers = [("all_gather", width) for width in entered]
    forward = [*gathers[:2], ("reduce_scatter", 256), gathers[2], ("reduce_scatter", 256)]
    assert sent(layer.forward) == forward
    backward = []
    for kind, width in reversed(forward):
        if kind == "all_gather":
            backward += [("all_gather", width), ("reduce_scatter", width)]
        else:
            backward.append(("all_gather", width))
    assert sent(layer.input_grad) == backward
    layer = UnitKernels(model, sl.Plan(tp=tp))["layer"]
    assert sent(layer.forward) == [("all_reduce", 256)] * 2
    summed = [256, 64, q_rank or 256]
    assert sent(layer.input_grad) == [("all_reduce", width) for width in summed]


@pytest.mark.parametrize("plan", [{}, {"sequence_parallel": True}])
@pytest.mark.parametrize("tp", [2, 4])
def test_latent_attention_is_computed_once_but_for_products_down_of_whole_sequences(plan, tp):
    plan = sl.Plan(tp=tp, **plan)
    forward = UnitKernels(LATENT, plan)["layer"].forward
    down = [k for k in forward if k.operation in (OperationKind.Q_DOWN, OperationKind.KV_DOWN)]
    times = 1 if plan.sequence_parallel else tp
    assert sum(k.flops for k in down) * tp == 2 * 128 * 256 * (96 + 80) * times
    rest = sum(k.flops for k in forward) - sum(k.flops for k in down)
    assert rest * tp == 128 * (sum(LATENT.layer_flops().values()) - 2 * 256 * (96 + 80))


# tokens that cross to a node once
# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("experts", "chosen"), [(8, 2), (8, 3), (12, 4)])
def test_a_token_visits_as_many_ranks_as_counting_all_choices_says(experts, chosen):
    model = replace(MODEL, experts=experts, experts_per_token=chosen)
    for parts in (n for n in range(1, experts + 1) if experts % n == 0):
        each = experts // parts
        found = [len({e // each for e in some}) for some in combinations(range(experts), chosen)]
        assert visited(model, parts) == pytest.approx(sum(found) / len(found))


@pytest.mark.parametrize(("experts", "chosen", "groups", "taken"), [
    (8, 2, 4, 2), (12, 3, 4, 2), (12, 3, 6, 3), (12, 2, 3, 1), (12, 3, 2, 1), (12, 4, 12, 5), (8, 2, 1, 1),
])  # fmt: skip
def test_with_groups_of_experts_too(experts, chosen, groups, taken):
    """Parts may be whole groups, parts of one, or reach from one into the next."""
    model = replace(
        MODEL, experts=experts, experts_per_token=chosen, expert_groups=groups, groups_per_token=taken
    )  # fmt: skip
    of_group = experts // groups
    for parts in (n for n in range(1, experts + 1) if experts % n == 0):
        each = experts // parts
        found = [
            len({e // each for e in some})
            for those in combinations(range(groups), taken)
            for some in combinations([e for e in range(experts) if e // of_group in those], chosen)
        ]
        assert visited(model, parts) == pytest.approx(sum(found) / len(found), rel=1e-12)


def test_parts_that_do_not_divide_the_experts_differ_by_one():
    """As nodes that are not filled evenly make them: 3 + 3 + 2 of 8 experts, or some without any."""
    model = replace(MODEL, experts=8, experts_per_token=2)
    part_of = [0, 0, 1, 1, 1, 2, 2, 2]
    found = [len({part_of[e] for e in some}) for some in combinations(range(8), 2)]
    assert visited(model, 3) == pytest.approx(sum(found) / len(found))
    assert visited(model, 16) == visited(model, 8) == 2


def test_deepseek_v3_visits_seven_of_64_ranks_and_four_of_eight_nodes_at_most():
    """Its router takes 4 of 8 groups of experts, so that a token goes to 4 of 8 nodes at most (DeepSeek-AI
    2024, section 2.1.2); all choices of experts alike reach 5.3 of them."""
    model = sl.load_model("deepseek-v3")
    assert visited(model, 64) == pytest.approx(7.36, abs=0.01)
    assert visited(model, 8) == pytest.approx(3.63, abs=0.01)
    free = replace(model, expert_groups=0, groups_per_token=0)
    assert visited(free, 8) == pytest.approx(5.29, abs=0.01)
    assert visited(free, 32) == pytest.approx(7.27, abs=0.01)


@pytest.mark.parametrize(("cluster", "ranks", "published"), [
    ("dgx-h100", 16, (81, 90)), ("dgx-h100", 32, (57, 61)), ("dgx-b200", 16, (90, 91)), ("dgx-b200", 8, (643, 740)),
])  # fmt: skip
def test_the_exchange_is_about_as_fast_as_deepeps_own_figures(cluster, ranks, published):
    """Logical bandwidth, GB/s, of dispatch and combine: all copies for nodes (in one node for GPUs),
    those for the own one among them, over the time, of 8,192 tokens of 7,168 numbers with 8 of 256 experts
    that are on all nodes (deepseek-ai/DeepEP @dd758ca, README.md and docs/legacy.md)."""
    cluster = sl.load_cluster(cluster, nodes=ranks // 8)
    group = GroupShape(ranks, 8)
    size_bytes = 8 * 8192 * 7168 * 2.0  # of so many that latency is nothing
    share = group.nodes / 8 if group.nodes > 1 else 1.0
    seconds = token_exchange_s(1000 * size_bytes, share, group, cluster)
    reached = 1000 * share * size_bytes / seconds / 1e9
    assert 0.88 * published[0] < reached < 1.12 * published[1]


def test_across_nodes_a_token_that_crosses_once_is_faster_and_within_one_sends_less():
    model, plan = sl.load_model("deepseek-v3"), sl.Plan(dp=32, ep=32, zero=1, microbatches=2)
    cluster = sl.load_cluster("dgx-h100", nodes=4)
    once = replace(plan, dispatcher="once-a-node")
    copies, tokens = (
        StageCost(model, its, cluster).unit_parts("layer", "F").ep for its in (plan, once)
    )
    assert tokens < 0.5 * copies
    sent = [sl.traffic(model, its)[0].ep for its in (plan, once)]
    assert sent[1] / sent[0] == pytest.approx(visited(model, 32) / 8, rel=1e-4)


# what is dropped and kept smaller
# ------------------------------------------------------------------------------------------------


def test_outputs_that_are_made_again_are_not_kept():
    """Of a layer with experts the results of two norms, and of three numbers of a routed expert's width
    the activation's; with latent attention q, k and v of all heads."""
    shared = replace(MODEL, shared_experts=1)
    normed = {"qkv input": 2 * 128 * 256, "mlp input": 2 * 128 * 256}
    activated, heads = 2 * 128 * 2 * 96, 2 * 128 * 8
    latent = {"q": heads * 48, "k": heads * 48, "v": heads * 32}
    for model, more in (
        (MODEL, {"mlp between": activated}),
        (shared, {"mlp between": activated}),
        (LATENT, latent),
    ):
        kept = {
            kind: model.layer_activations(1, recompute=kind, flash=True)
            for kind in ("none", "outputs")
        }
        less = {name: size - kept["outputs"].get(name, 0) for name, size in kept["none"].items()}
        assert {name: size for name, size in less.items() if size} == pytest.approx(normed | more)
    held = [
        layer_activations_bytes(shared, sl.Plan(dp=8, ep=8, recompute="outputs"), kind)
        for kind in ("none", "outputs")
    ]
    assert held[0] - held[1] == sum(normed.values()) + activated


def test_what_is_made_again_runs_again():
    again = UnitKernels(MODEL, sl.Plan(recompute="outputs"))["layer"].recompute
    assert [kernel.name for kernel in again] == ["norm 1", "norm 2", "activation"]
    plan = sl.Plan(tp=2, sequence_parallel=True, recompute="outputs")
    again = UnitKernels(LATENT, plan)["layer"].recompute
    assert [kernel.name for kernel in again] == [
        "norm 1", "q up gather", "q up", "kv up gather", "kv up", "copy of keys", "rotary", "norm 2",
    ]  # fmt: skip
    products = sum(kernel.flops for kernel in UnitKernels(LATENT, sl.Plan(recompute="outputs"))["layer"].recompute)  # fmt: skip
    more = LATENT.hardware_flops_per_token(recompute="outputs") - LATENT.flops_per_token()
    assert more * 128 == 2 * products  # in two layers


def test_moments_of_16_bits_save_four_bytes_a_parameter_and_time():
    plan, model = sl.Plan(dp=8, zero=1, microbatches=2), sl.load_model("llama-3-8b")
    full, half = (sl.predict(model, replace(plan, moment_bytes=n), NODE) for n in (4, 2))
    numbers = full.memory_bytes["optimizer"] / 12
    assert full.memory_bytes["optimizer"] - half.memory_bytes["optimizer"] == pytest.approx(
        4 * numbers
    )
    assert half.optimizer_s < full.optimizer_s


# what is refused
# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("fields", "says"), [
    ({"tp": 4, "etp": 2}, "etp = 2 with tp = 4: each expert is cut by all tensor-parallel ranks or by none, so give etp = 4 or 1"),
    ({"tp": 2, "etp": 1, "dp": 2, "ep": 4}, "etp = 1 with sequence_parallel = False: .* give sequence_parallel = True, or etp = 2"),
    ({"dp": 2, "ep": 3, **SPREAD}, "ep = 3 with etp = 1 does not divide tp x dp x cp = 4"),
    ({"dp": 2, **SPREAD}, "ep = 1 with etp = 1 is no multiple of tp = 2, .*; give a multiple, or etp = 2"),
    ({"moment_bytes": 3}, "moment_bytes = 3: give 2 or 4"), ({"moment_bytes": 2}, "moment_bytes = 2 with zero = 0: .* give zero = 1"),
    ({"recompute": "outputs", "library": "torch"}, "recompute = 'outputs' with library = 'torch': it is Megatron-LM's"),
    ({"moment_bytes": 2, "zero": 1, "library": "torch"}, "moment_bytes = 2 with library = 'torch': .*give library = 'megatron'"),
    ({"moment_bytes": 2, "zero": 1, "offload": "optimizer"}, "moment_bytes = 2 with offload = 'optimizer'"),
    ({"dispatcher": "once-a-node"}, "dispatcher = 'once-a-node' has no effect with ep = 1"),
    ({"dispatcher": "deepep", "dp": 2, "ep": 2}, "dispatcher = 'deepep': give one of all-to-all, once-a-node"),
])  # fmt: skip
def test_what_cannot_be_is_refused_with_what_can(fields, says):
    with pytest.raises(InputError, match=f"^{says}"):
        sl.Plan(**fields)


def test_experts_of_their_own_need_experts():
    plan = sl.Plan(dp=2, ep=4, **SPREAD)
    with pytest.raises(InputError, match="ep = 4: llama-3-8b has no experts; give ep = 1"):
        plan.check(sl.load_model("llama-3-8b"))
