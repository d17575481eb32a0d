"""What lessons 7 and 8 tell people to say holds over a sweep of what it depends on."""

from dataclasses import replace

import pytest

import simlab as sl
from simlab.lessons import book
from simlab.lowering.traffic import traffic

GPT = replace(sl.load_model("megatron-7.5b"), layers=4)
NODES = replace(sl.load_cluster("dgx-a100", nodes=4), gpus_per_node=1)


@pytest.mark.parametrize("gbit", [10, 25, 50])
def test_more_sequences_on_a_gpu_hide_more_of_the_reduction(gbit):
    inter = replace(NODES.inter, bandwidth_bytes_per_s=gbit * 1e9 / 8)
    shares = []
    for size in (1, 2, 4, 8):
        late, early = (
            sl.predict(
                GPT,
                sl.Plan(dp=4, dp_overlap=overlap, microbatch_size=size),
                replace(NODES, inter=inter),
            ).exposed_s["dp"]
            for overlap in (False, True)
        )
        shares.append(1 - early / late)
    assert shares == sorted(shares) and shares[-1] > shares[0]


@pytest.mark.parametrize("m", [1, 2, 4, 8])
@pytest.mark.parametrize("n", [2, 4])
def test_a_step_sends_2_and_2_and_m_plus_1_and_3_m_times_the_parameters(m, n):
    sent = [
        traffic(GPT, sl.Plan(dp=n, zero=zero, microbatches=m, precision="fp32"))[0].dp
        for zero in range(4)
    ]
    whole = (n - 1) / n * 4 * GPT.parameters
    expected = [2 * whole, 2 * whole, (m + 1) * whole, 3 * m * whole]
    assert sent == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("tp", [2, 4])
def test_tp_inside_the_node_wins_from_a_few_microbatches_on_and_may_lose_with_one(tp):
    model = replace(sl.load_model("megatron-7.5b"), layers=2)
    nodes = replace(sl.load_cluster("dgx-h100", nodes=2), gpus_per_node=4)
    inside = sl.Plan(tp=tp, dp=8 // tp)
    across = replace(inside, order="dp-cp-pp-tp")
    ratio = []
    for m in (1, 4, 8, 16, 32):
        steps = [
            sl.predict(model, replace(plan, microbatches=m), nodes).step_s
            for plan in (inside, across)
        ]
        ratio.append(steps[0] / steps[1])
    assert ratio == sorted(ratio, reverse=True) and ratio[-1] < 1


@pytest.mark.parametrize("microbatches", [1, 4, 16])
def test_full_recomputation_makes_computing_a_third_longer(microbatches):
    cluster = replace(sl.load_cluster("dgx-a100"), gpus_per_node=1)
    plan = sl.Plan(microbatches=microbatches)
    none, full = (
        sl.predict(GPT, replace(plan, recompute=kind), cluster).waterfall_s.compute
        for kind in ("none", "full")
    )
    assert 1.15 < full / none < 1.35


@pytest.mark.parametrize("draw", range(6))
def test_the_scale_of_each_step_is_that_of_torchs_own_scaler(draw):
    torch = pytest.importorskip("torch")
    case = book.exercise("w08").cases()[draw]
    scaler = torch.amp.GradScaler("cpu", init_scale=case["first"], growth_interval=case["interval"])
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer, used = torch.optim.SGD([weight], lr=0.1), []
    for largest in case["largest"]:
        scaler.scale(torch.zeros(1))  # makes the scale, in the first step
        used.append(scaler.get_scale())
        gradient = torch.tensor([largest * used[-1]]).to(torch.float16)  # above 65504: infinite
        weight.grad = gradient.float()
        scaler.step(optimizer)
        scaler.update()
    assert used == book.exercise("w08").oracle(**case)


@pytest.mark.parametrize("m", [2, 4, 8])
def test_accumulation_saves_zero_2_its_gathers_only_and_zero_3_nothing(m):
    """Against m steps of one microbatch each."""

    def saved(zero):
        one, all_m = (
            traffic(GPT, sl.Plan(dp=4, zero=zero, microbatches=count, precision="fp32"))[0].dp
            for count in (1, m)
        )
        return 1 - all_m / (m * one)

    expected = [1 - 1 / m, 1 - 1 / m, (m - 1) / (2 * m), 0.0]
    assert [saved(zero) for zero in range(4)] == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize("dp", [2, 4, 8])
def test_data_parallelism_divides_no_activations_of_a_microbatch_and_tensor_parallelism_does(dp):
    cluster = sl.load_cluster("dgx-a100", nodes=1)

    def held(part, **degrees):
        size = degrees.pop("microbatch_size", 8)
        plan = sl.Plan(microbatch_size=size, **degrees)
        gpus = replace(cluster, gpus_per_node=degrees.get("dp", 1) * degrees.get("tp", 1))
        return sl.predict(GPT, plan, gpus).held[0][part]

    whole = {part: held(part) for part in ("activations", "parameters")}
    for part, bytes_held in whole.items():
        assert held(part, dp=dp) == pytest.approx(bytes_held)
        assert held(part, tp=dp) < 0.9 * bytes_held
    # with a batch that is shared out and not accumulated, microbatches shrink, and with them this
    fewer = held("activations", dp=dp, microbatch_size=8 // dp)
    assert fewer == pytest.approx(whole["activations"] / dp, rel=0.05)
