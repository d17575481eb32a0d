"""Challenges: none begins solved, all can be solved, and no plan beside the best known one is better."""

import pytest

from simlab.apps.plan import ChallengeExplorer
from simlab.errors import SimlabError
from simlab.explorers.challenge import CHALLENGES, EXPLORER
from simlab.explorers.challenge.tasks import BOUNDS, START, VALUES, Task
from simlab.lessons import book, progress
from simlab.spec.cluster import load_cluster
from simlab.spec.model import load_model
from simlab.spec.plan import Plan
from simlab.training import predict

TASKS = [task for task in CHALLENGES if isinstance(task, Task)]
ids = pytest.mark.parametrize("task", TASKS, ids=[task.id for task in TASKS])


def test_thirty_plans_and_three_links_in_three_levels_each_about_a_question():
    assert [task.level for task in CHALLENGES] == [1] * 10 + [2] * 10 + [3] * 10 + [1, 2, 3]
    assert len({task.id for task in CHALLENGES}) == len({task.name for task in CHALLENGES}) == 33
    assert {task.teaches for task in CHALLENGES} <= {*book.questions()}


@ids
def test_it_begins_unsolved_and_its_best_plan_solves_it(task):
    assert not task.is_solved(task.prediction(task.start()))
    assert task.is_solved(task.prediction(task.best))
    assert {*task.best} == {*task.free} and not {*task.free} & {*task.given}
    assert all(value in VALUES[name] for name, value in task.best.items())
    assert all(hint.en != hint.zh for hint in task.hints)


@ids
def test_no_plan_with_one_control_moved_is_better_than_the_best_known(task):
    least = task.prediction(task.best)
    for name in task.free:
        for value in VALUES[name]:
            try:
                found = task.prediction({**task.best, name: value})
            except SimlabError:
                continue  # no such plan
            if task.is_solved(found) and found.plan.gpus <= least.plan.gpus:
                assert found.step_s >= 0.99 * least.step_s, (name, value)


def test_what_a_state_says_is_the_prediction_of_its_plan():
    """Of 'a third less activations', with the numbers of `predict` itself."""
    (task,) = (each for each in TASKS if each.id == "a-third-less")
    number = TASKS.index(task) + 1
    for schedule in ("1f1b", "v-half", "v-min", "gpipe"):
        plan = Plan(tp=8, pp=8, zero=1, microbatches=64, schedule=schedule, sequence_parallel=True)
        found = predict(load_model("gpt3-175b"), plan, load_cluster("dgx-a100", nodes=8))
        shown = EXPLORER.ask(EXPLORER.start(task=number, schedule=schedule))
        kept = found.memory_bytes["activations"] <= 6 * 2**30 and found.step_s <= 13.92
        assert bool(shown.solved) == (kept and found.fit.fits), schedule
        assert shown.figures[1].values[0] == f"{found.mfu:.1%}"
    assert shown.note.en.count("are missing") == 1 and "缺" in shown.note.zh


def test_only_what_is_free_can_be_chosen_and_hints_come_one_by_one():
    shown = [EXPLORER.ask(EXPLORER.start(hint=hint)) for hint in range(4)]
    offered = {name: len(its) for name, its in shown[0].values.items() if len(its) > 1}
    assert offered == {"zero": 4}
    said = [each.note.en for each in shown]
    first, second = (hint.en for hint in TASKS[0].hints)
    assert [first in text for text in said] == [False, True, False, False]
    assert [second in text for text in said] == [False, False, True, False]
    assert said[3].endswith("Best known: zero = 3. The question behind it is w05.")


def test_a_value_that_an_address_asks_for_is_taken_to_the_nearest_that_is_offered():
    near, far = (EXPLORER.ask(EXPLORER.start(zero=zero)) for zero in (3, 7))
    assert near.figures == far.figures
    assert EXPLORER.start()["schedule"] == "1f1b"


def test_what_is_solved_is_kept_once_with_the_learners_progress():
    ChallengeExplorer()
    assert progress.load()["challenges"] == {}
    ChallengeExplorer(zero=3)
    kept = progress.load()["challenges"]
    assert {*kept} == {"13b-on-eight"}
    ChallengeExplorer(zero=3)
    assert progress.load()["challenges"] == kept


def test_every_bound_is_asked_for_and_every_control_is_free_somewhere():
    assert {name for task in TASKS for name in task.goal} == {*BOUNDS}
    assert {name for task in TASKS for name in task.free} == {*VALUES} == {*START}
