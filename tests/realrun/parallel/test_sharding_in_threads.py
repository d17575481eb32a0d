"""Data parallelism and ZeRO on ranks that are threads, against one process with the whole batch and
against closed forms; three ranks divide next to nothing, so that padding matters."""

from collections import Counter
from copy import deepcopy

import pytest
import torch
from threaded_ranks import on_mesh, on_threads
from torch import nn

from realrun.comm.group import Group
from realrun.parallel.clipping import clip, global_norm
from realrun.parallel.naive.data import DataParallel, average_gradients
from realrun.parallel.parameters import WholeUnit
from realrun.parallel.precision import LossScaler, MasterWeights
from realrun.parallel.sharded import ShardedUnit
from realrun.parallel.units import StageUnits
from simlab.errors import InputError
from simlab.program import Op
from simlab.spec.plan import Plan

STEPS, EACH = 3, 2  # microbatches of a rank
WIDTHS = ((5, 7), (7, 3), (3, 1))
PLACES = [2, 3]


class Layers(nn.Sequential):
    """Layers and a factor, which is in none of them."""

    def __init__(self, *layers):
        super().__init__(*layers)
        self.factor = nn.Parameter(torch.tensor([1.5, -0.5]))

    def forward(self, x):
        return super().forward(x * self.factor[0] - self.factor[1])

    @property
    def layers(self):
        """Without the factor, which is no layer."""
        return [self[at] for at in range(len(WIDTHS))]


torch.manual_seed(1)  # once: threads share the generator
MODEL = Layers(*(nn.Sequential(nn.Linear(a, b), nn.Tanh()) for a, b in WIDTHS)).double()


def model(dtype=torch.float64):
    """A copy of three layers, of sizes that 3 does not divide."""
    return deepcopy(MODEL).to(dtype)


UNITS = [2, *(a * b + b for a, b in WIDTHS)]


def inputs(step, rank, ranks, dtype=torch.float64):
    """[the microbatches of a rank]"""
    all_ranks = torch.randn(
        ranks, EACH, 4, 5, generator=torch.Generator().manual_seed(step), dtype=torch.float64
    )
    return all_ranks[rank].to(dtype)


def loss(whole, x):
    y = whole(x)
    return y.square().mean() + y.mean()


def backwards(whole, xs):
    for x in xs:
        (loss(whole, x) / len(xs)).backward()


def adam(parameters):
    return torch.optim.Adam(parameters, lr=0.05)


def alone(ranks, whole):
    """The parameters of `whole` after the same training in one process, with torch's own optimizer."""
    optimizer = adam(whole.parameters())
    for step in range(STEPS):
        backwards(whole, torch.cat([inputs(step, rank, ranks) for rank in range(ranks)]))
        optimizer.step()
        optimizer.zero_grad()
    return [p.detach() for p in whole.parameters()]


def close(ours, theirs):
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a.to(b.dtype), b, rtol=1e-10, atol=1e-12)


# data parallelism
# ------------------------------------------------------------------------------------------


def data_parallel(group, bucket_bytes):
    whole = model()
    parallel = DataParallel(whole, group, bucket_bytes=bucket_bytes) if bucket_bytes else None
    optimizer = adam(whole.parameters())
    for step in range(STEPS):
        xs = inputs(step, group.place, group.size)
        if parallel:
            with parallel.no_sync():
                (loss(whole, xs[0]) / EACH).backward()
            (loss(whole, xs[1]) / EACH).backward()
            parallel.finish()
        else:
            backwards(whole, xs)
            average_gradients(whole, group)
        optimizer.step()
        optimizer.zero_grad()
    return [p.detach() for p in whole.parameters()], Counter(one.kind for one in group.traffic)


@pytest.mark.parametrize("ranks", PLACES)
@pytest.mark.parametrize("bucket_bytes, calls", [(None, 7), (1, 7), (8 * 46, 2), (10**6, 1)])
def test_means_over_ranks_train_as_one_process_does(ranks, bucket_bytes, calls):
    """Seven parameters; buckets of 46 numbers hold the last two layers' 28 and the first's bias and
    then the rest."""
    expected = alone(ranks, model())
    for weights, sent in on_threads(ranks, data_parallel, bucket_bytes):
        close(weights, expected)
        assert sent["all_reduce"] == STEPS * calls


# what is added up, in which type
# ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [ShardedUnit, WholeUnit])
def test_gradients_in_fp32_are_averaged_in_fp32_whatever_the_parameters_type(kind):
    """A third of 1 + 2^-12, which 16 bits would round to a third of 1."""
    value = 1 + 2**-12

    def mean(group):
        parameter = nn.Parameter(torch.zeros(6, dtype=torch.bfloat16))
        parameter.grad_dtype = torch.float32
        if kind is WholeUnit:
            unit = WholeUnit("unit", [parameter], group, master=torch.float32)
        else:
            unit = kind("unit", [parameter], group, reduce=torch.float32)
        parameter.grad = torch.full((6,), value * (group.place == 1))
        unit.reduce()
        unit.reduced()
        unit.to_masters()
        return unit.updated[0].grad

    expected = torch.tensor(value, dtype=torch.float32) / 3
    for found in on_threads(3, mean):
        assert found.dtype == torch.float32 and torch.all(found == expected)


def test_gradients_of_two_backwards_are_added_up():
    def added(group):
        unit = ShardedUnit("unit", [nn.Parameter(torch.zeros(4))], group)
        for value in (1.0, 10.0):
            unit.parameters[0].grad = torch.full((4,), value * (1 + group.place))
            unit.reduce()
            unit.reduced()
        unit.to_masters()
        return unit.shard.grad.tolist()

    assert on_threads(2, added) == [[16.5, 16.5]] * 2


# clipping and scaling
# ------------------------------------------------------------------------------------------


def held(whole, d, t):
    """What the rank at (dp, tp) = (d, t) of 2 x 2 holds of gradients that are cut over both, over one
    of them, or over none."""
    place = 2 * d + t
    return {
        "both": whole["both"][2 * place :][:2],
        "tp": whole["tp"][4 * t :][:4],
        "dp": whole["dp"][4 * d :][:4],
        "neither": whole["neither"],
    }


def test_the_norm_counts_each_gradient_once_however_it_is_cut_by_one_call_for_each_group():
    whole = {name: torch.randn(8).double() for name in ("both", "tp", "dp", "neither")}
    cut_over = {"both": ("dp", "tp"), "tp": ("tp",), "dp": ("dp",), "neither": ()}
    theirs = {name: nn.Parameter(torch.zeros_like(value)) for name, value in whole.items()}
    for name, parameter in theirs.items():
        parameter.grad = whole[name].clone()
    expected = nn.utils.clip_grad_norm_(theirs.values(), 0.5)
    clipped = {name: parameter.grad for name, parameter in theirs.items()}

    def norm(mesh):
        place = mesh["dp"].place, mesh["tp"].place
        mine = {name: value.clone() for name, value in held(whole, *place).items()}
        parts = [([None, mine[name]], [mesh[one] for one in cut_over[name]]) for name in whole]
        found = clip(parts, 0.5)
        assert [len(group.traffic) for group in mesh.values()] == [1, 1]
        close(mine.values(), held(clipped, *place).values())
        nothing = [([torch.full((4,), 3.0)] if place == (0, 0) else [], mesh.values())]
        return found.item(), clip(nothing, 1.0).item()

    for found, of_one_rank in on_mesh({"dp": 2, "tp": 2}, norm):
        assert found == pytest.approx(expected.item(), rel=1e-12) and of_one_rank == 6


@pytest.mark.parametrize("limit", [0, -1.0, float("nan")])
def test_a_limit_that_is_no_norm_is_refused_and_gradients_below_one_stay(limit):
    with pytest.raises(InputError, match="clipping at "):
        clip([([torch.ones(1)], [])], limit)
    small = torch.ones(4)
    assert clip([([small], [])], 3.0).item() == 2 and small.equal(torch.ones(4))


def test_copies_that_another_rank_counts_are_scaled_by_the_norm_without_them():
    counted, copy = torch.tensor([3.0, 4.0]), torch.tensor([30.0])
    assert clip([([counted], [])], 0.5, [copy, None]).item() == 5.0
    torch.testing.assert_close(counted, torch.tensor([0.3, 0.4]))
    torch.testing.assert_close(copy, torch.tensor([3.0]))


def test_the_sum_of_squares_is_taken_in_64_bits():
    """Ten million gradients of 1 and one of 10,000: fp32 stops adding ones at 2^24 of squares."""
    values = [torch.full((1,), 2.0**20), *[torch.ones(1)] * 50]
    (found,) = on_threads(1, lambda group: global_norm([(values, [])]))
    assert found.dtype == torch.float64 and found.item() ** 2 == pytest.approx(2**40 + 50, abs=0.1)


def test_an_infinity_on_one_rank_skips_the_step_on_all_as_torchs_scaler_does():
    """Growth after so many good steps, and halving: the scale follows torch's."""
    theirs, scales = (
        torch.amp.GradScaler(
            "cpu", init_scale=8.0, growth_factor=4.0, backoff_factor=0.25, growth_interval=2
        ),
        [],
    )
    bad = {3, 4}
    for step in range(9):
        parameter = nn.Parameter(torch.zeros(1))
        optimizer = torch.optim.SGD([parameter], lr=1.0)
        theirs.scale(torch.zeros(1))
        parameter.grad = torch.tensor([float("inf") if step in bad else 1.0])
        theirs.step(optimizer)
        theirs.update()
        scales.append(theirs.get_scale())

    def scaled(group):
        scaler, found = LossScaler([group], scale=8.0, growth=4.0, backoff=0.25, interval=2), []
        for step in range(9):
            gradient = torch.tensor([float("inf") if step in bad and group.place == 1 else 16.0])
            before = scaler.scale
            good = scaler.unscale([gradient, None])
            assert good == (step not in bad)
            assert group.place == 1 or gradient.item() == 16.0 / before
            found.append(scaler.scale)
        return found

    assert on_threads(3, scaled) == [scales] * 3


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_master_weights_move_by_less_than_16_bits_can_show(dtype):
    layer = nn.Linear(4, 1, bias=False)
    nn.init.constant_(layer.weight, 1.0)
    masters = MasterWeights(layer, dtype, lambda p: torch.optim.SGD(p, lr=1.0))
    for _ in range(64):
        layer.weight.grad = torch.full_like(layer.weight, 2.0**-12)
        assert masters.step()
    assert torch.all(masters.masters[0] == 1 - 64 * 2**-12)
    assert torch.all(layer.weight == 1 - 64 * 2**-12) and layer.weight.grad is None
    with pytest.raises(InputError, match="precision 'fp12': give one of fp16, bf16, fp32"):
        MasterWeights(layer, "fp12", adam)


# units of any schedule's ops
# ------------------------------------------------------------------------------------------


class Unit(nn.Module):
    """A layer with what `StageUnits` asks of one."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def partial_over_tp(self):
        return []


class Stage:
    def __init__(self, layers):
        self.units = {f"layer {n}": Unit(layer) for n, layer in enumerate(layers)}


def in_units(group, plan, split):
    """A training whose backward is one op, or I and W: gradients come with the second of them."""
    whole = nn.Sequential(*model().layers)
    tp = on_threads(1, lambda group: group, dimension="tp")[0]
    kind = "W" if split else "B"
    units = StageUnits({0: Stage(list(whole))}, plan, group, tp, {0: Op(0, kind, 1)}, torch.float64)
    optimizer = adam([tensor for unit in units.all for tensor in unit.updated])
    names = list(units.of_stage[0])
    for step in range(STEPS):
        group.traffic.clear()
        units.step_begins([0])
        for number, x in enumerate(inputs(step, group.place, group.size)):
            units.op_begins(0, "F")
            held = [x]
            for name, layer in zip(names, whole):
                units.unit_begins(0, "F", name)
                held.append(layer(held[-1].detach().requires_grad_()))
                units.unit_ends(Op(0, "F", number), name)
            y = held[-1].detach().requires_grad_()
            ((y.square().mean() + y.mean()) / EACH).backward()
            gradient = y.grad
            first = "I" if split else "B"
            units.op_begins(0, first)
            made = {}
            for name, layer in list(zip(names, whole))[::-1]:
                units.unit_begins(0, first, name)
                at = names.index(name)
                x = held[at].detach().requires_grad_()
                parameters = list(layer.parameters())
                gradient, *made[name] = torch.autograd.grad(layer(x), [x, *parameters], gradient)
                if not split:
                    add(parameters, made[name])
                units.unit_ends(Op(0, first, number), name)
            for name, layer in list(zip(names, whole))[::-1] if split else ():
                units.unit_begins(0, "W", name)
                add(layer.parameters(), made[name])
                units.unit_ends(Op(0, "W", number), name)
        units.step_ends([0])
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        for unit in units.all:
            unit.from_masters()
    kinds = Counter(one.kind for one in group.traffic)
    states = units.state_bytes(optimizer)
    for unit in units.all:
        if isinstance(unit, ShardedUnit):
            unit.gather()
            unit.gathered()
    return [p.detach().clone() for p in whole.parameters()], kinds, states


def add(parameters, gradients):
    for parameter, gradient in zip(parameters, gradients):
        parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("dp_overlap", [True, False])
@pytest.mark.parametrize("zero, prefetch, reshard", [
    (0, 1, True), (1, 1, True), (2, 1, True), (3, 0, True), (3, 1, True), (3, 3, True), (3, 0, False), (3, 1, False),
])  # fmt: skip
def test_units_train_as_one_process_does_and_send_as_often_as_the_stage_says(
    ranks, split, dp_overlap, zero, prefetch, reshard
):
    """Three units and two backwards: ZeRO 0 and 1 reduce once a step, 2 and 3 after each backward;
    1 and 2 gather once a step, 3 before each forward and, if it reshards, each backward."""
    plan = Plan(dp=ranks, zero=zero, dp_overlap=dp_overlap, prefetch=prefetch, reshard=reshard)
    expected, layers = alone(ranks, nn.Sequential(*model().layers)), 3
    sizes = UNITS[1:]
    own = sum(8 * -(-size // ranks) for size in sizes)
    for weights, kinds, states in on_threads(ranks, in_units, plan, split):
        close(weights, expected)
        if ranks == 1:
            assert not kinds
            continue
        reductions = layers * (EACH if zero >= 2 else 1)
        gathers = {0: 0, 1: layers, 2: layers, 3: (1 + reshard) * EACH * layers}[zero]
        expected_kinds = {"all_reduce" if zero == 0 else "reduce_scatter": reductions}
        assert kinds == expected_kinds | ({"all_gather": gathers} if gathers else {})
        whole = sum(8 * size for size in sizes)
        assert states == {
            "parameters": {0: whole, 3: own}.get(zero, ranks * own),
            "gradients": own if zero else whole,
            "optimizer": 2 * (own if zero else whole),
        }


# small print
# ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [ShardedUnit, WholeUnit])
def test_the_pieces_of_all_ranks_are_the_parameters_and_their_gradients(kind):
    """Of a whole unit all of each, on every rank; of a sharded one what lies in the rank's part."""
    values = [torch.arange(5.0), 10 + torch.arange(4.0).view(2, 2), torch.tensor([20.0])]

    def pieces(group):
        parameters = [nn.Parameter(value.clone()) for value in values]
        unit = kind("unit", parameters, group, master=torch.float32)
        without = [gradient for _, _, gradient in unit.pieces()]
        for parameter in parameters:
            parameter.grad = 100 + parameter.detach()
        unit.reduce()
        unit.reduced()
        unit.to_masters()
        assert without == [None] * len(without)
        return [
            (next(at for at, p in enumerate(parameters) if p is parameter), own, gradient)
            for parameter, own, gradient in unit.pieces()
        ]

    for_each = on_threads(3, pieces)
    if kind is ShardedUnit:
        for_each = [[piece for its in for_each for piece in its]]
    for its in for_each:
        for at, value in enumerate(values):
            mine = [(own, gradient) for number, own, gradient in its if number == at]
            assert torch.cat([own for own, _ in mine]).equal(value.flatten())
            assert torch.cat([gradient for _, gradient in mine]).equal(100 + value.flatten())


@pytest.mark.parametrize(
    "fields, says",
    [({"scale": 0.0}, "scale = 0.0: give a number above 0"), ({"growth": 1.0}, "growth = 1.0: give a number above 1"),
     ({"backoff": 1.0}, "backoff = 1.0: give a number between 0 and 1"), ({"backoff": 0.0}, "backoff = 0.0"),
     ({"interval": 0}, "interval = 0: give a number of at least 1"),
     ({"scale": float("inf")}, "scale = inf: give a number above 0"), ({"growth": float("inf")}, "growth = inf: give a number above 1")],
)  # fmt: skip
def test_a_scaler_that_cannot_be_is_refused_with_what_could(fields, says):
    with pytest.raises(InputError, match=says):
        LossScaler(**fields)


def test_a_parameter_that_no_rank_used_has_a_gradient_of_zeros_afterwards():
    def averaged(group):
        unused = nn.Linear(2, 1).double()
        unused.weight.grad = torch.full_like(unused.weight, float(group.place))
        average_gradients(unused, group)
        return unused.weight.grad.tolist(), unused.bias.grad.tolist()

    assert on_threads(3, averaged) == [([[1.0, 1.0]], [0.0])] * 3


@pytest.mark.parametrize("kind", [ShardedUnit, WholeUnit])
def test_a_unit_waits_for_a_reduction_only_where_one_is_under_way(kind):
    """Before the first one, and after it has been waited for, the gradients stay."""

    def reduced(group):
        parameter = nn.Parameter(torch.ones(4))
        unit = kind("unit", [parameter], group, master=torch.float32)
        unit.reduced()
        assert parameter.grad is None
        parameter.grad = torch.full((4,), 2.0 + group.place)
        unit.reduce()
        for _ in range(2):
            unit.reduced()
        unit.to_masters()
        return torch.cat([gradient for _, _, gradient in unit.pieces()]).unique().tolist()

    assert on_threads(2, reduced) == [[2.5]] * 2


def test_a_parameter_without_a_gradient_counts_as_zeros_of_the_type_that_gradients_have():
    def reduced(group):
        used, unused = (nn.Parameter(torch.ones(2).bfloat16()) for _ in range(2))
        for parameter in (used, unused):
            parameter.grad_dtype = torch.float32
        unit = WholeUnit("unit", [used, unused], group, master=torch.float32)
        used.grad = torch.full((2,), 1.0 + group.place)
        if group.place:
            unused.grad = torch.full((2,), 8.0)
        unit.reduce()
        unit.reduced()
        assert [one.size_bytes for one in group.traffic] == [4 * 4]
        assert unused.grad.dtype == torch.float32
        return used.grad.tolist(), unused.grad.tolist()

    assert on_threads(2, reduced) == [([1.5, 1.5], [4.0, 4.0])] * 2


@pytest.mark.parametrize("bucket_bytes, buckets", [
    (4, [[4], [3], [2], [1]]), (16, [[4], [3], [2, 1]]), (20, [[4], [3, 2], [1]]),
    (27, [[4], [3, 2, 1]]), (28, [[4, 3], [2, 1]]), (float("inf"), [[4, 3, 2, 1]]),
])  # fmt: skip
def test_a_bucket_takes_parameters_from_the_last_on_as_long_as_they_fit(bucket_bytes, buckets):
    """Parameters of 1 to 4 numbers of 4 bytes; 16 bits go into buckets of their own."""
    module = nn.ParameterList(nn.Parameter(torch.zeros(size)) for size in (1, 2, 3, 4))

    def sizes(group):
        parallel = DataParallel(module, group, bucket_bytes=bucket_bytes)
        found = [[p.numel() for p in bucket] for bucket in parallel.buckets]
        module.append(nn.Parameter(torch.zeros(1).bfloat16()))
        parallel = DataParallel(module, group, bucket_bytes=bucket_bytes)
        assert [len(bucket) for bucket in parallel.buckets[:2]] == [1, len(buckets[0])]
        return found

    assert on_threads(1, sizes) == [buckets]


def test_every_bucket_is_on_its_way_when_the_backward_ends_and_none_inside_no_sync():
    def issued(group):
        layers = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 1, bias=False))
        parallel = DataParallel(layers, group, bucket_bytes=8)
        assert len(parallel.buckets) == 2
        with parallel.no_sync():
            layers(torch.ones(1, 2)).sum().backward()
        inside, sent = [*parallel.issued], len(group.traffic)
        layers(torch.ones(1, 2)).sum().backward()
        after = [*parallel.issued]
        parallel.finish()
        return inside, sent, after, parallel.issued, len(group.traffic)

    assert on_threads(2, issued) == [([], 0, [0, 1], [], 2)] * 2


def test_buckets_that_no_backward_completed_are_sent_at_the_end_in_their_order():
    """The first and the third of four layers are used: the others count as zeros."""

    def means(group):
        layers = nn.ModuleList(nn.Linear(2, 1, bias=False) for _ in range(4))
        parallel = DataParallel(layers, group, bucket_bytes=8)
        x = torch.full((1, 2), 1.0 + group.place)
        (layers[0](x) + layers[2](x)).sum().backward()
        assert parallel.issued == []  # the last layer's bucket is the first
        parallel.finish()
        assert len(group.traffic) == 4
        return [layer.weight.grad.tolist() for layer in layers]

    used, unused = [[1.5, 1.5]], [[0.0, 0.0]]
    assert on_threads(2, means) == [[used, unused, used, unused]] * 2


def test_a_unit_that_is_freed_while_it_is_gathered_can_be_gathered_again():
    values = torch.arange(1.0, 7.0)

    def gathered(group):
        unit = ShardedUnit("unit", [nn.Parameter(values.clone())], group, frees=True)
        unit.free()
        assert not group.traffic  # nothing was under way
        unit.gather()
        unit.free()
        assert unit.whole_bytes == 0 and len(group.traffic) == 1
        unit.gathered()
        return unit.parameters[0].tolist(), len(group.traffic)

    assert on_threads(2, gathered) == [(values.tolist(), 2)] * 2


ALONE = Group("dp", range(3), 1)
"""The second of three ranks, as long as nothing is sent."""


def test_a_unit_is_padded_to_equal_parts_and_its_parameters_are_views_of_it():
    layer = torch.nn.Linear(4, 5)
    before = [p.detach().clone() for p in layer.parameters()]
    unit = ShardedUnit("layer", layer.parameters(), ALONE)
    assert (unit.part_size, unit.padding) == (9, 2)
    assert all(torch.equal(a, b) for a, b in zip(before, layer.parameters()))
    unit.shard.data.fill_(7.0)
    assert layer.weight.flatten()[9:18].tolist() == [7.0] * 9
    assert (
        unit.is_view
        and not ShardedUnit("layer", layer.parameters(), ALONE, master=torch.float64).is_view
    )


@pytest.mark.parametrize("what", ["types", "frozen"])
def test_parameters_that_cannot_travel_together_are_refused_by_name(what):
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
        ShardedUnit("layer 3", layer.parameters(), ALONE)
