"""What lessons 7 and 8 tell people to say holds over a sweep of what it depends on."""

from dataclasses import replace

import pytest

import simlab as sl
from simlab.lessons import book

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
