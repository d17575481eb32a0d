"""What lesson 13 tells people to say holds over a sweep of what it depends on."""

from dataclasses import replace
from functools import cache
from random import Random

import pytest

import simlab as sl
from simlab.cost.roofline import CHANNELS, kernel_s
from simlab.layer.microbatch import visited
from simlab.lowering.kernels import GroupedMatmul
from simlab.lowering.traffic import traffic

MIXTRAL, DEEPSEEK = sl.load_model("mixtral-8x7b"), sl.load_model("deepseek-v3")
NODE = sl.load_cluster("dgx-h100")
H800S = sl.load_cluster("h800", nodes=256)
OWN = sl.Plan(
    dp=128, pp=16, ep=64, zero=1, microbatches=120, schedule="dualpipe", ep_overlap=True,
    dispatcher="once-a-node", recompute="outputs", precision="fp8", moment_bytes=2, fp8_param_gather=True,
    stage_layers="uneven",
)  # fmt: skip
NVIDIAS = replace(
    OWN, tp=2, pp=8, etp=1, sequence_parallel=True, schedule="interleaved-1f1b", chunks=4, gradient_bytes=2,
    fp8_param_gather=False, tp_overlap="pipelined", stage_layers=(1, *(2,) * 30, 0),
)  # fmt: skip


@cache
def predicted(plan):
    """Of DeepSeek-V3 on 2,048 H800s."""
    return sl.predict(DEEPSEEK, plan, H800S)


# e01: what is sparse
# ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v2", "deepseek-v3"])
def test_compute_follows_the_experts_taken_and_memory_follows_all(name):
    model = sl.load_model(name)
    more = replace(model, experts=2 * model.experts)
    assert more.active_parameters == pytest.approx(model.active_parameters, rel=0.01)
    assert more.parameters > 1.8 * model.parameters
    fewer = replace(model, experts_per_token=model.experts_per_token // 2)
    assert fewer.parameters == model.parameters
    assert fewer.active_parameters < model.active_parameters


def test_deepseek_v3_computes_half_of_llama_3_70b_with_nearly_ten_times_its_parameters():
    dense = sl.load_model("llama-3-70b")
    assert 0.45 < DEEPSEEK.active_parameters / dense.active_parameters < 0.55
    assert 9 < DEEPSEEK.parameters / dense.parameters < 10
    assert round(DEEPSEEK.parameters / 1e9) == 671 and 37 <= DEEPSEEK.active_parameters / 1e9 < 38


@pytest.mark.parametrize("experts", [8, 16, 64])
@pytest.mark.parametrize("chosen", [1, 2, 4])
def test_a_mixture_is_slower_than_its_dense_twin_and_has_two_all_to_alls_each_way(experts, chosen):
    sparse = replace(
        MIXTRAL, layers=4, experts=experts, experts_per_token=chosen, expert_ffn=2048, ffn=2048
    )
    twin = replace(sparse, experts=0, experts_per_token=0, expert_ffn=0, ffn=2048 * chosen)
    plan = sl.Plan(dp=8, zero=1)
    assert twin.active_parameters == pytest.approx(sparse.active_parameters, rel=0.01)
    shared = replace(plan, ep=8)
    assert sl.predict(sparse, shared, NODE).step_s > sl.predict(twin, plan, NODE).step_s
    layer = sl.layer_table(sparse, shared).rows
    assert [its.name for row in layer for its in row.sent] == ["dispatch", "combine"]
    assert sum(len(row.sent_back) for row in layer) == 2


# e02: the router
# ---------------------------------------------------------------------------------------------


def chosen(scores, bias, k):
    return sorted(range(len(scores)), key=lambda e: -(scores[e] + bias[e]))[:k]


def busiest_over_mean(speed, *, seed, experts=32, k=4, tokens=128, liking=0.1, steps=90):
    """Of the last 30 steps, with an independent form of the lesson's rule."""
    draw, bias, found = Random(seed), [0.0] * experts, []
    liked = [draw.gauss(0, liking) for _ in range(experts)]
    for _ in range(steps):
        load = [0] * experts
        for _ in range(tokens):
            for expert in chosen([draw.random() + its for its in liked], bias, k):
                load[expert] += 1
        mean = sum(load) / experts
        bias = [b + speed * ((its < mean) - (its > mean)) for b, its in zip(bias, load)]
        found.append(max(load) / mean)
    return sum(found[-30:]) / 30


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_bias_brings_the_load_to_little_more_than_chance_and_a_fast_one_lets_it_swing(seed):
    plain, slow, fast = (busiest_over_mean(speed, seed=seed) for speed in (0.0, 0.005, 0.1))
    chance = busiest_over_mean(0.0, seed=seed, liking=0.0)
    assert chance < slow < 1.25 * chance < plain
    assert plain > 1.5 * slow and slow < fast


@pytest.mark.parametrize("taken", [1, 2, 4])
def test_groups_bound_the_nodes_that_a_token_visits(taken):
    model = replace(DEEPSEEK, groups_per_token=taken)
    assert visited(model, 8) <= taken
    assert visited(model, 8) < visited(replace(model, expert_groups=0, groups_per_token=0), 8)


# e03: expert and tensor parallelism
# ---------------------------------------------------------------------------------------------


def in_one_layer(model, plan):
    """Bytes that all ranks send for one token in a layer, {dimension: bytes}."""
    sent = [traffic(replace(model, layers=count), plan)[0] for count in (1, 2)]
    tokens = plan.dp * plan.microbatches * model.seq
    return {
        name: plan.gpus * (getattr(sent[1], name) - getattr(sent[0], name)) / tokens
        for name in ("tp", "ep")
    }


@pytest.mark.parametrize("n", [2, 4, 8])
@pytest.mark.parametrize("k", [1, 2, 4, 8])
def test_expert_parallelism_sends_4k_over_5n_of_tensor_parallelism_and_both_divide_weights(n, k):
    model = replace(MIXTRAL, layers=2, experts=16, experts_per_token=k)
    tensor, expert = sl.Plan(tp=n, sequence_parallel=True), sl.Plan(dp=n, ep=n)
    # of what tensor parallelism sends, attention has the other half
    ratio = in_one_layer(model, expert)["ep"] / (in_one_layer(model, tensor)["tp"] / 2)
    assert ratio == pytest.approx(4 * k / (5 * n), rel=0.01)
    held = [
        next(row.parameters for row in sl.layer_table(model, plan).rows if row.operation == "up")
        for plan in (tensor, expert)
    ]
    assert held[0] == held[1] == 16 * 2 * 4096 * 14336 / n


@pytest.mark.parametrize("n", [4, 8])
def test_the_same_sequences_take_less_time_with_whole_experts(n):
    model = replace(MIXTRAL, layers=4)
    tensor = sl.Plan(tp=n, dp=8 // n, sequence_parallel=True, microbatches=n)
    expert = sl.Plan(dp=8, ep=n)
    assert sl.predict(model, expert, NODE).step_s < 0.85 * sl.predict(model, tensor, NODE).step_s


def test_weights_are_worth_moving_from_3000_tokens_of_a_rank_on():
    """A token's way to an expert of DeepSeek-V3 and back, against the expert's numbers."""
    expert = DEEPSEEK.layer_parameters["mlp"] / DEEPSEEK.experts
    assert round(expert / 1e6) == 44
    assert expert / (2 * DEEPSEEK.hidden) == pytest.approx(3000, rel=0.03)


# e04: dispatch and combine
# ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("experts", [8, 64])
@pytest.mark.parametrize("k", [1, 2, 8])
@pytest.mark.parametrize("n", [2, 8])
def test_four_all_to_alls_send_k_copies_of_a_token_however_many_experts_there_are(n, k, experts):
    model = replace(MIXTRAL, layers=2, experts=experts, experts_per_token=k)
    of_all = in_one_layer(model, sl.Plan(dp=n, ep=n))["ep"]
    assert of_all == pytest.approx(4 * k * 4096 * 2 * (n - 1) / n)


@pytest.mark.parametrize("layers", [6, 8])
def test_waiting_falls_as_the_copies_that_cross_do(layers):
    model, nodes = replace(DEEPSEEK, layers=layers), sl.load_cluster("h800", nodes=8)
    plan = sl.Plan(dp=64, ep=64, zero=1, recompute="outputs")
    waits = [
        sl.predict(model, replace(plan, dispatcher=how), nodes).waterfall_s.ep
        for how in ("all-to-all", "once-a-node")
    ]
    assert waits[0] / waits[1] == pytest.approx(2.2, rel=0.05)


# e05: imbalance and capacity
# ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layers", [4, 8])
@pytest.mark.parametrize("microbatches", [1, 4])
def test_the_step_follows_the_largest_load_and_so_does_its_memory(layers, microbatches):
    model, steps = replace(MIXTRAL, layers=layers), []
    for load in (1.0, 1.5, 2.0, 3.0):
        plan = sl.Plan(dp=8, ep=8, microbatches=microbatches, expert_load=load)
        steps.append(sl.predict(model, plan, NODE))
    times = [its.step_s / steps[0].step_s for its in steps]
    assert times == sorted(times) and 1.4 < times[2] < 1.8
    # in proportion to the load, beside what is no expert's
    assert times[3] - times[2] == pytest.approx(times[2] - times[0], rel=0.05)
    held = [sum(its.memory_bytes.values()) for its in steps]
    assert held == sorted(held) and held[0] < held[-1]


@pytest.mark.parametrize("tokens", [64, 256, 1024])
@pytest.mark.parametrize("factor", [1.0, 1.25, 2.0])
def test_what_is_dropped_gets_no_output_and_no_gradient(tokens, factor):
    torch = pytest.importorskip("torch")
    from realrun.model.experts import Experts, routes
    from realrun.model.sizes import model_of

    torch.manual_seed(0)
    sizes = {"layers": 1, "hidden": 32, "heads": 1, "seq": tokens, "experts": 8}
    capacity = int(factor * tokens / 8)
    layer = Experts(model_of(sizes | {"experts_per_token": 1}), capacity).double()
    x = torch.randn(tokens, 32, dtype=torch.float64, requires_grad=True)
    wanted = layer.router(x).argmax(-1)
    taken = routes(layer.router(x), 1, capacity).slot[:, 0] < 8 * capacity
    out = layer(x)
    out.square().sum().backward()
    assert (out[~taken] == 0).all() and (x.grad[~taken] == 0).all()
    assert (x.grad[taken].abs().sum(-1) > 0).all()
    loads = torch.bincount(wanted, minlength=8)
    assert (~taken).sum() == (loads - capacity).clamp(min=0).sum()
    share = (~taken).double().mean()
    assert 0.05 < share < 0.15 if factor == 1 else share < 0.02


def test_with_one_expert_of_a_token_softmax_after_the_choice_leaves_the_router_no_gradient():
    torch = pytest.importorskip("torch")
    from realrun.model.experts import Experts
    from realrun.model.sizes import model_of

    for chosen_experts, learns in ((1, False), (2, True)):
        sizes = {"layers": 1, "hidden": 16, "heads": 1, "seq": 32, "experts": 4}
        layer = Experts(model_of(sizes | {"experts_per_token": chosen_experts}), 32).double()
        layer(torch.randn(32, 16, dtype=torch.float64)).square().sum().backward()
        gradient = layer.router.weight.grad
        assert bool(gradient is not None and gradient.abs().max() > 1e-12) is learns


# e06: rows
# ---------------------------------------------------------------------------------------------


def of_peak(gpu, rows, experts, width, hidden, *, grouped=True):
    product = GroupedMatmul(
        "up", rows * experts, 2 * width, hidden, role="forward", tokens=(rows,) * experts
    )
    one_by_one_s = sum(kernel_s(each, gpu) for each in product.products)
    return (
        product.flops / (kernel_s(product, gpu) if grouped else one_by_one_s)
        / gpu.peak_flops["bf16"]
    )  # fmt: skip


@pytest.mark.parametrize("cluster", ["dgx-a100", "dgx-h100"])
@pytest.mark.parametrize(("width", "hidden"), [(768, 2048), (2048, 7168), (14_336, 4096)])
def test_below_peak_over_bandwidth_the_share_grows_with_the_rows_and_then_no_more(
    cluster, width, hidden
):
    gpu = sl.load_cluster(cluster).gpu
    ridge = gpu.peak_flops["bf16"] / gpu.memory_bandwidth_bytes_per_s
    shares = {rows: of_peak(gpu, rows, 8, width, hidden) for rows in (16, 32, 4096, 8192)}
    assert 32 < ridge < 4096
    assert shares[32] > 1.8 * shares[16]
    assert shares[8192] < 1.05 * shares[4096]


@pytest.mark.parametrize(("precision", "weight_bytes"), [("bf16", 2), ("fp8", 1)])
def test_the_limit_of_an_h100_is_about_300_rows_in_16_bits_and_in_8(precision, weight_bytes):
    gpu = NODE.gpu
    rows = gpu.peak_flops[precision] / 2 * weight_bytes / gpu.memory_bandwidth_bytes_per_s
    assert rows == pytest.approx(300, rel=0.03)


@pytest.mark.parametrize(("rows", "experts", "share"), [(128, 256, 0.33), (8192, 4, 0.70)])
def test_sharing_experts_over_64_ranks_takes_their_products_from_a_third_to_70_percent(
    rows, experts, share
):
    assert rows * experts == 8 * 4096  # copies of a rank's tokens, which stay as many
    assert of_peak(NODE.gpu, rows, experts, 2048, 7168) == pytest.approx(share, abs=0.015)


@pytest.mark.parametrize("rows", [64, 128, 256, 512])
@pytest.mark.parametrize("experts", [8, 16])
def test_a_grouped_product_is_faster_where_one_expert_has_too_few_tiles(rows, experts):
    grouped, apart = (
        of_peak(NODE.gpu, rows, experts, 768, 2048, grouped=how) for how in (True, False)
    )
    assert grouped > 1.5 * apart
    # where a single product fills the chip, there is little to gain
    wide = [of_peak(NODE.gpu, 4096, experts, 2048, 7168, grouped=how) for how in (True, False)]
    assert wide[0] < 1.05 * wide[1]


# e07: hiding
# ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved-1f1b"])
@pytest.mark.parametrize("microbatches", [4, 8, 16])
def test_pairs_hide_all_to_alls_and_slow_the_compute_beside_them(schedule, microbatches):
    model = replace(MIXTRAL, layers=8)
    plan = sl.Plan(
        dp=8, ep=8, pp=2 if schedule != "1f1b" else 1, microbatches=microbatches, zero=1,
        schedule=schedule, order="pp-dp-cp-tp",
    )  # fmt: skip
    nodes = sl.load_cluster("dgx-h100", nodes=plan.gpus // 8)
    apart, pairs = (
        sl.predict(model, replace(plan, ep_overlap=on), nodes).waterfall_s for on in (False, True)
    )
    assert pairs.ep < apart.ep and pairs.compute >= apart.compute


def test_deepseeks_step_is_24_5_s_without_pairs_and_18_1_with_and_few_microbatches_hide_less():
    ratios = {}
    for microbatches in (120, 64, 32):
        plans = [replace(OWN, microbatches=microbatches, ep_overlap=on) for on in (True, False)]
        ratios[microbatches] = predicted(plans[0]).step_s / predicted(plans[1]).step_s
    assert predicted(replace(OWN, ep_overlap=False)).step_s == pytest.approx(24.5, abs=0.3)
    assert predicted(OWN).step_s == pytest.approx(18.1, abs=0.2)
    assert predicted(OWN).waterfall_s.ep == pytest.approx(3.3, abs=0.1) and CHANNELS == 24
    assert ratios[120] < ratios[64] < ratios[32] < 1
    # and most of what DualPipe with pairs saves against 1F1B are all-to-alls
    plain = predicted(replace(OWN, ep_overlap=False, schedule="1f1b")).waterfall_s
    ours = predicted(OWN).waterfall_s
    assert plain.ep - ours.ep > 2 * (plain.bubble - ours.bubble)


# e08: layout and plans
# ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("etp_is_tp", [True, False])
@pytest.mark.parametrize("ep", [8, 16, 64])
@pytest.mark.parametrize("tp", [2, 4, 8])
@pytest.mark.parametrize("cp", [1, 2])
def test_the_two_layouts_are_of_the_same_ranks(tp, cp, ep, etp_is_tp):
    etp = tp if etp_is_tp else 1
    dp = max(1, ep * etp // (tp * cp))
    plan = sl.Plan(tp=tp, cp=cp, dp=dp, ep=ep, etp=etp, sequence_parallel=True)
    assert plan.gpus == max(tp * cp, ep * etp) == etp * ep * plan.expert_holders
    for groups in ("ep", "edp"):
        ranks = [rank for group in plan.layout.groups(groups) for rank in group]
        assert sorted(ranks) == [*range(plan.gpus)]
    if dp > 1:
        with pytest.raises(sl.InputError):
            replace(plan, dp=dp // 2)


def test_the_two_plans_are_a_tie_with_very_different_memory():
    steps = [predicted(plan) for plan in (OWN, NVIDIAS)]
    assert [its.step_s for its in steps] == [pytest.approx(18, abs=0.5)] * 2
    times = steps[1].step_s / steps[0].step_s
    assert (
        times == pytest.approx(0.98, abs=0.01) and abs(times - 1) < steps[0].uncertainty.error / 4
    )
    more = {
        name: steps[0].memory_bytes[name] - steps[1].memory_bytes[name]
        for name in steps[0].memory_bytes
    }
    assert (
        more["activations"] > 0.8 * sum(more.values())
        and steps[1].fit.fits
        and not steps[0].fit.fits
    )
    held = [sum(its.memory_bytes.values()) / 2**30 for its in steps]
    assert held == [pytest.approx(80, abs=1), pytest.approx(47, abs=1)]
    needed = [its.fit.needed_bytes / 2**30 for its in steps]
    assert needed == [pytest.approx(93, abs=1), pytest.approx(56, abs=1)]
    assert steps[0].waterfall_s.tp == 0 < steps[1].waterfall_s.tp


@pytest.mark.parametrize("tp", [2, 4])
def test_experts_that_are_cut_too_send_each_token_as_often_as_they_are_cut(tp):
    model = replace(MIXTRAL, layers=2)
    plan = sl.Plan(tp=tp, dp=8, ep=8, etp=1, sequence_parallel=True)
    sent = [traffic(model, replace(plan, etp=etp))[0].ep for etp in (1, tp)]
    assert sent[1] == pytest.approx(tp * sent[0])
