"""What a learner is told of a wrong attempt that is none of the known mistakes: what its answers have
in common, or what one of them shows by itself."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from math import ceil

import pytest

import simlab as sl
from simlab.lessons import book
from simlab.lessons.answers import alike
from simlab.lessons.exercise import Outcome


def verdict(identifier, attempt):
    return book.exercise(identifier).judge(attempt)


@pytest.fixture(autouse=True)
def english(monkeypatch):
    monkeypatch.setenv("SIMLAB_LANG", "en")


def test_a_whole_number_must_be_exact():
    assert alike(250, 250) and alike(250.0, 250) and not alike(251, 250)
    assert alike(250.5, 250.0) and not alike(True, 1)


@pytest.mark.parametrize(
    ("identifier", "attempt", "told"),
    [
        (
            "b07",
            lambda p, m, rank: p + m + p - 1 - rank,
            "In every set it is 1 more than the right answer.",
        ),
        (
            "d10",
            lambda gpus_before, step_before, gpus, step, kind: (
                gpus_before * step_before / gpus / step
            ),
            "It is wrong exactly where kind = weak.",
        ),
        (
            "w05",
            lambda parameters, zero, ranks, microbatches: (
                {0: 2, 1: 2, 2: 2 * microbatches + 1, 3: 3 * microbatches}[zero]
                * (2 * parameters * (ranks - 1) / ranks)
            ),
            "It is wrong exactly where zero = 2.",
        ),
        (
            "w10",
            lambda n, hidden, link, peak: (
                12 * (n - 1) / n * hidden / link / (72 * hidden**2 / n / peak)
            ),
            "In every set it is 0.75 times the right answer.",
        ),
        (
            "w13",
            lambda p, forward_s, backward_s, reduce_s, share: (
                (p - 1 + reduce_s / (forward_s + backward_s)) / share
            ),
            "Asked for is a whole number.",
        ),
        ("t5", lambda order, sizes, node: [*order], "Asked for is a set, and this is a list."),
        ("b15", lambda mfu, rate, peak, **_: mfu * peak / rate, "a str, and this is a float."),
        (
            "d01",
            lambda dp, tp, pp, microbatches, seq, hidden, layers, parameters: {
                "tp": microbatches * (layers * 8 + 2) * (tp - 1) / tp * seq * hidden * 2,
                "pp": microbatches * seq * hidden * 2 / tp,
                "dp": 8 * (dp - 1) / dp * parameters,
            },
            "Wrong is pp; right is tp, dp.",
        ),
        ("d01", lambda **case: {"tp": 1.0}, "has the keys tp, pp, dp."),
        (
            "w01",
            lambda parameters, tokens, days, flops_per_s, memory_bytes, activations_bytes: (
                ceil(16 * parameters / (memory_bytes - activations_bytes))
                + ceil(6 * parameters * tokens / flops_per_s / days / 86400)
            ),
            "It is 1.0",
        ),
    ],
)
def test_what_wrong_answers_have_in_common_is_said(identifier, attempt, told):
    found = verdict(identifier, attempt)
    assert found.key == "form.wrong" and told in found.text


def without_room_for_a_pair(rank, p, m, cap):
    w = min(m, p - 1 - rank, cap)
    ops = [f"{rank}F{i}" for i in range(w)]
    ops += [op for i in range(w, m) for op in (f"{rank}F{i}", f"{rank}B{i - w}")]
    return ops + [f"{rank}B{i}" for i in range(m - w, m)]


def backward_first(rank, p, m, cap):
    w = min(m, p - 1 - rank, cap)
    ops = [f"{rank}F{i}" for i in range(w)]
    ops += [op for i in range(w, m) for op in (f"{rank}B{i - w}", f"{rank}F{i}")]
    return ops + [f"{rank}B{i}" for i in range(m - w, m)]


def one_plan_for_all(nodes, sequences, seq):
    plan = {"tp": 8, "zero": 1, "recompute": "full", "sequence_parallel": True, "seq": seq}
    return sl.Plan(dp=nodes, microbatches=sequences // nodes, **plan)


def never_hardware(mfu, rate, peak, parameters, lookup, layers, hidden, seq):
    """What somebody answers who has forgotten it, and computes the others well."""
    matrices, scores = 6 * (parameters - lookup), 12 * layers * hidden * seq
    ways = {"6P": 6 * parameters, "matrices": matrices}
    ways |= {"causal": matrices + scores / 2, "full": matrices + scores}
    return min(ways, key=lambda way: abs(ways[way] * rate / peak - mfu))


@pytest.mark.parametrize(
    ("identifier", "attempt", "mistake"),
    [
        ("d05", without_room_for_a_pair, "one_too_many"),
        ("b03", lambda n: [[(rank + 1) % n for rank in range(n)]] * (n - 1), "one_way"),
        ("b10", lambda cp: [(rank, 2 * cp - rank) for rank in range(cp)], "copies"),
        ("b10", lambda cp: [(rank, rank + cp) for rank in reversed(range(cp))], "striped"),
        ("b10", lambda cp: [*range(cp)], "no_pairs"),
        (
            "b03",
            lambda n: [[rank ^ n // 2 for rank in range(n)]] * (n.bit_length() - 1),
            "same_partner",
        ),
        ("w11", lambda p, share: int((p - 1) * (1 - share) / share) + 1, "one_more"),
        ("d11", one_plan_for_all, "does_not_fit"),
        ("b15", never_hardware, "never_hardware"),
        ("t4", lambda layers, room: "gather 0; forward 0", "no_item"),
        ("t4", lambda layers, room: ["Gather 0", "forward 0"], "no_item"),
        (
            "e05",
            lambda loads, ranks: [1 + expert % ranks for expert in range(len(loads))],
            "no_rank",
        ),
    ],
)
def test_wrong_answers_show_some_mistakes_by_themselves(identifier, attempt, mistake):
    assert verdict(identifier, attempt).key == f"{identifier}.exercise.mistakes.{mistake}"


@pytest.mark.parametrize(
    ("identifier", "attempt", "mistake"),
    [
        ("w11", lambda p, share: (p - 1) / share, "over_ideal"),
        ("w11", lambda p, share: int((p - 1) / share), "over_ideal"),
        ("w11", lambda p, share: round(p * (1 - share) / share), "all_stages"),
        ("w13", lambda p, share, **_: int((p - 1) / share), "bubble_only"),
    ],
)
def test_a_mistake_is_known_before_its_number_is_rounded(identifier, attempt, mistake):
    """In one of the sets, (p - 1) / share is one more than what is asked for."""
    assert verdict(identifier, attempt).key == f"{identifier}.exercise.mistakes.{mistake}"


def test_a_fault_of_one_wrong_answer_is_not_told_as_that_of_all():
    """Some of these orders begin with a backward, others only hold less than they might."""
    assert verdict("d05", backward_first).key == "form.wrong"


def sent(dp, tp, pp, microbatches, seq, hidden, layers, parameters, *, calls, gradient_bytes):
    state_bytes = seq * hidden * 2
    return {
        "tp": microbatches * (layers * calls + 2) * (tp - 1) / tp * state_bytes,
        "pp": 2 * microbatches * state_bytes / tp,
        "dp": 2 * (dp - 1) / dp * gradient_bytes * parameters,
    }


def test_each_key_of_a_table_has_a_mistake_of_its_own():
    found = verdict("d01", lambda **case: sent(**case, calls=8, gradient_bytes=2))
    assert found.key == "d01.exercise.mistakes.half_gradients"
    found = verdict("d01", lambda **case: sent(**case, calls=4, gradient_bytes=2))
    assert "the two all-reduces of the forward" in found.text
    assert "gradients have 4 bytes here" in found.text and "right is pp" in found.text


@pytest.mark.parametrize("in_a_thread", [False, True])
def test_a_loop_without_end_is_stopped_and_its_line_said(in_a_thread):
    def endless(p, m, rank):
        slot = 0
        while slot >= 0:
            try:
                slot += 1
            except Exception:
                break

    asked = replace(book.exercise("b07"), limit_s=0.2)
    with ThreadPoolExecutor(1) as beside:
        found = (
            beside.submit(asked.judge, endless).result() if in_a_thread else asked.judge(endless)
        )
    lines = range(endless.__code__.co_firstlineno, endless.__code__.co_firstlineno + 7)
    assert found.key == "form.no_end"
    assert any(f"line {line} of its cell" in found.text for line in lines)
    assert book.exercise("b07").judge(lambda p, m, rank: 2 * p + m - 2 - rank).solved


def test_an_error_is_said_with_the_line_of_the_learners_own_function():
    def raises_elsewhere(p, m, rank):
        return sl.generate("no such schedule", p, m)

    found = verdict("b07", raises_elsewhere)
    line = raises_elsewhere.__code__.co_firstlineno + 1
    assert found.key == "form.raised" and f"line {line} of its cell" in found.text


def test_bytes_of_the_attention_that_are_left_out_are_noticed():
    def without_heads(parameters, layers, hidden, heads, seq):
        return int(12 * parameters / (layers * seq * 34 * hidden)) + 1

    assert not verdict("w02", without_heads).solved


def test_partners_that_do_not_choose_each_other_are_no_exchange():
    """It is a way to add everything up, and another one than the exercise asks for."""

    def passed_on(n):
        rounds = [2**k for k in range(n.bit_length() - 1)]
        return [[(rank + distance) % n for rank in range(n)] for distance in rounds]

    assert verdict("b03", passed_on).key == "b03.exercise.mistakes.one_way"


@pytest.mark.parametrize("answer", [10**400, -(10**400), float("inf"), float("nan")])
def test_a_number_that_is_no_float_gets_a_verdict(answer):
    assert not verdict("b07", lambda p, m, rank: answer).solved


class Array:
    """It compares part by part, and has no truth."""

    def __eq__(self, other):
        return self

    def __bool__(self):
        raise ValueError("the truth of an array is ambiguous")


ROUND = []
ROUND.append(ROUND)
ODD = [
    {0: 1},
    {},
    [1],
    [[1], [2]],
    [None],
    "gather 0",
    b"a",
    {1},
    2j,
    int,
    10**5000,
    ROUND,
    ("a", None),
    Array(),
]
ODD += [{"tp": []}, lambda: 1, ValueError("x"), range(3), [Array()]]
SLOW = {"d11", "d23", "w11", "w13"}  # their oracles take seconds


def looked_up(function, cases):
    """The function, computed once for each of `cases`."""
    found = [function(**case) for case in cases]
    return lambda **case: found[cases.index(case)]


@pytest.mark.parametrize("name", sorted({*book.exercises()} - SLOW))
def test_an_answer_of_any_kind_gets_a_verdict(name):
    asked = replace(book.exercise(name), sets=2)
    cases = asked.cases()
    mistakes = {its: looked_up(wrong, cases) for its, wrong in asked.mistakes.items()}
    asked = replace(asked, oracle=looked_up(asked.oracle, cases), mistakes=mistakes)
    for answer in ODD:
        said = asked.verdict(cases, [Outcome(answer)] * 2)
        assert not said.solved and said.text and len(said.text) < 1500


def test_nothing_is_no_multiple_of_the_right_answer():
    said = verdict("e04", lambda experts, k, nodes: 0.0)
    assert said.key == "form.wrong" and "times" not in said.text


def test_an_array_is_no_number():
    for expected in (1, 1.0, True, "1", None, {1}):
        assert not alike(Array(), expected)
