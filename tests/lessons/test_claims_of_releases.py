"""What the answers say of releases and systems of 2026: what torch has holds of the one that is installed,
and figures are those that the simulator predicts, in both languages."""

import json
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from random import Random

import numpy as np
import pytest

import simlab as sl
from simlab.lessons import book
from simlab.lessons.words import LANGUAGES, word
from simlab.operations.checkpoints import Checkpoints
from simlab.operations.fleet import Fleet
from simlab.operations.goodput import mean_goodput
from simlab.operations.long_run import LongRun

EIGHT_B, SEVENTY_B = sl.load_model("llama-3-8b"), sl.load_model("llama-3-70b")
H100S, B200S = sl.load_cluster("dgx-h100"), sl.load_cluster("dgx-b200")
OPERATIONS = Path(sl.__file__).parent / "operations" / "data"


def told(key, *figures):
    """Whether both languages say each of the figures in the text of `key`."""
    texts = [word(f"{key}.answer", tongue=tongue) for tongue in LANGUAGES]
    missing = [figure for figure in figures if not all(figure in text for text in texts)]
    assert not missing, (key, missing)


def held(cluster=B200S, **fields):
    """{kind: bytes} that one GPU would hold of the model of 8B parameters."""
    one = replace(cluster, gpus_per_node=1, nics_per_node=1, nodes=1)
    return sl.predict(EIGHT_B, sl.Plan(**fields), one).memory_bytes


@pytest.fixture
def torch():
    found = pytest.importorskip("torch")
    if tuple(map(int, found.__version__.split(".")[:2])) < (2, 13):
        pytest.skip("the answers name torch 2.13")
    return found


def test_the_installed_torch_has_what_the_answers_say_of_it(torch):
    from torch.distributed.fsdp import FSDPModule, fully_shard

    assert "zero-CTA policy" in FSDPModule.set_symm_mem_for_comm.__doc__
    for name in ("set_requires_gradient_sync", "set_reshard_after_backward"):
        assert hasattr(FSDPModule, name)
    for fact in ("If an ``int``", "N reduce-scatters", "sharded on dim-0"):
        assert fact in fully_shard.__doc__.replace("\n    ", " ")
    for file, fact in {
        "utils/collect_env.py": "PYTORCH_ALLOC_CONF",
        "_inductor/config.py": "_micro_pipeline_tp",
        "distributed/checkpoint/state_dict_saver.py": "def async_save",
        "distributed/tensor/experimental/_context_parallel/_load_balancer.py": "_PerDocument",
    }.items():
        text = (Path(torch.__file__).parent / file).read_text(encoding="utf-8")
        assert fact in text, file


@pytest.mark.parametrize("times", [0.01, 100.0])
def test_muons_step_is_as_long_whatever_the_gradients_length(torch, times):
    weights = [torch.nn.Parameter(torch.ones(8, 6)) for _ in range(2)]
    gradient = torch.randn(8, 6, generator=torch.Generator().manual_seed(1))
    for weight, factor in zip(weights, (1.0, times)):
        weight.grad = factor * gradient
        torch.optim.Muon([weight], lr=0.1, weight_decay=0.0).step()
    lengths = [(weight - 1).norm().item() for weight in weights]
    assert lengths[0] > 0.1 and lengths[1] == pytest.approx(lengths[0], rel=0.1)


@pytest.mark.parametrize("tokens", [7, 32])
def test_a_loss_in_chunks_is_the_loss(torch, tokens):
    draw = torch.Generator().manual_seed(1)
    losses, gradients = [], []
    targets = torch.randint(64, (tokens,), generator=draw)
    head, inputs = (torch.randn(rows, 4, generator=draw) for rows in (64, tokens))
    for options in (None, torch.nn.LinearCrossEntropyOptions()):
        leaf = inputs.clone().requires_grad_()
        loss = torch.nn.functional.linear_cross_entropy(leaf, head, targets, options=options)
        loss.backward()
        losses.append(loss.item())
        gradients.append(leaf.grad)
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert torch.allclose(*gradients, atol=1e-6)


@pytest.mark.parametrize("name", ["gpt2-xl", "llama-7b", "llama-2-13b"])
@pytest.mark.parametrize("gpu_s_per_token", [1e-5, 1e-4])
def test_a_faster_link_and_a_faster_update_lower_the_break_even_of_offload(name, gpu_s_per_token):
    tokens = book.exercise("w07").oracle
    case = {"parameters": sl.load_model(name).parameters, "gpu_s_per_token": gpu_s_per_token}
    pcie = tokens(pcie_bytes_per_s=63e9, host_adam_s=2.8e-10, **case)
    assert tokens(pcie_bytes_per_s=450e9, host_adam_s=2.8e-10, **case) < pcie
    assert tokens(pcie_bytes_per_s=450e9, host_adam_s=1e-10, **case) < 0.5 * pcie


def test_8_and_4_bits_make_steps_shorter_and_weights_larger():
    plans = {kind: {"precision": kind, "seq": 8192} for kind in ("bf16", "fp8-mx", "fp4")}
    steps = {
        kind: sl.predict(EIGHT_B, sl.Plan(dp=8, zero=1, **fields), B200S).step_s
        for kind, fields in plans.items()
    }
    parts = {kind: held(**fields) for kind, fields in plans.items()}
    for kind, bits in (("fp8-mx", 8 + 8 / 32), ("fp4", 4 + 8 / 16)):
        told("w08.follow_ups.2", f"{1 - steps[kind] / steps['bf16']:.0%}", f"{bits:g}")
        fewer = 1 - parts[kind]["activations"] / parts["bf16"]["activations"]
        weights = parts[kind]["parameters"] / EIGHT_B.parameters
        told("w02.follow_ups.1", f"{weights:.1f}", f"{fewer:.0%}"[:2])


def test_muon_keeps_less_and_adds_as_much_to_a_step_of_one_microbatch_as_of_sixteen():
    told("w02.follow_ups.2", f"{held(optimizer='muon')['optimizer'] / EIGHT_B.parameters:.1f}")
    for microbatches in (1, 16):
        plans = [
            sl.Plan(dp=8, zero=1, optimizer=its, microbatches=microbatches)
            for its in ("adam", "muon")
        ]
        adam, muon = (sl.predict(EIGHT_B, plan, H100S).step_s for plan in plans)
        told("t4.follow_ups.3", f"{muon - adam:.2f}")


def test_copies_in_memory_bring_goodput_over_checkpoints_in_the_background():
    background = {"stall_s": 2.0, "write_s": 300.0, "load_s": 60.0}
    copies = {"memory_interval_s": 60.0, "memory_stall_s": 0.5, "memory_load_s": 5.0}
    kinds = [
        [(each, {"stall_s": 60.0, "load_s": 60.0}) for each in (600.0, 1200.0, 2400.0)],
        [(each, background) for each in (300.0, 600.0, 1200.0)],
        [(1200.0, background | copies | {"memory_survives": 0.9})],
    ]
    for kind in kinds:
        found = []
        for each, costs in kind:
            plan = Checkpoints(interval_s=each, **costs)
            fleet = Fleet(nodes=2048, spares=64)
            run = LongRun(work_s=5 * 86400.0, fleet=fleet, checkpoints=plan)
            found.append(mean_goodput(run, seeds=4)[0])
        told("d09.follow_ups.1", f"{max(found):.2f}")


def test_silent_corruption_is_as_frequent_as_the_answer_says():
    table = json.loads((OPERATIONS / "failures.json").read_text(encoding="utf-8"))["llama-3"]
    cases = table["causes"]["silent data corruption"][0]
    hours = table["days"] * 24 * table["gpus"] / cases
    assert f"{cases} cases" in word("d20.follow_ups.2.answer", tongue="en")
    assert hours == pytest.approx(3.5e6, rel=0.02) and 4.5 < hours / 1024 / 24 / 30 < 5.5


@pytest.mark.parametrize("times, pays", [(1.0, True), (2.4, True), (2.6, False), (10.0, False)])
def test_one_round_beats_a_ring_up_to_two_and_a_half_times_latency_times_bandwidth(times, pays):
    n, latency_s, bytes_per_s = 8, 3e-6, 400e9
    size = times * latency_s * bytes_per_s
    ring_s = 2 * (n - 1) * (latency_s + size / n / bytes_per_s)
    assert (latency_s + (n - 1) * size / bytes_per_s < ring_s) == pays


def test_pieces_beside_their_product_hide_what_the_answer_says():
    base = {"tp": 8, "sequence_parallel": True, "microbatches": 8, "seq": 8192}
    plans = [sl.Plan(tp_overlap=kind, **base) for kind in ("weight-grad", "pipelined")]
    whole, cut = (sl.predict(EIGHT_B, plan, H100S) for plan in plans)
    exposed = [f"{step.exposed_s['tp']:.2f}" for step in (whole, cut)]
    told("w10.follow_ups.3", f"{1 - cut.step_s / whole.step_s:.0%}", *exposed)


def test_short_sequences_are_slower_over_many_context_parallel_ranks():
    def step(seq, cp):
        plan = sl.Plan(cp=cp, dp=8 // cp, microbatches=cp, seq=seq, zero=1, recompute="full")
        return sl.predict(EIGHT_B, plan, H100S)

    for seq in (4096, 16_384):
        told("b10.follow_ups.2", f"{step(seq, 8).step_s / step(seq, 1).step_s:.1f}")
    assert step(32_768, 8).fits and not step(32_768, 1).fits and step(131_072, 8).fits


def test_with_few_layers_that_attend_a_token_costs_little_more_in_a_long_sequence():
    for name, attend in (("nemotron-3-nano-30b-a3b", 6), ("qwen3-30b-a3b", 48)):
        model = sl.load_model(name)
        kinds = map(model.of_kind, model.layer_kinds)
        assert sum(its.mixer == "attention" for its in kinds) == attend
        grows = model.flops_per_token(131_072) / model.flops_per_token(8192)
        told("b10.follow_ups.3", f"{grows:.1f}", str(attend), str(model.layers))


def zigzag(start, length, ranks):
    """[the positions of each rank] of a part of a sequence."""
    size = length // (2 * ranks)
    chunks = [range(start + at * size, start + (at + 1) * size) for at in range(2 * ranks)]
    return [[*chunks[rank], *chunks[-1 - rank]] for rank in range(ranks)]


def test_zigzag_over_packed_documents_is_even_only_within_each(ranks=8, total=16_384):
    ratios = []
    for seed in range(40):
        draw, lengths = Random(seed), []
        while (left := total - sum(lengths)) > 0:
            lengths.append(min(left, 16 * max(1, int(16 * draw.paretovariate(0.9)))))
        work = np.concatenate([np.arange(1, length + 1) for length in lengths])
        starts = [0, *accumulate(lengths)]
        parts = [zigzag(start, length, ranks) for start, length in zip(starts, lengths)]
        whole = [work[part].sum() for part in zigzag(0, total, ranks)]
        each = [sum(work[part[rank]].sum() for part in parts) for rank in range(ranks)]
        assert len({*each}) == 1 and sum(each) == sum(whole)
        ratios.append(max(whole) / np.mean(whole))
    told("b11.follow_ups.3", f"{np.median(ratios):.1f}", f"{max(ratios):.1f}")
    equal = 16 * sum(range(1, total // 16 + 1))
    assert equal / sum(range(1, total + 1)) == pytest.approx(1 / 16, rel=0.02)


@pytest.mark.parametrize("lengths", [(5, 3), (1, 6, 9)])
def test_positions_may_count_through_packed_documents_but_not_begin_anew_within_one(lengths):
    draw, width = np.random.default_rng(1), 8
    queries, keys = draw.normal(size=(2, sum(lengths), width))
    documents = np.repeat(range(len(lengths)), lengths)

    def attention(positions):
        angles = np.outer(positions, 10_000 ** (-np.arange(0, width, 2) / width))
        turned = [(x[:, ::2] + 1j * x[:, 1::2]) * np.exp(1j * angles) for x in (queries, keys)]
        scores = (turned[0] @ turned[1].conj().T).real
        seen = (documents[:, None] == documents) & np.tri(len(scores), dtype=bool)
        weights = np.where(seen, np.exp(scores), 0)
        return weights / weights.sum(axis=1, keepdims=True)

    through = np.arange(sum(lengths))
    anew = np.concatenate([np.arange(length) for length in lengths])
    np.testing.assert_allclose(attention(through), attention(anew), atol=1e-9)
    torn = np.where(through < sum(lengths) - 2, through, through - (sum(lengths) - 2))
    assert not np.allclose(attention(through), attention(torn), atol=1e-3)


def test_logits_take_what_the_answer_says_and_a_compiled_loss_leaves_the_wide_ones_out():
    peaks = []
    for compiled in (False, True):
        plan = sl.Plan(
            dp=8, zero=3, seq=8192, library="torch", compiled_loss=compiled, recompute="full"
        )
        peaks.append(sum(sl.predict(EIGHT_B, plan, H100S).memory_bytes.values()))
    logits = 8192 * EIGHT_B.vocab
    figures = (2 * logits, 4 * logits, peaks[0] - peaks[1])
    told("d11.follow_ups.2", *(f"{size / 1e9:.1f}" for size in figures))


def test_a_share_of_a_node_costs_memory_and_keeps_the_second_gather_in_it():
    size = 2 * sum(EIGHT_B.layer_parameters.values())
    shapes = (sl.GroupShape(512, 8), sl.GroupShape(8, 8))
    cluster = replace(H100S, nodes=64)
    times = [1e3 * sl.collective_s("all_gather", size, shape, cluster) for shape in shapes]
    share = 2 * EIGHT_B.parameters / 8 / 1e9
    told("w06.follow_ups.1", f"{share:.0f} GB", *(f"{each:.1f}" for each in times))
    told("b02.follow_ups.3", f"{8 * share:.0f} GB")


def test_large_nvlink_domains_expose_no_gradients_and_ask_for_no_wider_tensor_parallelism():
    exposed = []
    for cluster in (B200S, sl.load_cluster("gb200-nvl72")):
        nodes = 144 // cluster.gpus_per_node
        steps = {}
        for tp in (4, 8, 16):
            plan = sl.Plan(
                tp=tp, dp=144 // tp, zero=1, sequence_parallel=True, microbatches=tp // 2, seq=8192
            )
            steps[tp] = sl.predict(SEVENTY_B, plan, replace(cluster, nodes=nodes))
        assert steps[4].step_s < steps[8].step_s < steps[16].step_s and steps[4].fits
        exposed.append(steps[4].exposed_s["dp"])
    gradients_s = 4 * EIGHT_B.parameters / (10e9 / 8)  # a ring of two sends each once
    figures = (exposed[0], gradients_s / 500)
    told("d21.follow_ups.3", *(f"{each:.2f}" for each in figures), f"{gradients_s:.0f}")
    assert exposed[1] < 0.01 and 2 * EIGHT_B.parameters / 50e9 < 1
