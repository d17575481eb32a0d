"""Exercises that processes judge: solutions pass, plausible wrong functions are told what is wrong,
and functions that raise or hang are named with their rank and line."""

import pytest

from realrun.launch.pool import Pool, RunError
from realrun.lessons import lesson
from realrun.lessons.lesson import LessonPool
from realrun.lessons.tasks import PRACTICES, practice
from simlab.errors import InputError
from simlab.lessons import words
from simlab.spec.plan import Plan
from tests.support.notebook_code import stubs
from tests.support.realrun_processes import RestingPool

WRONG = {
    "b01": {
        "plain_mean": "return all_reduce(gradient) / dist.get_world_size()",
        "not_divided": "return all_reduce(gradient * samples)",
        "by_ranks": "return all_reduce(gradient * samples) / dist.get_world_size()",
        "own": "return gradient",
    },
    "b02": {
        "all_inside": """
    with model.no_sync():
        for x, y in batches:
            (loss_of(model(x), y) / len(batches)).backward()
    optimizer.step()""",
        "late": """
    for i, (x, y) in enumerate(batches):
        with model.no_sync():
            loss = loss_of(model(x), y) / len(batches)
            if i < len(batches) - 1:
                loss.backward()
    loss.backward()
    optimizer.step()""",
        "not_divided": """
    with model.no_sync():
        for x, y in batches[:-1]:
            loss_of(model(x), y).backward()
    x, y = batches[-1]
    loss_of(model(x), y).backward()
    optimizer.step()""",
        "every_time": """
    for x, y in batches:
        (loss_of(model(x), y) / len(batches)).backward()
    optimizer.step()""",
    },
    "d04": {
        "products_only": "return F.gelu(x @ a) @ b",
        "no_graph": "return all_reduce(F.gelu(x @ a) @ b)",
        "forward_only": """
    y = F.gelu(x @ a) @ b
    return y + (all_reduce(y) - y).detach()""",
        "summed_twice": """
    class Sum(torch.autograd.Function):
        @staticmethod
        def forward(ctx, y):
            return all_reduce(y)
        @staticmethod
        def backward(ctx, dy):
            return all_reduce(dy)
    return Sum.apply(F.gelu(x @ a) @ b)""",
    },
    "b05": {
        "bias_each": "return all_reduce(x @ weight.t() + bias)",
        "no_bias": "return all_reduce(x @ weight.t())",
        "no_sum": "return x @ weight.t() + bias",
    },
    "b06": {
        "overflow": """
    total = all_reduce(logits.exp().sum(1))
    local = targets - first
    here = (local >= 0) & (local < logits.shape[1])
    picked = logits.gather(1, local.clamp(0, logits.shape[1] - 1).unsqueeze(1)).squeeze(1)
    return total.log() - all_reduce(torch.where(here, picked, 0.0))""",
        "own_maximum": """
    most = logits.max(1).values
    total = all_reduce((logits - most.unsqueeze(1)).exp().sum(1))
    local = targets - first
    here = (local >= 0) & (local < logits.shape[1])
    picked = logits.gather(1, local.clamp(0, logits.shape[1] - 1).unsqueeze(1)).squeeze(1)
    return total.log() - all_reduce(torch.where(here, picked - most, 0.0))""",
        "unmasked": """
    most = all_reduce(logits.max(1).values, "max")
    total = all_reduce((logits - most.unsqueeze(1)).exp().sum(1)).log() + most
    local = (targets - first).clamp(0, logits.shape[1] - 1)
    return total - all_reduce(logits.gather(1, local.unsqueeze(1)).squeeze(1))""",
        "unmasked_below_most": """
    most = all_reduce(logits.max(1).values, "max")
    total = all_reduce((logits - most.unsqueeze(1)).exp().sum(1)).log()
    local = (targets - first).clamp(0, logits.shape[1] - 1)
    picked = logits.gather(1, local.unsqueeze(1)).squeeze(1)
    return total - all_reduce(picked - most)""",
        "more_numbers": """
    n, rows = dist.get_world_size() // 2, logits.shape[1]
    whole = torch.zeros(logits.shape[0], n * rows, dtype=logits.dtype)
    whole[:, first : first + rows] = logits
    return F.cross_entropy(all_reduce(whole), targets, reduction="none")""",
    },
    "d12": {
        "local": "return sum((x**2).sum() for x in (*parts, *copies)) ** 0.5",
        "copies_again": "return all_reduce(sum((x**2).sum() for x in (*parts, *copies))) ** 0.5",
        "sum_of_norms": "return all_reduce(sum((x**2).sum() for x in (*parts, *copies)) ** 0.5)",
        "no_copies": "return all_reduce(sum((x**2).sum() for x in parts)) ** 0.5",
    },
    "b11": {
        "stay": """
    dq, dk, dv = 0, 0, 0
    for _ in range(dist.get_world_size()):
        q_, k_, v_ = gradients(k, v)
        dq, dk, dv = dq + q_, dk + k_, dv + v_
        k, v = pass_on(k, v)
    return dq, dk, dv""",
        "one_short": """
    n, dq, dk, dv = dist.get_world_size(), 0, torch.zeros_like(k), torch.zeros_like(v)
    for step in range(n):
        q_, k_, v_ = gradients(k, v)
        dq, dk, dv = dq + q_, dk + k_, dv + v_
        if step < n - 1:
            k, v, dk, dv = pass_on(k, v, dk, dv)
    return dq, dk, dv""",
        "own_block": "return gradients(k, v)",
    },
    "d17": {
        "own": "return infinite",
        "unlike_calls": "return all_reduce(infinite, 'max', 'tp') or all_reduce(infinite, 'max', 'pp')",
        "one_group": "return all_reduce(infinite, 'max', 'tp') > 0",
        "apart": """
    flags = [all_reduce(infinite, 'max', over) for over in ('tp', 'pp')]
    return max(flags) > 0""",
        "all_must": """
    flag = all_reduce(infinite, 'sum', 'tp')
    return all_reduce(flag, 'sum', 'pp') == 4""",
        "always": """
    fine = all_reduce(not infinite, 'max', 'tp')
    return all_reduce(fine, 'max', 'pp') > 0""",
    },
}
HEADS = {
    "b01": "mean(gradient, samples, all_reduce)",
    "b02": "step(model, batches, optimizer, loss_of)",
    "d04": "mlp(x, a, b, all_reduce)",
    "b05": "row(x, weight, bias, all_reduce)",
    "b06": "losses(logits, targets, first, all_reduce)",
    "d12": "norm(parts, copies, all_reduce)",
    "b11": "backward(k, v, gradients, pass_on)",
    "d17": "skip(infinite, all_reduce)",
}


STUBS = stubs()


@pytest.fixture(scope="module")
def pools(tmp_path_factory):
    """Pools of 4 and 8 processes, for lessons."""
    folder = tmp_path_factory.mktemp("recorded")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lesson, "Pool", RestingPool)
        pools = {ranks: LessonPool(ranks, folder) for ranks in (4, 8)}
    yield pools
    for pool in pools.values():
        pool.close()


def judged(pools, identifier, body):
    """The verdict on the function of an exercise with this body."""
    asked = practice(identifier, pools[PRACTICES[identifier].plan.gpus])
    return asked.judge(f"def {HEADS[identifier]}:\n    {body.strip()}\n")


@pytest.mark.parametrize("identifier", PRACTICES)
def test_the_solution_passes(identifier, pools):
    asked = practice(identifier, pools[PRACTICES[identifier].plan.gpus])
    verdict = asked.judge(asked.solution_text())
    assert verdict.solved, verdict.text
    assert "type: ignore" not in asked.solution_text()


@pytest.mark.parametrize("identifier", PRACTICES)
def test_the_stub_of_the_lesson_runs_and_is_not_solved(identifier, pools):
    text = STUBS[identifier].partition("task.check(")[0]
    verdict = practice(identifier, pools[PRACTICES[identifier].plan.gpus]).judge(text)
    assert not verdict.solved and verdict.key != "form.ranks_raised", verdict.text


@pytest.mark.parametrize(
    ("identifier", "mistake"), [(name, wrong) for name, them in WRONG.items() for wrong in them]
)
def test_a_plausible_wrong_function_is_told_what_is_wrong(identifier, mistake, pools):
    verdict = judged(pools, identifier, WRONG[identifier][mistake])
    assert verdict.key == f"{identifier}.exercise.mistakes.{mistake}"


@pytest.mark.parametrize("identifier", PRACTICES)
def test_the_words_of_an_exercise_are_complete(identifier):
    asked = PRACTICES[identifier]
    for tongue in words.LANGUAGES:
        table = words.entry(f"{identifier}.exercise", tongue=tongue)
        assert len(table["hints"]) == 3 and {*table["facts"]} == {*asked.right}
        assert {*WRONG[identifier]} <= {*table["mistakes"]} and len(WRONG[identifier]) >= 3
        assert {*asked.symptoms} <= {*table["mistakes"]}


def test_a_function_that_raises_is_named_with_its_rank_and_line_and_the_pool_lives_on(pools):
    body = "if dist.get_rank() == 2:\n        x = {}['samples']\n    return all_reduce(gradient)"
    verdict = judged(pools, "b01", body)
    assert verdict.key == "form.ranks_raised"
    assert "rank 2: line 3 (x = {}['samples']): KeyError" in verdict.text
    assert judged(pools, "b01", "return gradient").key == "b01.exercise.mistakes.own"


def test_a_name_that_ranks_do_not_see_is_explained(pools):
    verdict = judged(pools, "b01", "return my_helper(gradient)")
    assert "'my_helper'" in verdict.text and "it sees its arguments and torch" in verdict.text


def test_a_call_that_other_ranks_leave_out_is_explained(pools):
    verdict = judged(pools, "b01", "return all_reduce(gradient) if dist.get_rank() else gradient")
    assert "line 2 (return all_reduce(gradient)" in verdict.text
    assert "other ranks ended without this call" in verdict.text


def test_a_function_that_hangs_is_ended_and_the_line_of_every_rank_is_named():
    text = """def mean(gradient, samples, all_reduce):
    if dist.get_rank() == 0:
        dist.recv(gradient, 1)
    return all_reduce(gradient)
"""
    asked = ("realrun.lessons.practice:PRACTICE", "weighted_mean", Plan(dp=2))
    with Pool(2) as pool:
        pool.call(*asked, text=text.replace("rank() == 0", "rank() == 2"), sizes=[1, 2])
        with pytest.raises(RunError) as ended:
            pool.call(*asked, timeout_s=5, text=text, sizes=[1, 2])
    said = str(ended.value)
    assert "within 5 s" in said
    assert "rank 0 is at line 3 of mean (dist.recv(gradient, 1))" in said
    assert "rank 1 is at" in said


def test_an_answer_in_no_known_way_wrong_is_told_with_its_fact_and_rank(pools):
    verdict = judged(pools, "b01", "return 2 * all_reduce(gradient)")
    assert verdict.key == "form.ranks_wrong"
    assert "On rank 0, the gradient: another value, where the right value is right" in verdict.text


def test_an_exercise_that_is_run_again_after_the_last_cell_has_new_processes(tmp_path):
    pool = LessonPool(4, tmp_path)
    pool.close()
    try:
        task = practice("b01", pool)
        assert task.judge(task.solution_text()).solved
    finally:
        pool.close()


def test_an_unknown_exercise_is_refused(pools):
    with pytest.raises(InputError, match="no exercise for 'b20'"):
        practice("b20", pools[4])
