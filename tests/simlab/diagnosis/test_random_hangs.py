"""Hangs of random plans, in which ranks stop at random instructions: who stopped, and where."""

import random
from dataclasses import replace

import simlab as sl
from simlab.diagnosis import hang_of
from tests.support.hanging_runs import Run

MODEL = replace(sl.load_model("gpt2"), layers=4)
PLANS = [
    {"dp": 2, "tp": 2, "pp": 2, "microbatches": 4},
    {"dp": 1, "tp": 2, "pp": 4, "microbatches": 8},
    {"dp": 2, "pp": 4, "microbatches": 6, "zero": 2},
    {"dp": 4, "zero": 3, "microbatches": 2},
    {"dp": 2, "cp": 2, "tp": 2, "microbatches": 2, "zero": 1},
    {"pp": 2, "dp": 2, "chunks": 2, "schedule": "interleaved-1f1b", "microbatches": 4},
    {"pp": 4, "schedule": "gpipe", "microbatches": 4},
    {"pp": 4, "schedule": "zb-h1", "microbatches": 6},
]


def stopped(chance, count):
    """A hang in which `count` random ranks stop, each waited for by others."""
    while True:
        run = Run(MODEL, sl.Plan(**chance.choice(PLANS)), {})
        ranks = chance.sample(range(run.world), count)
        run.stops = {rank: chance.randrange(len(run.lists[rank])) for rank in ranks}
        made = run.stopped()
        if made and len(made.awaited) == count:
            return made


def test_the_rank_that_stopped_and_the_call_that_it_left_out_are_named():
    """Of a hundred. Where nobody shows what the rank does next, a later call of it may come first; the
    next one is then among those that ranks wait in."""
    exact = 0
    for seed in range(100):
        made = stopped(random.Random(seed), 1)
        (rank,) = made.awaited
        hang = hang_of(sorted(made.dumps.items()))
        assert (seed, hang.reason, hang.culprit) == (seed, "missing", (rank,))
        group, kind = made.missed[rank]
        kinds = {"message": ("send", "recv")}.get(kind, (kind,))
        if hang.group == group and hang.name in kinds:
            exact += 1
        else:
            assert f"of group {group} for rank {rank}" in " ".join(hang.waits)
    assert exact >= 95


def test_two_ranks_that_stopped_are_both_named():
    for seed in range(100):
        made = stopped(random.Random(seed), 2)
        assert (seed, hang_of(sorted(made.dumps.items())).culprit) == (seed, tuple(made.awaited))
