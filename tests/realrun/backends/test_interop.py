"""torch's schedule objects read as programs. torch needs no processes for that, only a stage's
numbers."""

from types import SimpleNamespace

import pytest
import torch
from torch.distributed.pipelining import schedules

from realrun import program_from_schedule
from simlab import InputError, Op, Program, ProgramError, generate, validate

ONE_STAGE_PER_RANK = ("ScheduleGPipe", "Schedule1F1B")
V_SHAPED = ("ScheduleZBVZeroBubble", "ScheduleDualPipeV")
CHUNKED = ("ScheduleInterleaved1F1B", "ScheduleLoopedBFS", "ScheduleInterleavedZeroBubble")
OURS = {
    "ScheduleGPipe": "gpipe", "Schedule1F1B": "1f1b", "ScheduleInterleaved1F1B": "interleaved-1f1b", "ScheduleLoopedBFS": "looped-bfs",
    "ScheduleZBVZeroBubble": "zb-v", "ScheduleDualPipeV": "dualpipe-v",
}  # fmt: skip
SIZES = [(2, 4), (3, 7), (4, 4), (4, 8), (4, 12), (5, 10), (8, 32)]


def schedule(name, ranks, microbatches, chunks=1, rank=0):
    """torch's schedule object as `rank` makes it."""
    facts = {
        "group_rank": rank,
        "group_size": ranks,
        "num_stages": ranks * chunks,
        "submod": torch.nn.Identity(),
        "has_backward": True,
    }
    stages = [
        SimpleNamespace(
            stage_index=chunk * ranks + rank, group=None, is_first=False, is_last=False, **facts
        )
        for chunk in range(chunks)
    ]
    return getattr(schedules, name)(
        stages[0] if name in ONE_STAGE_PER_RANK else stages, microbatches
    )


def loaded(program, folder, format="compute_only"):
    """torch's runtime with `program` loaded from a CSV; in the form with communication ops, one
    that torch wrote itself."""

    def runtime_of(name, format):
        chunks = program.stages // len(program.ranks)
        numbers = len(program.ranks), program.microbatches, chunks
        runtime = schedule("_PipelineScheduleRuntime", *numbers)
        runtime._load_csv(folder / name, format=format)
        return runtime

    program.to_csv(folder / "compute.csv")
    runtime = runtime_of("compute.csv", "compute_only")
    if format == "compute_comms":
        runtime._dump_csv(folder / "comms.csv", format=format)
        assert "SEND_F" in (folder / "comms.csv").read_text()
        runtime = runtime_of("comms.csv", format)
    return runtime


@pytest.mark.parametrize("ranks, microbatches", SIZES)
@pytest.mark.parametrize(
    "name, chunks", [*((name, 1) for name in ONE_STAGE_PER_RANK), *((name, 2) for name in V_SHAPED)]
)
def test_a_schedule_of_torchs_is_ours_op_by_op(name, chunks, ranks, microbatches):
    if name == "ScheduleDualPipeV" and microbatches < 2 * ranks:
        with pytest.raises(ValueError, match="at least as many microbatches as stages"):
            schedule(name, ranks, microbatches, chunks)
        return
    program = program_from_schedule(schedule(name, ranks, microbatches, chunks))
    assert validate(program).ranks == generate(OURS[name], ranks, microbatches).ranks
    assert program.name == name


@pytest.mark.parametrize("chunks", [2, 3])
# torch refuses that one
@pytest.mark.parametrize("ranks, microbatches", [size for size in SIZES if size != (3, 7)])
@pytest.mark.parametrize("name", CHUNKED)
def test_a_chunked_schedule_of_torchs_is_valid_and_ours_where_we_have_it(
    name, ranks, microbatches, chunks
):
    program = validate(program_from_schedule(schedule(name, ranks, microbatches, chunks)))
    assert (len(program.ranks), program.stages, program.microbatches) == (
        ranks,
        ranks * chunks,
        microbatches,
    )
    if name in OURS:
        assert program.ranks == generate(OURS[name], ranks, microbatches, chunks=chunks).ranks


def torch_order(name, ranks, microbatches, chunks):
    """[per rank] torch's text of the compute ops and pairs; None where torch refuses the
    numbers."""
    try:
        order = schedule(name, ranks, microbatches, chunks).pipeline_order
    except ValueError:
        return None
    cells = [[str(action) for action in order[rank] if action] for rank in range(ranks)]
    return [[cell for cell in row if not cell.endswith("REDUCE_GRAD")] for row in cells]


def our_order(name, ranks, microbatches, **options):
    try:
        return generate(name, ranks, microbatches, **options).ranks_as_text
    except InputError:
        return None


@pytest.mark.parametrize("chunks", [2, 3, 4])
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [("interleaved-1f1b", "ScheduleInterleaved1F1B"), ("looped-bfs", "ScheduleLoopedBFS")],
)
def test_chunked_schedules_are_torchs_op_by_op(ours, theirs, chunks):
    for ranks in range(2, 9):
        for microbatches in range(1, 33):
            # torch has no ragged groups
            if expected := torch_order(theirs, ranks, microbatches, chunks):
                assert our_order(ours, ranks, microbatches, chunks=chunks) == expected, (
                    ranks,
                    microbatches,
                )


@pytest.mark.parametrize(
    ("ours", "theirs"), [("zb-v", "ScheduleZBVZeroBubble"), ("dualpipe-v", "ScheduleDualPipeV")]
)
def test_v_shaped_schedules_are_torchs_op_by_op(ours, theirs):
    for ranks in range(2, 9):
        for microbatches in range(1, 33):
            assert our_order(ours, ranks, microbatches) == torch_order(
                theirs, ranks, microbatches, 2
            ), (ranks, microbatches)


@pytest.mark.parametrize("ranks, microbatches", [(2, 2), (2, 8), (4, 4), (4, 8), (8, 32)])
def test_torchs_interleaved_zero_bubble_on_one_stage_a_rank_is_our_zb_h1(ranks, microbatches):
    program = program_from_schedule(schedule("ScheduleInterleavedZeroBubble", ranks, microbatches))
    assert program.ranks == generate("zb-h1", ranks, microbatches).ranks


@pytest.mark.parametrize(
    "name, chunks",
    [("Schedule1F1B", 1), ("ScheduleInterleavedZeroBubble", 3), ("ScheduleDualPipeV", 2)],
)
def test_every_ranks_object_gives_the_whole_program(name, chunks):
    programs = [program_from_schedule(schedule(name, 4, 8, chunks, rank)) for rank in range(4)]
    assert all(program == programs[0] for program in programs)


@pytest.mark.parametrize("format", ["compute_only", "compute_comms"])
@pytest.mark.parametrize(
    "name", ["gpipe", "1f1b", "interleaved-1f1b", "zb-h2", "zb-v", "dualpipe-v"]
)
def test_what_torchs_runtime_loaded_comes_back(name, format, tmp_path):
    ours = generate(name, 4, 8)
    assert program_from_schedule(loaded(ours, tmp_path, format)).ranks == ours.ranks


def test_what_was_loaded_last_is_read_for_it_is_what_torch_runs(tmp_path):
    runtime = loaded(generate("gpipe", 4, 8), tmp_path)
    loaded(generate("1f1b", 4, 8), tmp_path, "compute_comms")
    # leaves the compute-only list as it was
    runtime._load_csv(tmp_path / "comms.csv", format="compute_comms")
    assert program_from_schedule(runtime).ranks == generate("1f1b", 4, 8).ranks


# the mistake in torch's list of 1F1B
# -------------------------------------------------------------------------


def as_written(name, ranks):
    """An object of a class called `name` with this order: what a version of torch might have."""
    return type(name, (), {"pipeline_order": dict(enumerate(ranks))})()


def mistaken_1f1b():
    """[per rank] our 1F1B on 3 ranks with torch's mistake in it."""
    *others, last = generate("1f1b", 3, 5).ranks
    return [
        *others,
        [op._replace(microbatch=op.microbatch + 1) if op.kind == "F" else op for op in last],
    ]


def test_torchs_1f1b_has_the_mistake_or_none():
    """If this fails, torch has changed its list: then see what the correction is still for."""
    order = schedule("Schedule1F1B", 3, 5).pipeline_order
    ops = [
        [str(action) for action in order[rank] if action and action.microbatch_index is not None]
        for rank in range(3)
    ]
    assert ops in [
        [list(map(str, rank)) for rank in mistaken_1f1b()],
        generate("1f1b", 3, 5).ranks_as_text,
    ]


def test_the_mistake_is_corrected_in_1f1b_only():
    assert (
        program_from_schedule(as_written("Schedule1F1B", mistaken_1f1b())).ranks
        == generate("1f1b", 3, 5).ranks
    )
    with pytest.raises(ProgramError, match="rank 2: 2F0 never runs, but 2B0 needs it"):
        validate(program_from_schedule(as_written("ScheduleMine", mistaken_1f1b())))


def test_a_1f1b_without_the_mistake_or_with_another_is_read_as_it_stands():
    right = generate("1f1b", 3, 5)
    assert program_from_schedule(as_written("Schedule1F1B", right.ranks)).ranks == right.ranks
    other = [*mistaken_1f1b()[:2], mistaken_1f1b()[2][1:]]
    assert program_from_schedule(as_written("Schedule1F1B", other)).ranks == Program(other).ranks


# what cannot be read
# -----------------------------------------------------------------------------------------


def test_an_object_without_an_order_is_refused():
    nothing_loaded = schedule("_PipelineScheduleRuntime", 4, 8)
    for made in (
        nothing_loaded,
        schedules._ScheduleForwardOnly(nothing_loaded._stages[0], 8),
        "1f1b",
    ):
        with pytest.raises(InputError, match="has no pipeline_order to read"):
            program_from_schedule(made)


def test_an_unknown_kind_of_action_is_refused_by_rank_and_name():
    with pytest.raises(InputError, match=r"rank 1: .* no op of kind X is known; there is F, B"):
        program_from_schedule(as_written("ScheduleNew", [[Op(0, "F", 0)], [Op(1, "X", 0)]]))
    with pytest.raises(InputError, match="no F, B, I or W"):
        program_from_schedule(as_written("ScheduleNew", [[None], []]))
