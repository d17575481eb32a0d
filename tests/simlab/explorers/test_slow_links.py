"""Challenges to find a slow link: one suspicion gives the step with the fault, and what hints say is so."""

from itertools import product

import pytest

import simlab as sl
from simlab.analysis import gaps
from simlab.analysis.explain import MESSAGE
from simlab.apps.plan import ChallengeExplorer
from simlab.explorers.challenge import CHALLENGES, EXPLORER
from simlab.explorers.challenge.links import LinkTask
from simlab.lessons import progress

LINK_TASKS = [task for task in CHALLENGES if isinstance(task, LinkTask)]
FIRST, GRADIENTS, AROUND = LINK_TASKS
ids = pytest.mark.parametrize("task", LINK_TASKS, ids=[task.id for task in LINK_TASKS])


def state(task, **chosen):
    return EXPLORER.start(task=CHALLENGES.index(task) + 1, **chosen)


@ids
def test_of_all_links_and_factors_one_gives_the_step_with_the_fault(task):
    offers = task.offers()
    assert [*offers] == [*task.free]
    found = [dict(zip(offers, chosen)) for chosen in product(*offers.values())]
    solved = [chosen for chosen in found if task.judged(chosen).solved]
    assert solved == [{name: task.best[name] for name in task.free}]
    assert not task.judged(task.start()).solved


def test_the_step_with_the_fault_is_what_the_simulator_says_of_that_link():
    """Of the first one: 2.13 ms for 42 MB, 34 ms from rank 1 to rank 2."""
    message_s = sl.p2p_s(42e6, sl.load_cluster("dgx-a100"), same_node=False, share=1)
    links = {
        (source, source + step): sl.Link(
            bandwidth_bytes_per_s=42e6 / message_s / (16 if (source, step) == (1, 1) else 1)
        )
        for source in range(4)
        for step in (-1, 1)
    }
    times = sl.OpTimes(forward_s=0.020, backward_s=0.040)
    step = sl.simulate(sl.generate("1f1b", 4, 8), times, link=links, message_bytes=42e6)
    shown = EXPLORER.ask(state(FIRST))
    assert shown.figures[0].values[0] == f"{step.step_s * 1e3:.1f} ms"
    assert shown.pictures[0].panels[0].end_s == pytest.approx(step.step_s)


def test_a_wrong_link_is_told_how_far_off_it_is_and_the_right_one_is_kept():
    assert EXPLORER.ask(state(FIRST)).note.en.endswith("takes 693.2 ms: suspect a link.")
    wrong = EXPLORER.ask(state(FIRST, link="2 → 3"))
    assert wrong.solved == "" and "Not yet" in wrong.note.en and "还没有" in wrong.note.zh
    assert progress.load()["challenges"] == {}
    shown = ChallengeExplorer(task=CHALLENGES.index(FIRST) + 1, link="1 → 2")
    assert {*progress.load()["challenges"]} == {FIRST.id}
    assert shown.still() is not None and shown.shown.figures[2].values == ["100%", "100%"]


def test_what_the_hints_say_of_the_steps_is_so():
    def waiting(trace, kind):
        """The ranks that wait for messages before ops of `kind`."""
        return {gap.rank for gap in gaps(trace) if gap.reason == MESSAGE and kind in gap.op}

    def first_s(trace, rank, kind):
        return next(span.start_s for span in trace.compute(rank) if span.op_kind == kind)

    fault, healthy = FIRST.traces(FIRST.start())
    assert waiting(fault, "F") == {2} and waiting(healthy, "F") == set()
    fault, healthy = GRADIENTS.traces(GRADIENTS.start())
    for rank in range(6):
        assert first_s(fault, rank, "F") == first_s(healthy, rank, "F")
        assert (first_s(fault, rank, "I") == first_s(healthy, rank, "I")) == (rank >= 4)
    fault, healthy = AROUND.traces(AROUND.start())
    assert waiting(fault, "4F") == {0} and waiting(healthy, "4F") == set()
    assert AROUND.program.rank_of[sl.Op(3, "F", 0)] == 3
    assert AROUND.program.rank_of[sl.Op(4, "F", 0)] == 0


def test_only_the_link_is_asked_for_where_its_factor_is_given():
    shown = EXPLORER.ask(state(FIRST))
    assert len(shown.values["link"]) == 7 and len(shown.values["slower"]) == 1
    assert [len(shown.values[name]) for name in ("tp", "zero", "schedule")] == [1, 1, 1]
    assert len(EXPLORER.ask(state(AROUND)).values["link"]) == 9  # over the end, too
    plan = EXPLORER.ask(EXPLORER.start())
    assert len(plan.values["link"]) == 1


def test_an_address_that_names_no_link_of_the_task_suspects_none():
    assert EXPLORER.ask(state(FIRST, link="7 → 8")).figures == EXPLORER.ask(state(FIRST)).figures
