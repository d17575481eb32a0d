"""A plan on processes does what one process does, with the communications that simlab lists and the
memory that it says.

By default every two choices meet in one of a few plans; `make grid` (GRID=1) runs every plan.
"""

import os
from itertools import accumulate, combinations

import pytest
import torch
from realrun_plans import (
    ERROR,
    Gradients,
    adam,
    all_plans,
    assert_alike,
    covering,
    data,
    executor_of,
    loss_alone,
    model_of,
    plan_of,
    step_of,
    world,
)
from stage_memory import StageMemory, stage_memory

from realrun.run.conformance import Conformance
from simlab.cost import OpMemory
from simlab.lowering.build import program_of
from simlab.memory.schemes import Use
from simlab.memory.stage import Shape, StageWalk
from simlab.memory.step import StepWalk, scheme_of

CASES = [fields | {"dtype": dtype} for fields in all_plans() for dtype in ERROR]
FEW = covering(CASES)
REST = (
    [case for case in CASES if case["dtype"] == "float32" and case not in FEW]
    if os.environ.get("GRID")
    else []
)


def text(fields):
    """A plan's fields as a test's name."""
    return "-".join(f"{name}={value}" for name, value in fields.items())


# one step
# ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", FEW + REST, ids=text)
def test_loss_gradients_and_norm_are_those_of_one_process_and_communications_those_of_the_list(
    ranks, case
):
    fields = dict(case)
    dtype = fields.pop("dtype")
    found = ranks(world(fields))(step_of, fields, dtype)
    assert_alike(found, loss_alone(fields, dtype), dtype)


@pytest.mark.parametrize("fields", [
    {"dp": 1, "tp": 1, "pp": 4, "cp": 1, "microbatches": 4, "stage_layers": (0, 2, 2, 0)},
    {"dp": 1, "tp": 2, "pp": 2, "cp": 1, "microbatches": 4, "schedule": "interleaved-1f1b", "stage_layers": (0, 3, 1, 0)},
    {"dp": 2, "tp": 1, "pp": 2, "cp": 1, "microbatches": 4, "zero": 3, "schedule": "zb-v", "stage_layers": (0, 1, 3, 0)},
    {"dp": 2, "tp": 1, "pp": 2, "cp": 1, "microbatches": 3, "zero": 1, "schedule": "zb-h1", "stage_layers": (0, 4)},
    {"dp": 1, "tp": 2, "pp": 2, "cp": 1, "microbatches": 3, "sequence_parallel": True, "recompute": "full", "stage_layers": (4, 0)},
], ids=text)  # fmt: skip
def test_stages_of_the_embedding_or_the_head_only_have_one_process_gradients(ranks, fields):
    """As the first and the last of Llama 3 405B's 128 stages (arXiv 2407.21783, section 3.3.2)."""
    for dtype in ERROR:
        found = ranks(world(fields))(step_of, fields, dtype)
        assert_alike(found, loss_alone(fields, dtype), dtype)


@pytest.mark.parametrize("fields", [
    {"dp": 1, "tp": 1, "pp": 2, "cp": 1, "microbatches": 4},
    {"dp": 2, "tp": 1, "pp": 2, "cp": 1, "microbatches": 6, "zero": 1},
    {"dp": 1, "tp": 2, "pp": 2, "cp": 2, "microbatches": 4, "zero": 1, "sequence_parallel": True},
    {"dp": 2, "tp": 1, "pp": 4, "cp": 1, "microbatches": 8, "dp_overlap": False, "recompute": "full"},
], ids=text)  # fmt: skip
def test_a_stage_on_two_ranks_has_one_process_gradients_and_sums_them_as_listed(ranks, fields):
    """DualPipe: rank r and the r-th from the end are one data-parallel group of their stages."""
    fields = fields | {"schedule": "dualpipe"}
    for dtype in ERROR:
        found = ranks(world(fields))(step_of, fields, dtype)
        assert_alike(found, loss_alone(fields, dtype), dtype)
        assert all(rank["bytes"]["dp"][0] > 0 for rank in found)


def test_the_few_have_each_two_values_that_the_whole_grid_has_together():
    pairs = [
        {pair for plan in plans for pair in combinations(plan.items(), 2)} for plans in (FEW, CASES)
    ]
    assert pairs[0] == pairs[1] and len(FEW) < len(CASES) / 50


@pytest.mark.parametrize("other, says", [
    ({"zero": 0}, "begins dp all_gather of .* bytes, but next is compute 0F0 layer 0"),
    ({"microbatches": 2}, "begins dp reduce_scatter of 33024 bytes, but next is compute 0B0 layer 2"),
    ({"dp_overlap": False}, "begins dp all_gather of .* bytes, but next is wait embedding gather"),
])  # fmt: skip
def test_what_another_list_says_is_an_error_at_the_first_difference(ranks, other, says):
    fields = {"dp": 2, "tp": 1, "pp": 1, "cp": 1, "zero": 1}
    with pytest.raises(AssertionError, match=f"ConformanceError: rank . {says}"):
        ranks(2)(stray, fields, fields | other)


def stray(rank, fields, other):
    """A step of the one plan with the other's list."""
    listed = executor_of(rank, other, torch.float32, Gradients).log.instructions
    executor = executor_of(rank, fields, torch.float32, Gradients)
    executor.log.follow(listed)
    executor.step(0, *data(executor.plan, 0))


# memory
# -----------------------------------------------------------------------------------------------------

WIDER = {"layers": 8, "hidden": 64, "heads": 4, "seq": 32, "microbatch_size": 2}


def memory_of(rank, fields):
    """What this rank holds in a step: its pipeline rank, states after the optimizer's step, the
    most of what comes and goes."""
    states, most = {}, {"gradients": 0, "gathered": 0, "activations": 0}

    def look(**held):
        most.update({name: max(size, most[name]) for name, size in held.items()})

    class Looking(Conformance):
        """Looks at all that is held when a unit ends and when a communication begins."""

        def unit_ends(self, op, unit):
            super().unit_ends(op, unit)
            look_at(executor.units.all)

        def begins(self, *communication):
            look_at(executor.units.all)
            return super().begins(*communication)

    def look_at(units):
        gradients = sum(
            p.grad.nbytes for unit in units for p in unit.parameters if p.grad is not None
        )
        gathered = sum(unit.whole_bytes for unit in units if fields.get("zero") == 3)
        look(gradients=gradients, gathered=gathered, activations=executor.activations.bytes)

    def optimizer(parameters):
        own = adam(parameters)
        own.register_step_post_hook(lambda *_: states.update(states_of(executor.units.all, own)))
        return own

    executor = executor_of(rank, fields, torch.float32, optimizer, sizes=WIDER, conformance=Looking)
    executor.step(0, *data(executor.plan, 0))
    ranks = executor.mesh["dp"].size
    padding = [-sum(p.numel() for p in unit.parameters) % ranks for unit in executor.units.all]
    largest = max(sum(p.nbytes for p in unit.parameters) for unit in executor.units.all)
    return {
        "place": executor.place,
        "states": states,
        "most": most,
        "padding": sum(padding),
        "largest": largest,
    }


def states_of(units, optimizer):
    """{state: bytes} of what is there when the optimizer has made its step."""
    storages = [
        tensor.untyped_storage() for unit in units for tensor in (*unit.kept, *unit.updated)
    ]
    return {
        "parameters": sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values()),
        "gradients": sum(p.grad.nbytes for unit in units for p in unit.updated),
        "optimizer": sum(
            t.nbytes
            for state in optimizer.state.values()
            for name, t in state.items()
            if name != "step"
        ),
    }


def predicted(fields, place):
    """[`StageMemory` of each stage] of a pipeline rank."""
    plan, stages = plan_of(fields, WIDER), plan_of(fields, WIDER).stages
    layers = plan.layers_of_stages(WIDER["layers"], stages)
    numbers = program_of(plan).stages_of(place)
    return [
        stage_memory(model_of(WIDER), plan, layers[s], first=s == 0, last=s == stages - 1)
        for s in numbers
    ]


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize("cut", [
    {"dp": 3, "tp": 1, "pp": 1, "cp": 1, "microbatches": 2}, {"dp": 3, "tp": 1, "pp": 2, "cp": 1, "microbatches": 3},
    {"dp": 2, "tp": 2, "pp": 1, "cp": 1, "sequence_parallel": True, "microbatches": 2},
    {"dp": 1, "tp": 1, "pp": 2, "cp": 2, "microbatches": 4, "schedule": "interleaved-1f1b"},
], ids=text)  # fmt: skip
def test_states_are_simlabs_to_the_byte_but_for_what_makes_parts_equal(ranks, cut, zero):
    """A unit that n ranks have equal parts of is padded by less than n numbers, so that a part may
    be a number longer."""
    fields, n = cut | {"zero": zero}, cut["dp"] * cut["cp"]
    for rank in ranks(world(fields))(memory_of, fields):
        expected = StageMemory(*(sum(parts) for parts in zip(*predicted(fields, rank["place"]))))
        padded, part = 4 * rank["padding"], 4 * rank["padding"] / n
        assert rank["states"]["parameters"] == pytest.approx(
            expected.parameters + {0: 0, 1: padded, 2: padded, 3: part}[zero], rel=1e-12
        )
        assert rank["states"]["optimizer"] == pytest.approx(
            expected.optimizer + (2 * part if zero else 0), rel=1e-12
        )
        if zero < 2:  # all gradients are there, whole, until they are reduced
            assert rank["most"]["gradients"] == expected.gradients
        else:
            assert rank["states"]["gradients"] == pytest.approx(
                expected.gradients + part, rel=1e-12
            )
            assert rank["most"]["gradients"] == rank["largest"]  # whole ones of one unit at a time


@pytest.mark.parametrize("prefetch", [0, 1, 2])
def test_zero_3_has_a_unit_and_those_ahead_gathered_and_never_more(ranks, prefetch):
    fields = {
        "dp": 2,
        "tp": 1,
        "pp": 1,
        "cp": 1,
        "zero": 3,
        "prefetch": prefetch,
        "microbatches": 2,
    }
    plan, shape = plan_of(fields, WIDER), Shape(("layer",) * WIDER["layers"], True, True)
    walk = StageWalk(model_of(WIDER), plan, shape, scheme_of(model_of(WIDER), plan, shape))
    expected, layer = walk.op(Use("B")).largest, 12 * 64**2 + 13 * 64
    for rank in ranks(2)(memory_of, fields):
        assert rank["most"]["gathered"] == (1 + prefetch) * 4 * layer
        assert rank["most"]["gathered"] == expected["unsharded_parameters"]


@pytest.mark.parametrize(
    "pipeline", [{"pp": 1}, {"pp": 2}, {"pp": 2, "schedule": "zb-h1"}], ids=text
)
def test_zero_3_without_resharding_has_all_units_gathered_and_frees_them_in_the_end(
    ranks, pipeline
):
    fields = {"dp": 2, "tp": 1, "cp": 1, "zero": 3, "reshard": False, "microbatches": 3} | pipeline
    plan = plan_of(fields, WIDER)
    walk = StepWalk(model_of(WIDER), plan, program_of(plan), plan.layers_of_stages(WIDER["layers"]))
    for rank in ranks(world(fields))(memory_of, fields):
        held = [its.held["unsharded_parameters"] for its in walk.moments(rank["place"])]
        assert rank["most"]["gathered"] == pytest.approx(max(held) + 4 * rank["padding"])
        assert rank["states"]["parameters"] < max(held)


@pytest.mark.parametrize("fields", [
    {"dp": 1, "tp": 1, "pp": 1, "cp": 1}, {"dp": 1, "tp": 2, "pp": 1, "cp": 1},
    {"dp": 1, "tp": 2, "pp": 1, "cp": 1, "sequence_parallel": True}, {"dp": 1, "tp": 1, "pp": 1, "cp": 2},
    {"dp": 1, "tp": 1, "pp": 1, "cp": 2, "cp_kind": "all-to-all"}, {"dp": 2, "tp": 1, "pp": 1, "cp": 1, "zero": 3},
    {"dp": 1, "tp": 2, "pp": 1, "cp": 1, "recompute": "full"}, {"dp": 1, "tp": 1, "pp": 4, "cp": 1, "microbatches": 6},
    {"dp": 1, "tp": 1, "pp": 4, "cp": 1, "microbatches": 6, "schedule": "gpipe"},
    {"dp": 1, "tp": 1, "pp": 4, "cp": 1, "microbatches": 6, "schedule": "zb-h1"},
    {"dp": 1, "tp": 1, "pp": 2, "cp": 1, "microbatches": 4, "schedule": "interleaved-1f1b"},
], ids=text)  # fmt: skip
def test_the_peak_of_activations_is_simlabs_and_what_it_leaves_out(ranks, fields):
    for rank in ranks(world(fields))(memory_of, fields):
        expected = peak_of_activations(fields, rank["place"])
        assert rank["most"]["activations"] == pytest.approx(
            expected, rel=0.03 if fields.get("schedule") == "zb-h1" else 0.01
        )


def peak_of_activations(fields, place):
    """Of simlab's bytes per stage and microbatch, along the rank's ops, with what these leave out:

    - all-to-all attention keeps its result as it computes it, and the product after it as it was
    sent.
    """
    model, plan = model_of(WIDER), plan_of(fields, WIDER)
    program = program_of(plan)
    layers = plan.layers_of_stages(WIDER["layers"], program.stages)
    forward, between = StepWalk(model, plan, program, layers).activations()
    tokens = plan.microbatch_size * plan.seq // plan.cp
    result = 4 * tokens * 64 * WIDER["layers"] / program.stages
    if plan.cp_kind == "all-to-all":
        forward = tuple(size + result for size in forward)
    held = OpMemory(activations=forward, weight_grad=between)
    return max(accumulate(held.change(op.stage, op.kind) for op in program.ranks[place]))
