"""What a pool's ranks can be asked for by name, and how a lesson keeps what they answered."""

import json
import math
from dataclasses import replace

import pytest

from realrun.lessons import demonstrations, lesson
from realrun.lessons.execute import demonstrate
from realrun.run.job import Job
from simlab.collectives import closed_form_s
from simlab.errors import InputError
from simlab.lessons import book
from simlab.lowering.instructions import BEGIN, rank_instructions
from simlab.spec.plan import Plan
from simlab.trace import Trace
from tests.support.patience import eventually

FOUR, SPLIT = Plan(dp=4), Plan(tp=4)


@pytest.fixture(scope="module")
def pool(pools):
    return pools(4)


def test_messages_and_all_reduces_take_a_paced_links_time_and_all_reduces_are_right(pool):
    latency_s, bytes_per_s, sizes = 0.02, 1e7, [1024, 2**18]
    given = {"sizes": sizes, "pace": (latency_s, bytes_per_s), "tries": 2}
    shortest = {}  # {(what, bytes): times what a quiet machine takes}

    def note(what, seconds, expected_s):
        for size, taken_s in zip(sizes, seconds):
            times = taken_s / expected_s(size)
            shortest[what, size] = min(times, shortest.get((what, size), math.inf))

    def as_expected():
        """Whether each has once hardly been slower, whatever else this machine does."""
        for at_once in (False, True):
            seconds = demonstrate(pool, "messages", FOUR, at_once=at_once, **given)[0]
            note(at_once, seconds, lambda size: latency_s + size / bytes_per_s)
        algorithms = ["ring", "tree", "gloo"]
        answer = demonstrate(pool, "all_reduces", FOUR, algorithms=algorithms, **given)[0]
        assert answer["wrong"] < 1e-6 and min(answer["seconds"]["gloo"]) > 0
        for name in ("ring", "tree"):
            note(
                name,
                answer["seconds"][name],
                lambda size, name=name: closed_form_s(name, 4, size, latency_s, bytes_per_s),
            )
        return max(shortest.values()) < 1.35

    assert eventually(as_expected), shortest
    assert min(shortest.values()) > 0.97


SMALL = {"layers": 2, "hidden": 32, "heads": 2, "seq": 16}


@pytest.mark.parametrize("microbatches", [1, 2])
@pytest.mark.parametrize(
    ("wrapping", "reshard"), [("simulator's units", True), ("kept after the forward", False)]
)
def test_fsdp2_sends_what_the_simulator_lists_unit_by_unit_in_its_order(
    pool, wrapping, reshard, microbatches
):
    job = Job(plan={"dp": 4, "zero": 3, "microbatches": microbatches}, sizes=SMALL)
    listed = [
        (f"{i.op} {i.name}", i.size_bytes) for i in rank_instructions(job.model, replace(job.executed, reshard=reshard), job.program)
        if i.action == BEGIN and i.kind != "all_reduce"
    ]  # fmt: skip
    for answer in demonstrate(
        pool, "fully_sharded", FOUR, sizes=SMALL, wrapping=wrapping, microbatches=microbatches
    ):
        spans = Trace.from_json(answer["trace"]).spans
        assert [(span.op, span.bytes) for span in spans if span.stream == "dp"] == listed
        assert answer["sent_bytes"] == 3 / 4 * sum(size for _, size in listed)
        computed = [span.op for span in spans if span.stream == "compute"]
        units = ["embedding", "layer 0", "layer 1", "head"]
        assert computed == [
            f"0{k}{i} {u}"
            for i in range(microbatches)
            for k, its in (("F", units), ("B", units[::-1]))
            for u in its
        ]


def test_fsdp2_with_its_defaults_keeps_the_root_gathered_and_pads_each_weight(pool):
    def gathered(**sizes):
        (answer, *_) = demonstrate(
            pool, "fully_sharded", FOUR, sizes=SMALL | sizes, wrapping="layers and root"
        )
        return [
            (span.op, span.bytes)
            for span in Trace.from_json(answer["trace"]).spans
            if span.op.endswith("gather")
        ]

    assert [op for op, _ in gathered()] == [
        "0F0 root gather", "0F0 layer 0 gather", "0F0 layer 1 gather", "0B0 layer 1 gather", "0B0 layer 0 gather"
    ]  # fmt: skip
    sizes = dict(gathered(hidden=30))
    job = Job(plan={"dp": 4, "zero": 3}, sizes=SMALL | {"hidden": 30})
    listed = next(i.size_bytes for i in job.instructions(0) if i.name == "layer 0 gather")
    assert listed < sizes["0F0 layer 0 gather"] < 1.1 * listed


def test_mean_gradient_is_the_whole_batchs_for_equal_or_weighted_parts_of_independent_samples(pool):
    def error(**given):
        answers = demonstrate(pool, "averaged", FOUR, **given)
        assert len(set(answers)) == 1
        return answers[0]

    assert error(sizes=[8, 8, 8, 8]) < 1e-14
    assert error(sizes=[2, 4, 8, 18], weighted=True) < 1e-14
    assert error(sizes=[2, 4, 8, 18]) > 0.1
    assert error(sizes=[8, 8, 8, 8], batch_norm=True) > 0.1


def test_only_a_last_forward_and_backward_outside_no_sync_keep_the_ranks_together(pool):
    answers = {
        loop: demonstrate(pool, "accumulated", FOUR, loop=loop, steps=3)[0]
        for loop in ("never", "all but the last", "all", "last backward outside")
    }
    assert answers["never"]["apart"] == answers["all but the last"]["apart"] == [0.0, 0.0, 0.0]
    assert answers["never"]["reduced_bytes"] == 4 * answers["all but the last"]["reduced_bytes"] > 0
    for loop in ("all", "last backward outside"):
        assert answers[loop]["reduced_bytes"] == 0
        assert min(answers[loop]["apart"]) > 0.01


def test_buckets_change_calls_and_not_bytes(pool):
    alone, some, one = (
        demonstrate(pool, "buckets", FOUR, bucket_bytes=size)[0] for size in (None, 600_000, 10**9)
    )
    assert (alone["calls"], some["calls"], one["calls"]) == (16, 4, 1)
    assert alone["sent_bytes"] == some["sent_bytes"] == one["sent_bytes"]
    assert (alone["early"], some["early"], one["early"]) == (0, 4, 1)


@pytest.mark.parametrize("room", [1, 2, 4])
def test_processes_do_what_the_list_of_gathers_and_frees_says(pool, room):
    task = book.exercise("t4")
    for steps in (task.solution(4, room), task.oracle(4, room)):
        (found, *_) = demonstrate(pool, "gathered_and_freed", FOUR, steps=steps)
        assert found["gathers"] == 8 - room and found["peak"] == room
        assert found["sent"] == pytest.approx(3 / 4 * (8 - room + 4) / 4)
        assert found["error"] < 1e-12


@pytest.mark.parametrize(
    ("form", "wrong", "calls"),
    [
        ("common answer", {"output", "input gradient"}, (0, 0)),
        ("row layer reduces", {"input gradient"}, (1, 0)),
        ("bias on every rank", {"output"}, (1, 1)),
        ("column, then row", set(), (1, 1)),
        ("gathered", set(), (2, 2)),
    ],
)
def test_split_mlp_is_wrong_where_a_reduction_is_missing(pool, form, wrong, calls):
    for answer in demonstrate(pool, "split_mlp", SPLIT, form=form):
        assert {what for what, error in answer["errors"].items() if error > 1e-9} == wrong
        assert (len(answer["forward"]), len(answer["backward"])) == calls


def test_split_heads_and_vocabulary_equal_the_whole(pool):
    assert max(max(answer) for answer in demonstrate(pool, "split_heads", SPLIT)) < 1e-12
    for size, rows in ((256, 64), (250, 63)):
        for answer in demonstrate(pool, "vocabulary", SPLIT, size=size):
            assert answer["rows"] == rows
            assert max(answer["errors"].values()) < 1e-12
            assert answer["sent_bytes"]["reduced"] < answer["sent_bytes"]["gathered"] / 10


def test_reached_tells_the_members_of_groups(pool):
    groups = {"tp": [[0, 1], [2, 3]], "pp": [[0, 2], [1, 3]]}
    answers = demonstrate(pool, "reached", Plan(tp=2, pp=2, microbatches=2), groups=groups)
    assert answers[2] == {"tp": [2, 3], "pp": [0, 2]}


def test_clipping_by_what_a_rank_holds_moves_replicas_apart(pool):
    local, right = (
        demonstrate(pool, "clipped", SPLIT, rule=rule, steps=3)
        for rule in ("of what it holds", "global")
    )
    assert (
        len({answer["factor"] for answer in local}) == 4
        and len({answer["factor"] for answer in right}) == 1
    )
    assert min(local[0]["apart"]) > 0 and max(right[0]["apart"]) == 0


def test_an_overflow_on_one_rank_is_skipped_by_all_only_if_the_flag_is_reduced_over_all_that_hold_parts_of_the_model(
    pool,
):
    cube = Plan(tp=2, pp=2, microbatches=2)

    def updates(**given):
        answers = demonstrate(pool, "overflowed", cube, **given)
        updated, scales, apart = (
            [answer[name] for answer in answers] for name in ("updated", "scale", "apart")
        )
        return updated, scales, max(apart)

    alone, scales, apart = updates(over=[])
    assert (
        not any(alone[1])
        and all(all(alone[rank]) for rank in (0, 2, 3))
        and scales[1] < scales[0]
        and apart > 0
    )
    within, _, apart = updates(over=["tp"])
    assert not any(within[0] + within[1]) and all(within[2] + within[3]) and apart == 0
    together, scales, apart = updates(over=["tp", "pp"])
    assert (
        together[0][-1]
        and not together[0][0]
        and together[1:] == together[:1] * 3
        and len(set(scales)) == 1
        and apart == 0
    )
    assert all(map(all, updates(over=[], precision="bf16", scale=None)[0]))


def test_worked_takes_at_least_as_long_as_asked(pool):
    assert min(demonstrate(pool, "worked", FOUR, kind="device", amount=0.05, tries=1)) >= 0.05
    assert min(demonstrate(pool, "worked", FOUR, kind="python", amount=1000, tries=2)) > 0


def test_what_is_not_listed_or_has_another_number_of_ranks_is_refused(pool):
    with pytest.raises(InputError, match="'averagd', did you mean 'averaged'"):
        demonstrate(pool, "averagd", FOUR)
    with pytest.raises(InputError, match="takes 2 ranks, this pool has 4"):
        demonstrate(pool, "averaged", Plan(dp=2), sizes=[8, 8])


# lessons
# ------------------------------------------------------------------------------------------------------


def test_source_is_the_functions_text():
    assert lesson.source("averaged").startswith("def averaged(")
    with pytest.raises(InputError, match="there is no function 'x' in demonstrations"):
        lesson.source("x")
    assert all(lesson.source(name) for name in demonstrations.DEMONSTRATIONS)


def lesson_pool(folder, pool, *, record=False, show=None):
    made = lesson.LessonPool.__new__(lesson.LessonPool)
    made.recorded, made.record, made.pool, made.show = folder, record, pool, show
    return made


def test_what_was_recorded_comes_back_without_processes(pool, tmp_path):
    shown = []
    executed, kept = (
        lesson_pool(tmp_path, pool, record=True),
        lesson_pool(tmp_path, None, show=shown.append),
    )
    ask = {"sizes": {"layers": 1, "hidden": 32, "heads": 2, "seq": 16}, "steps": 1}
    for asked in (
        lambda pool: pool.demonstrate("averaged", FOUR, sizes=[8, 8, 8, 8]),
        lambda pool: pool.execute_plan(FOUR, **ask),
        lambda pool: pool.alone(abs, -3),
    ):
        assert asked(executed) == asked(kept)
    again = kept.execute_plan(FOUR, **ask)
    assert (
        isinstance(again.measured, Trace)
        and again.facts["progress"]
        and shown == 2 * again.facts["progress"]
    )
    assert all(
        "folder" not in json.dumps(json.loads(path.read_text())["asked"])
        for path in tmp_path.iterdir()
    )
    with pytest.raises(InputError, match="was not recorded: install torch"):
        kept.demonstrate("averaged", FOUR, sizes=[4, 4, 4, 4])
