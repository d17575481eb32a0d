"""The rounds of one collective of a layer: whose they are, what they send, and where they end."""

import pytest

from simlab.explorers import explorer
from simlab.explorers.plan.rounds import Collective, collectives
from simlab.spec.cluster import load_cluster
from simlab.spec.model import load_model
from simlab.spec.plan import Plan
from simlab.trace import Span
from simlab.training import layer_trace

SIZE = 2**20


def of_kind(kind, ranks):
    return Collective(Span(0, "dp", "0F0 x", 0.0, 1.0, bytes=SIZE, kind=kind), ranks)


def sent(steps):
    """What each rank sends in all rounds, which is the same for all."""
    totals = {sum(step.sent_bytes(rank) for step in steps) for rank in steps[0].ranks}
    assert len(totals) == 1
    return totals.pop()


# what a rank sends of S bytes: Thakur, Rabenseifner, Gropp 2005
@pytest.mark.parametrize(
    ("kind", "share"),
    [
        ("all_reduce", lambda n: 2 * (n - 1) / n),
        ("all_gather", lambda n: (n - 1) / n),
        ("reduce_scatter", lambda n: (n - 1) / n),
        ("all_to_all", lambda n: (n - 1) / n),
        ("ring", lambda n: 1),
    ],
)
@pytest.mark.parametrize("ranks", [(0, 1), (1, 5, 9), tuple(range(0, 32, 2))], ids=len)
def test_a_rank_sends_the_bytes_of_the_closed_form(kind, share, ranks):
    steps = of_kind(kind, ranks).steps()
    assert steps[0].ranks == [*ranks] and steps[0].transfers == ()
    assert sent(steps) == pytest.approx(share(len(ranks)) * SIZE)


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "all_to_all"])
def test_in_the_end_every_rank_has_everything(kind):
    steps = of_kind(kind, (0, 1, 2, 3)).steps()
    assert steps[-1].done and not steps[0].done


def test_a_reduce_scatter_leaves_every_rank_one_sum_and_a_ring_message_the_part_of_the_rank_before():
    assert [*of_kind("reduce_scatter", (0, 1, 2)).steps()[-1].complete.values()] == [1, 1, 1]
    first, last = of_kind("ring", (4, 5, 6)).steps()
    assert [*first.complete.values()] == [1, 1, 1] and [*last.complete.values()] == [2, 2, 2]
    assert last.held[5][0] and not last.held[5][2]


def test_the_ranks_are_those_of_the_plans_group_at_that_place_of_the_pipeline():
    plan = Plan(dp=2, tp=4, pp=2, zero=3, microbatches=4)
    layers = layer_trace(load_model("llama-2-7b"), plan, load_cluster("dgx-a100", nodes=2))
    found = collectives(plan, layers, "1F0")
    reduced = next(one for name, one in found.items() if name.endswith("output reduce"))
    gathered = next(one for name, one in found.items() if name.endswith(" gather"))
    # order tp, cp, dp, pp: the second place has ranks 8 to 15
    assert reduced.ranks == (8, 9, 10, 11) and gathered.ranks == (8, 12)
    unit = reduced.span.unit
    assert {one.span.unit for one in collectives(plan, layers, "1F0", unit).values()} == {unit}


def test_what_has_too_many_ranks_is_not_offered_and_an_unknown_name_shows_the_op():
    found = explorer("plan")
    state = found.start(zoom="0F0", tp=1, pp=1, dp=32, zero=3, model="llama-2-7b")
    assert [*found.answer(state).values["collective"]] == ["none"]
    shown = found.answer(found.start(zoom="0F0", collective="layer 99 gather"))
    assert [picture.key for picture in shown.pictures][-1] == "op"
