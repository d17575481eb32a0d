"""ZeRO's three stages on four processes: against one process, against ZeroRedundancyOptimizer and
against FSDP2."""

import pytest
import torch
from realrun_processes import on_ranks
from realrun_training import (
    MICROBATCHES,
    RANKS,
    SIZES,
    STEPS,
    Seen,
    adam,
    backwards,
    counted,
    distance,
    everyone,
    gpt,
    mean_over_ranks,
    samples,
    train,
    train_alone,
)  # fmt: skip

from realrun.comm.group import Group
from realrun.parallel.clipping import clip
from realrun.parallel.precision import LossScaler
from realrun.parallel.recompute import recompute
from simlab import Model, model_states
from simlab.collectives import ring_all_gather, ring_reduce_scatter
from simlab.errors import InputError

LIMIT = 1e-9
UNEVEN = SIZES | {"hidden": 18}  # 18 rows on 4 ranks
PREFETCH = (0, 1, 2)


def parameters(hidden=16):
    """The number of the small GPT's, by simlab's count."""
    return Model(
        hidden=hidden, heads=2, layers=SIZES["layers"], seq=8, vocab=256, positions=8
    ).parameters


# on every rank
# ----------------------------------------------------------------------------------------------


def everything(rank):
    """{what: plain values} of this rank."""
    expected = train_alone()
    return {
        "ours": {name: trained(rank, name, expected) for name in STAGES},
        "gradients": {name: gradient_error_of_shards(rank, name) for name in STAGES},
        "torch": {"ZeroRedundancyOptimizer": torchs_zero1(rank, expected)},
        "fsdp2": {"even": beside_fsdp2(rank, SIZES), "uneven": beside_fsdp2(rank, UNEVEN, steps=5)},
        "bf16": beside_fsdp2(rank, SIZES, steps=8, mixed=True),
        "order": [order_of_gathers(rank, prefetch) for prefetch in PREFETCH],
        "recompute": recomputed(rank),
        "microbatches": interleaved(rank),
        "forward": forward_only(rank),
        "scaler": scaled(rank),
    }


STAGES = ("naive 1", "1", "2", "3")


def zero(rank, name, model, optimizer=adam, **options):
    """(sharded model, its group)"""
    from realrun.parallel.naive.zero import NaiveZero1, Zero1, Zero2, Zero3

    kind = {"naive 1": NaiveZero1, "1": Zero1, "2": Zero2, "3": Zero3}[name]
    sharded = kind(
        model, model.blocks, everyone(rank), optimizer, **{"master": torch.float64} | options
    )
    return sharded, sharded.group


def whole_weights(sharded):
    """[parameters], gathered."""
    for unit in sharded.units:
        if unit.frees:
            unit.gathered()
    return [p.detach().clone() for p in sharded.module.parameters()]


def trained(rank, name, expected):
    """20 steps of two microbatches against one process; bytes of the second step; bytes of states
    before the update."""
    expected_losses, alone = expected
    sharded, group = zero(rank, name, model := gpt())
    found, steps = {}, []

    def step():
        steps.append(1)
        if len(steps) == STEPS:
            found["with gradients"] = sharded.state_bytes()
        sharded.step()
        if len(steps) < STEPS:
            found["counted"] = counted(group)
            group.traffic.clear()

    with Seen() as sent:
        losses = train(model, step, rank, steps=1)
    found["sent"] = sent.bytes
    steps.clear()
    del sharded
    sharded, group = zero(rank, name, model := gpt())
    losses = mean_over_ranks(train(model, step, rank))
    found["at rest"] = sharded.state_bytes()
    found["losses"] = max(abs(a / b - 1) for a, b in zip(losses, expected_losses))
    found["weights"] = distance(whole_weights(sharded), alone.parameters())
    return found


def gradient_error_of_shards(rank, name):
    """The largest distance of a shard's gradient from its place in one process's gradients."""
    sharded, _ = zero(rank, name, model := gpt())
    backwards(model, samples(0, rank))
    sharded.reduce()
    backwards(alone := gpt(), samples(0))
    same = dict(zip(model.parameters(), alone.parameters()))
    expected = []
    for unit in sharded.units:
        flat = torch.cat(
            [same[p].grad.flatten() for p in unit.parameters]
            + [torch.zeros(unit.padding, dtype=torch.float64)]
        )
        expected.append(flat.split(unit.part_size)[rank])
    return distance([shard.grad for shard in sharded.shards], expected)


def torchs_zero1(rank, expected):
    """The same with DDP and torch's ZeroRedundancyOptimizer: distance of its weights from one
    process's."""
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.nn.parallel import DistributedDataParallel

    model = DistributedDataParallel(gpt())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=3e-3)

    def step():
        optimizer.step()
        optimizer.zero_grad()

    train(model, step, rank)
    return distance(model.parameters(), expected[1].parameters())


def beside_fsdp2(rank, sizes, *, steps=STEPS, mixed=False):
    """Our ZeRO-3 and FSDP2, clipping and all, in steps of a microbatch: norms, weights, and what is
    sent in the last step."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    dtype = torch.float32 if mixed else torch.float64
    torchs = gpt(dtype, sizes)
    policy = (
        MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        if mixed
        else MixedPrecisionPolicy()
    )
    for module in [*torchs.blocks, torchs]:
        fully_shard(module, mp_policy=policy)
    optimizer = adam(torchs.parameters())
    norms = {"ours": [], "torch": []}

    def torchs_step():
        norms["torch"].append(
            torch.nn.utils.clip_grad_norm_(torchs.parameters(), 0.5).full_tensor().item()
        )
        optimizer.step()
        optimizer.zero_grad()

    ours = gpt(torch.bfloat16 if mixed else dtype, sizes)
    sharded, group = zero(
        rank, "3", ours, **({"master": torch.float32, "reduce": torch.float32} if mixed else {})
    )
    if mixed:  # the masters begin with all of fp32's digits
        begin_with(sharded, gpt(dtype, sizes))

    def our_step():
        sharded.step(
            clip=lambda: norms["ours"].append(
                clip([([s.grad for s in sharded.shards], [group])], 0.5).item()
            )
        )

    found = {}
    for name, model, step in (("torch", torchs, torchs_step), ("ours", ours, our_step)):
        losses = train(model, step, rank, steps=steps - 1, microbatches=1)
        with Seen() as sent:
            losses += train(model, step, rank, steps=1, microbatches=1)
        found[name] = {
            "sent": [list(pair) for pair in sent.collectives if pair[0] != "all_reduce"],
            "losses": mean_over_ranks(losses),
        }
    theirs = [p.full_tensor().detach() for p in torchs.parameters()]
    if mixed:
        whole_shards = [gathered_master(unit) for unit in sharded.units]
        parts = [
            zip(unit.parameters, flat.split([*unit.sizes, unit.padding]))
            for unit, flat in zip(sharded.units, whole_shards)
        ]
        mine = {p: part for pairs in parts for p, part in pairs}
        weights = [mine[p].view(p.shape) for p in ours.parameters()]
    else:
        weights = whole_weights(sharded)
    norm_error = max(abs(a / b - 1) for a, b in zip(norms["ours"], norms["torch"]))
    return found | {
        "weights": distance(weights, theirs),
        "norms": norm_error,
        "clipped": sum(norm > 0.5 for norm in norms["torch"]),
    }


def gathered_master(unit):
    """All ranks' fp32 shards of a unit, in one."""
    return unit.group.all_gather(unit.shard.detach()).wait()


@torch.no_grad()
def begin_with(sharded, model):
    """Take this rank's part of `model`'s weights."""
    same = dict(zip(sharded.module.parameters(), model.parameters()))
    for unit in sharded.units:
        flat = torch.cat([*(same[p].flatten() for p in unit.parameters), torch.zeros(unit.padding)])
        unit.shard.copy_(unit.group.own(flat, 0))


def order_of_gathers(rank, prefetch):
    """What is gathered or on its way when each block's forward and backward begin; whether anything
    is left after the step."""
    sharded, group = zero(rank, "3", model := gpt(sizes=SIZES | {"layers": 4}), prefetch=prefetch)
    seen = {"forward": [], "backward": []}
    layers = sharded.units[1:]
    for block in model.blocks:
        block.register_forward_pre_hook(
            lambda *_: seen["forward"].append([bool(unit.whole_bytes) for unit in layers])
        )
        block.up.register_full_backward_pre_hook(
            lambda *_: seen["backward"].append([bool(unit.whole_bytes) for unit in layers])
        )
    value = backwards(model, samples(0, rank)[:1])
    after = [unit.whole_bytes for unit in sharded.units]
    sharded.step()
    return seen | {"after": after, "loss": value, "calls": counted(group)[0]}


def recomputed(rank):
    """Weights after three steps under ZeRO-3, with each kind of recomputation and torch's wrapper,
    against none; gathers of a step."""
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    found, plain = {}, None
    for mode in ("none", "selective", "full", "torch's wrapper"):
        model = gpt()
        if mode == "torch's wrapper":  # outside of our hooks: they run again in the backward
            sharded, group = zero(rank, "3", model)
            for number, block in enumerate(model.blocks):
                model.blocks[number] = checkpoint_wrapper(block)
        else:
            recompute(model.blocks, mode)
            sharded, group = zero(rank, "3", model)
        train(model, sharded.step, rank, steps=3)
        weights = whole_weights(sharded)
        plain = plain or weights
        found[mode] = distance(weights, plain), counted(group)[0]["all_gather"]
    return found


def interleaved(rank):
    """Two forwards, then two backwards, as pipelines have them: distance of the shards' gradients
    from those of one after the other."""
    from realrun.model.gpt import loss

    gradients = []
    for together in (False, True):
        sharded, _ = zero(rank, "3", model := gpt())
        if together:
            for value in [loss(model(tokens), targets) / 2 for tokens, targets in samples(0, rank)]:
                value.backward()
        else:
            backwards(model, samples(0, rank))
        sharded.reduce()
        gradients.append([shard.grad for shard in sharded.shards])
    return distance(*gradients)


def forward_only(rank):
    """A forward without gradients: what is left gathered after it, and its distance from the whole
    model's."""
    sharded, _ = zero(rank, "3", model := gpt())
    tokens = samples(0, rank)[0][0]
    with torch.no_grad():
        logits = model(tokens)
        return [
            sum(unit.whole_bytes for unit in sharded.units),
            distance([logits], [gpt()(tokens)]),
        ]


def scaled(rank):
    """A step that overflows on one rank only is skipped on all, and nothing of it is left:
    [stepped, weights moved, gradients left]"""
    found = []
    for stage in STAGES:
        sharded, group = zero(rank, stage, model := gpt())
        before = [shard.detach().clone() for shard in sharded.shards]
        scaler = LossScaler([group], scale=4.0)
        answers = []
        for broken in (True, False):
            backwards(model, samples(0, rank), scale=scaler.scale)
            sharded.reduce()
            if broken and rank == 2:
                sharded.shards[1].grad[0] = float("inf")
            reduce, sharded.reduce = sharded.reduce, lambda: None  # it is done
            answers.append(sharded.step(scaler=scaler))
            sharded.reduce = reduce
            answers.append(distance([s.detach() for s in sharded.shards], before) > 0)
        found.append([*answers, scaler.scale, sharded.state_bytes()["gradients"]])
    return found


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    return on_ranks(RANKS, everything, folder=tmp_path_factory.mktemp("zero"))


# against one process
# ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", STAGES)
def test_each_shards_gradient_is_its_place_in_one_processs_gradients(answers, stage):
    assert max(answer["gradients"][stage] for answer in answers) <= LIMIT


@pytest.mark.parametrize("stage", STAGES)
def test_twenty_steps_stay_together_with_one_process(answers, stage):
    for answer in answers:
        assert answer["ours"][stage]["losses"] <= LIMIT
        assert answer["ours"][stage]["weights"] <= LIMIT


def test_torchs_zero_redundancy_optimizer_does_too(answers):
    assert max(answer["torch"]["ZeroRedundancyOptimizer"] for answer in answers) <= LIMIT


# bytes
# ------------------------------------------------------------------------------------------------------

M, PSI = MICROBATCHES, 8 * parameters()
BUFFERS = {
    "naive 1": {"all_reduce": PSI, "all_gather": PSI},
    "1": {"reduce_scatter": PSI, "all_gather": PSI},
    "2": {"reduce_scatter": M * PSI, "all_gather": PSI},
    # the root is gathered once
    "3": {"reduce_scatter": M * PSI, "all_gather": M * (2 * PSI - 8 * 16 * (2 * 256 + 8 + 2))},
}


@pytest.mark.parametrize("stage", STAGES)
def test_bytes_of_each_kind_are_the_closed_form_and_what_torch_saw(answers, stage):
    for answer in answers:
        calls, buffers, volumes = answer["ours"][stage]["counted"]
        assert buffers == BUFFERS[stage] == answer["ours"][stage]["sent"]
        share = (RANKS - 1) / RANKS
        factor = {"all_reduce": 2 * share, "all_gather": share, "reduce_scatter": share}
        assert volumes == pytest.approx(
            {kind: factor[kind] * size for kind, size in buffers.items()}, rel=1e-12
        )
        assert all(calls.values())


def test_volumes_are_what_the_rounds_of_simlabs_rings_add_up_to(answers):
    volumes = answers[0]["ours"]["1"]["counted"][2]
    for kind, ring in (("all_gather", ring_all_gather), ("reduce_scatter", ring_reduce_scatter)):
        rounds = ring(range(RANKS), PSI)
        assert volumes[kind] == pytest.approx(
            sum(t.size_bytes for transfers in rounds for t in transfers if t.source == 2), rel=1e-12
        )


def test_of_one_backward_stages_1_and_2_send_what_data_parallelism_does_and_the_naive_one_half_as_much_again(
    answers,
):
    volume = {
        stage: sum(answers[0]["ours"][stage]["counted"][2].values()) for stage in ("naive 1", "1")
    }
    assert volume["1"] == pytest.approx(2 * (RANKS - 1) / RANKS * PSI, rel=1e-12)
    assert volume["naive 1"] == pytest.approx(1.5 * volume["1"], rel=1e-12)


# states
# -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", STAGES)
def test_states_are_those_of_the_zero_paper(answers, stage):
    """simlab's recipe for fp32 (4 + 4 + 8 bytes per parameter), in fp64 twice as much; at the end
    of the last backward."""
    number = int(stage[-1])
    want = model_states(parameters(), RANKS, zero=number, recipe="fp32")
    for answer in answers:
        states = answer["ours"][stage]["with gradients"]
        layer = 8 * (12 * 16 * 16 + 13 * 16)
        assert states["parameters"] == 2 * want.parameters
        assert states["optimizer"] == 2 * want.optimizer
        assert (
            2 * want.gradients - (2 * layer if number > 1 else 0)
            <= states["gradients"]
            <= 2 * want.gradients
        )
        assert answer["ours"][stage]["at rest"]["gradients"] == 0


# against FSDP2
# ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", ["even", "uneven"])
def test_zero_3_has_the_weights_of_fsdp2_after_clipped_steps(answers, sizes):
    """Twenty of them, with uneven sizes five."""
    for answer in answers:
        found = answer["fsdp2"][sizes]
        assert found["weights"] <= LIMIT and found["norms"] <= LIMIT
        assert found["ours"]["losses"] == pytest.approx(found["torch"]["losses"], rel=LIMIT)
        assert found["clipped"] >= 5  # whether the norm is right would not matter otherwise


def test_zero_3_sends_what_fsdp2_sends_collective_by_collective(answers):
    for answer in answers:
        assert answer["fsdp2"]["even"]["ours"]["sent"] == answer["fsdp2"]["even"]["torch"]["sent"]


def test_where_rows_do_not_divide_flat_shards_are_padded_less(answers):
    """FSDP2 pads each tensor's rows to a multiple of n, a flat unit only its end."""
    found = answers[0]["fsdp2"]["uneven"]
    ours, torchs = (sum(size for _, size in found[name]["sent"]) for name in ("ours", "torch"))
    whole = 8 * (3 * parameters(18) - 18 * (2 * 256 + 8 + 2))
    assert whole <= ours <= whole * 1.001 < torchs
    assert [kind for kind, _ in found["ours"]["sent"]] == [
        kind for kind, _ in found["torch"]["sent"]
    ]


def test_bf16_with_fp32_shards_is_fsdp2s_mixed_precision(answers):
    for answer in answers:
        found = answer["bf16"]
        assert found["ours"]["sent"] == found["torch"]["sent"]
        assert found["ours"]["losses"] == pytest.approx(found["torch"]["losses"], rel=1e-4)
        assert found["weights"] <= 1e-3


# gathering
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefetch", PREFETCH)
def test_a_layer_computes_while_so_many_more_are_gathered_and_no_other(answers, prefetch):
    for answer in answers:
        found = answer["order"][PREFETCH.index(prefetch)]
        layers = range(4)
        assert found["forward"] == [
            [at <= layer <= at + prefetch for layer in layers] for at in layers
        ]
        assert found["backward"] == [
            [at - prefetch <= layer <= at for layer in layers] for at in reversed(layers)
        ]
        assert found["after"] == [0] * 5
        assert found["calls"] == {"all_gather": 1 + 2 * 4, "reduce_scatter": 1 + 4}
        assert found["loss"] == answer["order"][0]["loss"]


def test_recomputation_under_zero_3_changes_no_weight_and_gathers_no_more(answers):
    for answer in answers:
        gathers = {count for _, count in answer["recompute"].values()}
        assert max(error for error, _ in answer["recompute"].values()) <= LIMIT
        assert len(gathers) == 1


def test_forwards_of_two_microbatches_may_come_before_their_backwards(answers):
    assert max(answer["microbatches"] for answer in answers) <= LIMIT


def test_a_forward_without_gradients_leaves_nothing_gathered(answers):
    assert all(
        left == 0 and error <= LIMIT for left, error in (answer["forward"] for answer in answers)
    )


def test_an_overflow_in_one_ranks_shard_skips_the_step_on_all(answers):
    for answer in answers:
        assert answer["scaler"] == [[False, False, True, True, 2.0, 0]] * len(STAGES)


# what is refused
# --------------------------------------------------------------------------------------------


ALONE = Group("dp", range(3), 1)
"""The second of three ranks, as long as nothing is sent."""


def test_a_unit_is_padded_to_equal_parts_and_its_parameters_are_views_of_it():
    from realrun.parallel.flat import FlatUnit

    layer = torch.nn.Linear(4, 5)
    before = [p.detach().clone() for p in layer.parameters()]
    unit = FlatUnit("layer", layer.parameters(), ALONE)
    assert (unit.part_size, unit.padding) == (9, 2)
    assert all(torch.equal(a, b) for a, b in zip(before, layer.parameters()))
    unit.shard.data.fill_(7.0)
    assert layer.weight.flatten()[9:18].tolist() == [7.0] * 9
    assert (
        unit.is_view
        and not FlatUnit("layer", layer.parameters(), ALONE, master=torch.float64).is_view
    )


@pytest.mark.parametrize("what", ["types", "frozen"])
def test_parameters_that_cannot_travel_together_are_refused_by_name(what):
    from realrun.parallel.flat import FlatUnit

    layer = torch.nn.Linear(2, 2)
    if what == "types":
        layer.bias.data = layer.bias.data.double()
    else:
        layer.bias.requires_grad_(False)
    message = {
        "types": "layer 3 has parameters of torch.float32, torch.float64",
        "frozen": "layer 3 has frozen parameters",
    }[what]
    with pytest.raises(InputError, match=message):
        FlatUnit("layer 3", layer.parameters(), ALONE)


@pytest.mark.parametrize("prefetch", [-1, 1.5, True])
def test_a_prefetch_that_is_no_number_of_layers_is_refused(prefetch):
    from realrun.parallel.naive.zero import Zero3

    with pytest.raises(InputError, match="prefetch = "):
        Zero3(model := gpt(), model.blocks, ALONE, adam, prefetch=prefetch)
