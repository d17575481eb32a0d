"""Expert parallelism: groups, all-to-alls, gradients and memory against closed forms."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import simlab as sl
from simlab.engine.play import check_agreement
from simlab.errors import InputError
from simlab.lowering.build import program_of
from simlab.lowering.instructions import RankLowering, rank_instructions
from simlab.lowering.kernels import GroupedMatmul, UnitKernels
from simlab.lowering.pieces import BEGIN, COMPUTE
from simlab.spec.layout import Layout

MODEL = sl.Model(
    name="m", layers=4, hidden=256, heads=8, kv_heads=4, ffn=512, gated_mlp=True, bias=False,
    vocab=1024, seq=128, experts=8, experts_per_token=2, expert_ffn=96, shared_experts=1, dense_layers=1,
)  # fmt: skip
EXPERT = 3 * 256 * 96
SPREAD = {"tp": 2, "sequence_parallel": True, "etp": 1}
NODE = sl.load_cluster("dgx-h100")


def others(model):
    """The parameters of a model that no routed expert has."""
    return model.parameters - (model.layers - model.dense_layers) * model.experts * EXPERT


# groups
# ------------------------------------------------------------------------------------------------


@given(
    dp=st.sampled_from([1, 2, 4, 6]),
    cp=st.sampled_from([1, 2]),
    tp=st.sampled_from([1, 2, 4]),
    pp=st.sampled_from([1, 2]),
    ep=st.sampled_from([1, 2, 4, 8, 16]),
    order=st.permutations(["tp", "cp", "dp", "pp"]),
    own=st.booleans(),
)
def test_groups_of_experts_and_of_their_holders_cross_in_each_rank(dp, cp, tp, pp, ep, order, own):
    """own: tensor-parallel ranks have experts of their own; all ranks of a stage share them then."""
    ranks = tp * dp * cp if own else dp * cp
    if ranks % ep or (own and (ep == 1 or ep % tp)):
        ep, own, ranks = 1, False, dp * cp
    layout = Layout(dp=dp, cp=cp, tp=tp, pp=pp, ep=ep, etp=1 if own else None, order=tuple(order))
    place = layout.coordinates
    for rank in range(layout.world_size):
        shares, holds = (set(layout.group(name, rank)) for name in ("ep", "edp"))
        assert shares & holds == {rank}
        assert (len(shares), len(holds)) == (ep, ranks // ep)
        stage = {other for other in range(layout.world_size) if place(other).pp == place(rank).pp}
        assert shares | holds <= (stage if own else set(layout.group("dp", rank)))
        # the place among those that share experts says which experts a rank holds
        own_place = layout.group("ep", rank).index(rank)
        assert {layout.group("ep", other).index(other) for other in holds} == {own_place}
    for name in ("ep", "edp"):
        members = [rank for group in layout.groups(name) for rank in group]
        assert sorted(members) == [*range(layout.world_size)]
    for gpus in (2, 4, 8):
        inside = all(ranks[0] // gpus == ranks[-1] // gpus for ranks in layout.groups("ep"))
        assert layout.in_nodes("ep", gpus) == inside


def test_ranks_that_share_experts_are_neighbours_so_that_few_all_to_alls_cross_nodes():
    layout = sl.Plan(dp=8, tp=2, ep=4).layout
    assert layout.group("ep", 0) == (0, 2, 4, 6) and layout.group("edp", 0) == (0, 8)


# what is sent
# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ep", [2, 4, 8])
@pytest.mark.parametrize(("recompute", "times"), [("none", 4), ("full", 6), ("selective", 4)])
@pytest.mark.parametrize("load", [1.0, 1.5])
def test_a_layer_sends_two_all_to_alls_each_way_and_those_of_its_recomputation(
    ep, recompute, times, load
):
    """Tokens x experts per token x hidden x 2 bytes each, of which (ep - 1) / ep leave the rank."""
    plan = sl.Plan(
        dp=8, ep=ep, microbatches=3, microbatch_size=2, recompute=recompute, expert_load=load
    )
    (sent,) = sl.traffic(MODEL, plan)
    copies = 2 * 128 * 2
    assert sent.ep == 3 * 3 * times * load * copies * 256 * 2 * (ep - 1) / ep


@pytest.mark.parametrize("cp", [1, 2])
@pytest.mark.parametrize("tp", [1, 2])
def test_context_parallel_ranks_send_their_own_tokens_and_tensor_parallel_ranks_all(cp, tp):
    plan = sl.Plan(dp=4, cp=cp, tp=tp, ep=4, microbatches=2)
    (sent,) = sl.traffic(MODEL, plan)
    assert sent.ep == 2 * 3 * 4 * (128 // cp * 2) * 256 * 2 * 3 / 4


@pytest.mark.parametrize("ep", [1, 2, 4, 8])
@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_experts_gradients_and_parameters_go_to_the_ranks_that_hold_the_same(ep, zero):
    """Gradients have 4 bytes, parameters 2. ZeRO-0 sums 2 (n - 1) / n of them once, the others
    scatter (n - 1) / n of them, ZeRO-2 and 3 after each of m backwards. What is updated in parts is
    gathered once, and ZeRO-3 gathers for each forward and backward."""
    m, holders = 2, 8 // ep
    (sent,) = sl.traffic(MODEL, sl.Plan(dp=8, ep=ep, zero=zero, microbatches=m))
    ring = lambda n: (n - 1) / n  # noqa: E731
    each = {
        0: lambda n: 2 * 4 * ring(n),
        1: lambda n: (4 + 2) * ring(n),
        2: lambda n: (4 * m + 2) * ring(n),
        3: lambda n: (4 * m + 2 * 2 * m) * ring(n),
    }[zero]
    routed = 3 * 8 * EXPERT
    if ep == 1:
        assert sent.edp == 0
        assert sent.dp == pytest.approx(each(8) * (others(MODEL) + routed), rel=1e-4)
    else:
        assert sent.edp == pytest.approx(each(holders) * routed / ep)
        assert sent.dp == pytest.approx(each(8) * others(MODEL), rel=1e-4)


def test_experts_that_one_rank_holds_travel_in_no_group_but_their_norm_is_summed():
    plan = sl.Plan(dp=4, ep=4, microbatches=2)
    items = rank_instructions(MODEL, plan, program_of(plan))
    begun = [item for item in items if item.action == BEGIN]
    assert not [item for item in begun if item.dimension == "edp"]
    assert [item.name for item in begun if not item.unit] == ["norm over ep"]


@pytest.mark.parametrize("zero", [0, 1])
def test_buckets_of_experts_are_apart_from_those_of_the_rest(zero):
    plan = sl.Plan(dp=8, ep=2, zero=zero, microbatches=2, bucket_bytes=2**18)
    items = rank_instructions(MODEL, plan, program_of(plan))
    for dimension, numbers, ranks in (("dp", others(MODEL), 8), ("edp", 3 * 4 * EXPERT, 4)):
        reduced = [
            item.size_bytes
            for item in items
            if item.action == BEGIN and item.dimension == dimension and "gradients" in item.name
        ]
        assert sum(reduced) == pytest.approx(4 * numbers, abs=4 * ranks * len(reduced))
        assert all(size <= 2**18 for size in reduced) and len(reduced) > 4


# the order
# ------------------------------------------------------------------------------------------------


def what_happens(plan, op, layer):
    """[the products and all-to-alls of an op in a layer, in order]"""
    found = []
    for item in rank_instructions(MODEL, plan, program_of(plan)):
        if (item.op, item.unit) != (op, f"layer {layer}"):
            continue
        if item.action == COMPUTE:
            names = [kernel.name for kernel in item.kernels]
            found += [
                name for name in names if name.split()[0] in ("router", "up", "down", "shared")
            ]
        elif item.action == BEGIN and item.dimension == "ep":
            found.append(f"{item.dimension} {item.name.removeprefix(f'layer {layer} ')}")
    return found


def test_tokens_go_out_before_the_experts_and_come_back_after_them():
    plan = sl.Plan(dp=4, ep=4)
    assert what_happens(plan, "0F0", 2) == [
        "router", "ep dispatch", "up", "down", "ep combine", "shared up", "shared activation", "shared down",
    ]  # fmt: skip
    backward = [name for name in what_happens(plan, "0B0", 2) if not name.startswith("shared")]
    assert backward == [
        "ep combine grad", "down input grad", "down weight grad", "up input grad", "up weight grad",
        "ep dispatch grad", "router input grad", "router weight grad",
    ]  # fmt: skip
    assert what_happens(plan, "0F0", 0) == ["up", "down"]  # a dense layer


@pytest.mark.parametrize("plan", [
    {"dp": 4, "ep": 2, "zero": 3}, {"dp": 2, "cp": 2, "ep": 4, "tp": 2, "zero": 1}, {"dp": 4, "ep": 4, "pp": 2, "schedule": "zb-h1"},
    {"dp": 4, "ep": 2, "zero": 2, "library": "torch", "pp": 2, "microbatches": 4},
    SPREAD | {"dp": 4, "ep": 4, "zero": 3}, SPREAD | {"dp": 2, "cp": 2, "ep": 8, "zero": 1},
    SPREAD | {"dp": 4, "ep": 8, "pp": 2, "schedule": "zb-h1"},
    SPREAD | {"dp": 4, "ep": 2, "zero": 2, "library": "torch", "pp": 2, "microbatches": 4},
    SPREAD | {"dp": 2, "ep": 4, "pp": 2, "microbatches": 4, "schedule": "interleaved-1f1b", "ep_overlap": True},
])  # fmt: skip
def test_the_members_of_each_group_agree_on_what_they_send(plan):
    plan = sl.Plan(**plan)
    program = program_of(plan)
    lists = [
        rank_instructions(MODEL, plan, program, place.pp, context_rank=place.cp)
        for place in plan.layout.all_coordinates()
    ]
    check_agreement(lists, plan)


# what is computed and held
# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ep", [1, 2, 4, 8])
def test_a_rank_computes_as_much_whoever_holds_the_experts(ep):
    kernels = UnitKernels(MODEL, sl.Plan(dp=8, ep=ep))["layer"]
    grouped = [kernel for kernel in kernels.forward if isinstance(kernel, GroupedMatmul)]
    assert [len(kernel.tokens) for kernel in grouped] == [8 // ep] * 2
    assert [sum(kernel.tokens) for kernel in grouped] == [256] * 2
    assert sum(kernel.flops for kernel in kernels.forward) == 128 * sum(
        MODEL.layer_flops().values()
    )


@pytest.mark.parametrize("ep", [2, 4, 8])
@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize("library", ["megatron", "torch"])
def test_states_of_experts_are_divided_over_ep_and_then_over_their_holders(ep, zero, library):
    """18 bytes a parameter for Megatron-LM: 2, 4 and 12. torch's gradients come and go, and its
    ZeRO-1 and 2 keep parameters in bf16 beside fp32 shards."""
    plan = sl.Plan(dp=8, ep=ep, zero=zero, library=library)
    held = sl.predict(MODEL, plan, NODE).memory.rest(0)
    routed, holders = 3 * 8 * EXPERT / ep, 8 // ep
    parameter, optimizer = (2, 12) if library == "megatron" or zero in (1, 2) else (4, 8)
    states = {"parameters": (parameter, 3), "optimizer": (optimizer, 1)}
    if library == "megatron":
        states["gradients"] = 4, 2
    for state, (size, first) in states.items():
        shards = (8, holders) if zero >= first else (1, 1)
        numbers = others(MODEL) / shards[0] + routed / shards[1]
        assert held[state] == pytest.approx(size * numbers, rel=1e-3)


def test_a_busier_rank_computes_sends_and_keeps_more():
    steps = [sl.predict(MODEL, sl.Plan(dp=8, ep=8, expert_load=load), NODE) for load in (1.0, 2.0)]
    kernels = [UnitKernels(MODEL, step.plan)["layer"].forward for step in steps]
    tokens = [next(k.m for k in its if isinstance(k, GroupedMatmul)) for its in kernels]
    assert tokens == [256, 512]
    one, two = (step.memory.activations()[0][0] for step in steps)
    # its copies, and three numbers of an expert's width for each
    assert two - one == 3 * 256 * 2 * (256 + 3 * 96)
    # of so few tokens the host's launches take longer
    many = [
        sl.predict(MODEL, replace(step.plan, microbatch_size=1024), NODE).step_s for step in steps
    ]
    assert many[1] > 1.05 * many[0]


def test_what_nobody_hides_of_the_all_to_alls_is_in_the_waterfall_and_grows_across_nodes():
    model = replace(sl.load_model("qwen3-30b-a3b"), layers=4)
    plan = sl.Plan(dp=16, ep=16, microbatches=2)
    one, two = (
        sl.predict(model, plan, replace(NODE, gpus_per_node=n, nics_per_node=n, nodes=16 // n))
        for n in (16, 8)
    )
    assert 0 < one.waterfall_s.ep < two.waterfall_s.ep
    assert sum(two.waterfall_s) == pytest.approx(two.step_s, rel=1e-9)
    assert sl.predict(model, replace(plan, ep=1), replace(NODE, nodes=2)).waterfall_s.ep == 0


def test_lists_of_a_unit_say_which_of_its_parameters_are_experts():
    plan = sl.Plan(dp=4, ep=4)
    units = RankLowering(MODEL, plan, program_of(plan)).units[0]
    assert [unit.experts for unit in units] == [0, 0, *[2 * EXPERT] * 3, 0]
    assert sum(unit.parameters for unit in units) == others(MODEL) + 3 * 2 * EXPERT


# what is refused
# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("fields", "says"), [
    ({"dp": 4, "ep": 3}, "ep = 3 does not divide dp x cp = 4; nearest that do"), ({"ep": 0}, "ep = 0: give a whole number, at least 1"),
    ({"dp": 4, "zero": 3, "ep": 2, "hybrid": 2}, "ep = 2 with hybrid = 2: shard groups"),
    ({"dp": 4, "ep": 2, "offload": "optimizer"}, "ep = 2 with offload = 'optimizer'"),
    ({"dp": 4, "expert_load": 1.5}, "expert_load = 1.5 has no effect with ep = 1"),
    ({"dp": 4, "ep": 2, "expert_load": 0.5}, "expert_load = 0.5: give a number from 1 to 1000"),
    ({"dp": 4, "ep": 2, "expert_load": "x"}, "expert_load = 'x': give a number"),
    ({"dp": 4, "ep": 2, "expert_load": float("nan")}, "expert_load = nan: give a number"),
])  # fmt: skip
def test_a_plan_that_cannot_be_is_refused(fields, says):
    with pytest.raises(InputError, match=says):
        sl.Plan(**fields)


def test_a_plan_that_does_not_suit_the_model_is_refused():
    with pytest.raises(InputError, match="ep = 2: llama-2-7b has no experts; give ep = 1"):
        sl.Plan(dp=2, ep=2).check(sl.load_model("llama-2-7b"))
    with pytest.raises(
        InputError, match="ep = 3 does not divide m's experts = 8; nearest that do: 1, 2, 4"
    ):
        sl.Plan(dp=3, ep=3).check(MODEL)
