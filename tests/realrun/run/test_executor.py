"""Programs executed on processes: gradients, loss, training and memory against one process and
against closed forms."""

import itertools
import json
import random

import pytest
import torch
from realrun_processes import random_program

from realrun.comm.group import Group
from realrun.comm.mesh import Mesh
from realrun.measure.timers import HostTimer
from realrun.model.gpt import Stage, loss
from realrun.model.reference import single_process
from realrun.model.text import batch
from realrun.record.recorder import Recorder, Recording
from realrun.record.step_log import OpLog
from realrun.run.executor import Executor
from realrun.run.job import Job
from realrun.run.job.pipelines import program_texts
from realrun.run.ops import ExecutionError
from simlab.analysis import memory_curve, peak_memory
from simlab.program import Program
from simlab.program.validation import validate
from simlab.schedules import SCHEDULES, generate
from simlab.spec.plan import Plan
from simlab.trace import ACTIVATIONS, LIVE, Trace

LIMIT = 1e-10
SMALL = {"hidden": 32, "heads": 2, "seq": 16, "microbatch_size": 1}


def run(pool, programs, folder, **fields):
    """{name: result} of running `programs` with short padded ops."""
    job = Job(
        programs=program_texts(programs),
        compute="padded",
        out=str(folder),
        **({"forward_s": 0.002, "steps": 1, "sizes": SMALL} | fields),
    )
    return {result["schedule"]: result for result in pool.run(job)["runs"]}


def measured(result, step=0):
    return Trace.load(f"{result['folder']}/measured-step-{step}.json")


TWO = ("gpipe", "1f1b")


@pytest.mark.parametrize(
    "stages, microbatches, names",
    [(2, 8, SCHEDULES), (4, 8, SCHEDULES), (1, 3, TWO), (4, 2, TWO), (4, 1, TWO), (2, 5, TWO)],
)
def test_gradients_and_live_activations_of_every_schedule_are_those_of_one_process_and_of_the_simulation(
    pools, tmp_path, stages, microbatches, names
):
    programs = [generate(name, stages, microbatches) for name in names]
    results = run(pools(stages), programs, tmp_path, steps=2)
    assert sorted(results) == sorted(names)
    for name, result in results.items():
        assert result["gradient_error"] <= LIMIT and result["loss_error"] <= LIMIT, name
        predicted = peak_memory(Trace.load(f"{result['folder']}/predicted.json"))
        for trace in (measured(result), measured(result, 1)):
            assert peak_memory(trace) == predicted, name
            for rank, category in itertools.product(range(stages), (LIVE, ACTIVATIONS)):
                assert memory_curve(trace, rank, category)[1][-1] == 0


ODD = {
    "two stages per rank, neighbours": Program.from_text(
        "0F0 1F0 1B0 0B0\n2F0 3F0 3B0 2B0", name="neighbours"
    ),
    "two stages per rank, interleaved": random_program([0, 1, 0, 1], 3, seed=1),
    "the first and the last stage on one rank": random_program([0, 1, 1, 0], 3, seed=2),
    "stages from the last rank to the first": random_program([1, 0], 4, seed=3),
    "ranks in no order": random_program([3, 1, 0, 2], 4, seed=4),
    "one rank with one stage, one with three": random_program([0, 1, 0, 0], 2, seed=5),
    "seven stages on four ranks": random_program([2, 0, 3, 1, 0, 2, 2], 3, seed=6),
    "all stages on one rank": random_program([0, 0, 0], 3, seed=7),
}


@pytest.mark.parametrize("what", ODD)
def test_gradients_loss_order_and_memory_of_an_odd_but_valid_program_are_right(
    pools, tmp_path, what
):
    program = validate(ODD[what])
    result = run(pools(len(program.ranks)), [program], tmp_path)[program.name]
    assert result["gradient_error"] <= LIMIT and result["loss_error"] <= LIMIT
    trace = measured(result)
    assert Program.from_trace(trace).ranks == program.ranks
    assert (
        peak_memory(trace)
        == peak_memory(Trace.load(f"{result['folder']}/predicted.json"))
        == [most_held(ops) for ops in program.ranks]
    )


def most_held(ops):
    """The largest number of forwards whose backward is still to come, counted by hand."""
    held, most = set(), 0
    for stage, kind, microbatch in ops:
        (held.add if kind == "F" else held.remove)((stage, microbatch))
        most = max(most, len(held))
    return most


@pytest.mark.parametrize("seed", range(3))
def test_random_valid_interleavings_of_random_placements_give_the_gradients_of_one_process(
    pools, tmp_path, seed
):
    choice = random.Random(100 + seed)
    placement = [0, 1, 2, 3, *(choice.randrange(4) for _ in range(3))]
    choice.shuffle(placement)
    program = validate(random_program(placement, 4, seed=seed))
    result = run(pools(4), [program], tmp_path)["random"]
    assert result["gradient_error"] <= LIMIT and result["loss_error"] <= LIMIT
    assert Program.from_trace(measured(result)).ranks == program.ranks


def test_the_check_finds_a_program_that_leaves_out_a_backward(pools, tmp_path):
    program = Program.from_text("0F0 0F1 0B0\n1F0 1F1 1B0 1B1", name="forgetful")
    result = run(pools(2), [program], tmp_path, checked=False)["forgetful"]
    assert result["gradient_error"] > 0.01
    assert result["loss_error"] <= LIMIT  # all forwards ran


def test_the_check_finds_a_program_that_runs_a_microbatch_twice(pools, tmp_path):
    program = Program.from_text("0F0 0B0 0F0 0B0 0F1 0B1", name="twice")
    result = run(pools(1), [program], tmp_path, checked=False)["twice"]
    assert result["gradient_error"] > 0.01 and result["loss_error"] > 0.01


def test_training_follows_adam_in_one_process(pools, tmp_path):
    result = run(pools(2), [generate("1f1b", 2, 4)], tmp_path, steps=4, warmup=2)["1f1b"]
    stages = [Stage({"layers": 4, **SMALL}, stage, 2) for stage in range(2)]
    optimizer = torch.optim.Adam([p for stage in stages for p in stage.parameters()], lr=1e-3)
    expected = []
    for step in range(6):
        tokens, targets = batch(step, 4, SMALL["microbatch_size"], SMALL["seq"])
        mean = loss(stages[1](stages[0](tokens.flatten(0, 1))), targets.flatten(0, 1))
        optimizer.zero_grad()
        mean.backward()
        optimizer.step()
        expected.append(mean.item())
    assert result["losses"] == pytest.approx(expected, rel=1e-4)


def test_held_bytes_grow_by_the_same_amount_with_every_microbatch(pools, tmp_path):
    result = run(pools(2), [generate("gpipe", 2, 6)], tmp_path)["gpipe"]
    for rank in range(2):
        amounts = [
            point.amount
            for point in measured(result).memory
            if point.rank == rank and point.category == ACTIVATIONS
        ]
        assert len(amounts) == 12
        assert amounts[:6] == [amounts[0] * (n + 1) for n in range(6)] and amounts[0] > 0
        assert amounts[6:] == [amounts[0] * n for n in (5, 4, 3, 2, 1, 0)]


def test_a_measured_trace_has_every_op_once_every_message_and_no_overlap_on_a_rank(pools, tmp_path):
    program = generate("1f1b", 4, 4)
    trace = measured(run(pools(4), [program], tmp_path, forward_s=0.003)["1f1b"])
    assert sorted(span.op for span in trace.compute()) == sorted(
        str(op) for ops in program.ranks for op in ops
    )
    for rank in range(4):
        spans = trace.compute(rank)
        assert all(before.end_s <= after.start_s for before, after in itertools.pairwise(spans))
        assert all(
            span.end_s - span.start_s >= (0.003 if "F" in span.op else 0.006) for span in spans
        )
    messages = {(span.rank, span.op, span.peer) for span in trace.messages()}
    assert messages == {(s, f"{s}F{m}", s + 1) for s in range(3) for m in range(4)} | {
        (s, f"{s}B{m}", s - 1) for s in (1, 2, 3) for m in range(4)
    }
    assert {span.bytes for span in trace.messages()} == {4 * 32 * 16}
    assert all(
        span.end_s >= span.start_s - sum(clock_uncertainty(tmp_path)) for span in trace.messages()
    )


def clock_uncertainty(folder):
    """[per rank] how far off its clock may be, s."""
    return json.loads((folder / "calibration.json").read_text())["metadata"]["clock_uncertainty_s"]


def test_one_pool_runs_one_job_after_another_of_other_models_and_programs(pools, tmp_path):
    pool = pools(2)
    first = run(pool, [generate("gpipe", 2, 2)], tmp_path / "a")
    second = run(
        pool,
        [random_program([0, 1, 0], 2, seed=9, name="other")],
        tmp_path / "b",
        sizes=SMALL | {"hidden": 16, "layers": 6},
    )
    third = run(pool, [generate("gpipe", 2, 2)], tmp_path / "a")
    assert all(
        next(iter(results.values()))["gradient_error"] <= LIMIT
        for results in (first, second, third)
    )
    assert first["gpipe"]["losses"] == third["gpipe"]["losses"]


# one rank, in this process
# ----------------------------------------------------------------------------------


def executor(text, recorder, *, mesh=None, channels=None, timer=None):
    """An `Executor` of `text`'s first rank, or of its place in `mesh`."""
    program = Program.from_text(text)
    plan = Plan(pp=len(program.ranks), microbatches=program.microbatches, seq=16, precision="fp32")
    return Executor(
        SMALL | {"layers": program.stages},
        plan,
        program,
        mesh or Mesh.of_one(),
        channels or NoChannels(),
        lambda activations: OpLog(recorder, timer or HostTimer(), activations),
        dtype=torch.float32,
        optimizer=torch.optim.Adam,
    )


def records(folder, name="rank0"):
    return Recorder(folder / f"{name}.records", 20, 0.0)


class NoChannels:
    def finish_sending(self):
        pass


@pytest.mark.parametrize(
    "text, message",
    [
        ("0F0 0W0 0I0", "rank 0: 0W0 comes before 0I0, which it needs"),
        ("0I0 0F0 0W0", "rank 0: 0I0 comes before 0F0, which it needs"),
        ("0B0 0F0", "rank 0: 0B0 comes before 0F0, which it needs"),
        ("1F0 0F0 0B0 1B0", "rank 0: 1F0 comes before 0F0, which it needs"),
        ("0F0 2F0 2B0 0B0", "rank 0: 1F0 never runs, but 2F0 needs it"),
    ],
)
def test_an_op_that_cannot_run_is_an_error_that_names_rank_op_and_reason(tmp_path, text, message):
    one = executor(text, records(tmp_path))
    with pytest.raises(ExecutionError) as caught:
        one.gradients(0, *batch(0, one.program.microbatches, 1, 16))
    assert str(caught.value) == message


def test_a_step_adds_gradients_to_those_that_are_there_and_records_each_op(tmp_path):
    one = executor("0F0 1F0 1B0 0B0", records(tmp_path))
    tokens, targets = batch(0, 1, 1, 16)
    value = one.gradients(0, tokens, targets)
    single = {name: p.grad.clone() for name, p in one.stages[0].named_parameters()}
    whole = [Stage({"layers": 2, **SMALL}, stage, 2) for stage in range(2)]
    assert value == pytest.approx(loss(whole[1](whole[0](tokens[0])), targets[0]).item(), rel=1e-6)
    written = Recording.load(tmp_path / "rank0.records").records
    assert [record.position for record in written] == [0, 1, 2, 3]
    assert [record.live for record in written] == [1, 2, 1, 0] and written[-1].bytes == 0
    one.log.recorder = records(tmp_path, "again")
    one.gradients(1, tokens, targets)
    for name, parameter in one.stages[0].named_parameters():
        torch.testing.assert_close(parameter.grad, 2 * single[name])


def test_a_step_begins_its_clock_before_any_receive_is_posted(tmp_path):
    """On CUDA the timer waits for the whole device there; a receive posted before would be waited
    for, and never come."""
    happened = []

    class Stopped(Exception):
        pass

    class Timer(HostTimer):
        def begin_step(self):
            happened.append("clock")

    class Channels:
        def inbox(self, source, messages, *form):
            happened.append(f"receives from {source}: {' '.join(map(str, messages))}")
            raise Stopped

    mesh = Mesh.of_one()
    mesh.groups["pp"] = Group("pp", [0, 1], 1, None, mesh.traffic)
    text = "0F0 0F1 0B0 0B1\n1F0 1F1 1B0 1B1"
    one = executor(text, records(tmp_path), mesh=mesh, channels=Channels(), timer=Timer())
    with pytest.raises(Stopped):
        one.gradients(0, *batch(0, 2, 1, 16))
    assert happened == ["clock", "receives from 0: 0F0 0F1"]


def test_the_norm_counts_a_stage_that_stands_on_two_ranks_once(pools, tmp_path):
    """DualPipe's ranks hold each stage twice; one process holds it once."""
    program = generate("dualpipe", 2, 4)
    result = run(pools(2), [program], tmp_path)[program.name]
    data = batch(0, 4, SMALL["microbatch_size"], SMALL["seq"])
    sizes = {"layers": result["model"]["layers"], **SMALL}
    _, expected = single_process(sizes, program.stages, *data, torch.float32)
    gradients = [gradient for stage in expected for gradient in stage.values()]
    norm = torch.nn.utils.get_total_norm(gradients).item()
    assert result["norms"][0] == pytest.approx(norm, rel=1e-5)


def test_the_reference_of_a_program_clips_no_gradients_as_the_program_does_not(pools, tmp_path):
    """The norms are above 1, at which the gradients of a plan are clipped."""
    (facts,) = run(pools(2), [generate("1f1b", 2, 4)], tmp_path, steps=8, reference=True).values()
    assert min(facts["norms"]) > 1
    assert facts["losses"] == pytest.approx(facts["reference_losses"], rel=1e-6)
