"""Every public function that takes numbers says which one is wrong, and accepts none silently."""

import math

import pytest

import simlab as sl
from simlab.errors import (
    MOST_LINE,
    InputError,
    bounded,
    require_amount,
    require_positive,
    require_whole,
    shortened,
)
from simlab.lowering.instructions import rank_instructions

MODEL = sl.Model(name="m", layers=4, hidden=64, heads=4, vocab=100, seq=64)
NODE = sl.load_cluster("dgx-h100")
PLAN = sl.Plan(dp=2, pp=2, tp=2, microbatches=4)
PROGRAM = sl.generate("1f1b", 2, 4)
TRACE = sl.simulate(PROGRAM, sl.OpTimes(forward_s=1.0, backward_s=2.0))
PREDICTION = sl.predict(MODEL, PLAN, NODE)
GROUP = sl.GroupShape(4, 4)

NO_NUMBERS = ["abc", [], math.nan]
COUNTS = [0, -1, math.inf, 1.5, True, *NO_NUMBERS]
AMOUNTS = [-1, math.inf, *NO_NUMBERS]
INDICES = [-1, 9, 0.5, math.inf, *NO_NUMBERS]
CASES = {
    "Layout dp": (lambda value: sl.Layout(dp=value), [*COUNTS, None]),
    "Layout shards": (lambda value: sl.Layout(dp=4, shards=value), [*COUNTS, 3, 8]),
    "Layout.rank": (lambda value: sl.Layout(dp=4).rank(dp=value), INDICES),
    "Layout.coordinates": (sl.Layout(dp=4).coordinates, INDICES),
    "Layout.peer": (lambda value: sl.Layout(pp=4).peer(0, value), INDICES),
    "Layout.group": (lambda value: sl.Layout(dp=4).group(value, 0), ["sp", [], None]),
    "Layout.in_nodes": (lambda value: sl.Layout(dp=4).in_nodes("dp", value), [*COUNTS, None]),
    "Prediction.memory_stack": (PREDICTION.memory_stack, INDICES),
    "memory_curve": (lambda value: sl.memory_curve(TRACE, value), [*INDICES, None]),
    "rank_instructions": (lambda value: rank_instructions(MODEL, PLAN, PROGRAM, value), INDICES),
    "rank_instructions' context rank": (
        lambda value: rank_instructions(MODEL, PLAN, PROGRAM, 0, context_rank=value),
        [*INDICES, 1],
    ),
    "ring_work": (sl.ring_work, [*COUNTS, None]),
    "context_chunks": (lambda value: sl.context_chunks(value, 4), [*INDICES, None]),
    "context_chunks' cp": (lambda value: sl.context_chunks(0, value), [*COUNTS, None]),
    "generate": (lambda value: sl.generate("1f1b", value, 2), [*COUNTS, None]),
    "generate's name": (lambda value: sl.generate(value, 2, 2), [0, None, []]),
    "load_model": (sl.load_model, [0, None, []]),
    "load_cluster": (sl.load_cluster, [0, None, []]),
    "best_partition": (lambda value: sl.best_partition([1, 2, 3], value), [*COUNTS, None, 4]),
    "best_partition's work": (lambda value: sl.best_partition([1, value], 1), [*AMOUNTS, None]),
    "breaches": (lambda value: sl.breaches(TRACE, value), [-1, *NO_NUMBERS, None, [1.0]]),
    "all_reduce_rounds": (
        lambda value: sl.all_reduce_rounds("ring", range(4), value),
        [*AMOUNTS, None],
    ),
    "all_reduce_rounds' name": (
        lambda value: sl.all_reduce_rounds(value, range(4), 1.0),
        [0, None, []],
    ),
    "collective_s": (
        lambda value: sl.collective_s("all_reduce", value, GROUP, NODE),
        [*AMOUNTS, None],
    ),
    "p2p_s": (lambda value: sl.p2p_s(value, NODE), [*AMOUNTS, None]),
    "p2p_s' share": (lambda value: sl.p2p_s(1, NODE, share=value), [0, 2, -1, *NO_NUMBERS]),
    "faster_link": (lambda value: sl.faster_link(PREDICTION, "intra", value), [0, *AMOUNTS, None]),
    "closed_bubble_s": (
        lambda value: sl.closed_bubble_s(PROGRAM, value, 1.0, 1.0),
        [*AMOUNTS, None],
    ),
    "Link": (lambda value: sl.Link(latency_s=value), [*AMOUNTS, None]),
    "Link's bandwidth": (
        lambda value: sl.Link(bandwidth_bytes_per_s=value),
        [0, -1, *NO_NUMBERS, None],
    ),
    "OpTimes": (
        lambda value: sl.OpTimes(forward_s=value, backward_s=1.0),
        [-1, math.inf, math.nan],
    ),
    "layer_flops": (MODEL.layer_flops, COUNTS),
    "layer_activations": (MODEL.layer_activations, [*COUNTS, None]),
    "layer_activations' tp": (lambda value: MODEL.layer_activations(1, tp=value), [*COUNTS, None]),
    "layers_of_stages": (PLAN.layers_of_stages, [*COUNTS, None]),
    "check": (lambda value: PLAN.check(MODEL, value), COUNTS),
}


@pytest.mark.parametrize("name", CASES)
def test_a_wrong_number_is_refused(name):
    call, wrong = CASES[name]
    for value in wrong:
        with pytest.raises(InputError) as error:
            call(value)
        assert "\n" not in str(error.value) and shortened(value) in str(error.value)


@pytest.mark.parametrize("name", [field.name for field in sl.plan_fields()])
def test_a_plans_message_stays_short_whatever_is_given(name):
    bomb = ["x"]
    for _ in range(60):
        bomb = [bomb] * 10  # 10**60 texts, if each was written
    for value in (10**5000, "x" * 10**5, bomb, {"a": bomb}, math.inf, -math.inf):
        with pytest.raises(InputError) as error:
            sl.Plan(**{name: value})
        assert len(str(error.value)) < 500 and "x" * 61 not in str(error.value)


def test_a_value_is_quoted_in_60_characters():
    assert (
        shortened(3) == "3" and shortened("a b") == "'a b'" and shortened(10**59) == "1" + 59 * "0"
    )
    assert shortened(10**5000) == "a number of 5001 digits"
    assert all(
        len(shortened(value)) <= 60 for value in ("x" * 100, [1] * 100, [["a" * 90] * 9] * 9)
    )


@pytest.mark.parametrize("require", [require_whole, require_positive, require_amount])
def test_no_number_is_taken_for_one(require):
    for value in (10**400, True, None, "1", math.nan):
        with pytest.raises(InputError, match=r"^x = "):
            require("x", value)
    require("x", 1)


def test_no_error_fills_a_screen():
    assert bounded("a" * MOST_LINE) == "a" * MOST_LINE
    cut = bounded("begin " + "9" * 100_000 + " end")
    assert len(cut) == MOST_LINE and cut.startswith("begin 9") and cut.endswith("9 end")
