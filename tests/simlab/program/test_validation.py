import pytest
from hypothesis import given
from hypothesis import strategies as st
from simlab_oracles import can_end, plans

from simlab import DeadlockError, Op, OpTimes, Program, ProgramError, generate, simulate, validate
from simlab.program.validation import errors

UNIT = OpTimes(forward_s=1, backward_s=2, input_grad_s=1, weight_grad_s=1)
CIRCLE = ("0F0 0B0 0F1 0B1", "1F1 1F0 1B0 1B1")
CIRCLE_TEXT = "deadlock: rank 0 waits at 0B0 for 1B0, which rank 1 has not run; rank 1 waits at 1F1 for 0F1, which rank 0 has not run"


def program_of(*ranks):
    return Program([[Op.parse(op) for op in ops.split()] for ops in ranks])


def without(program, text):
    return Program([[op for op in ops if str(op) != text] for ops in program.ranks])


def complaint(program):
    with pytest.raises(ProgramError) as raised:
        validate(program)
    return str(raised.value)


def test_a_valid_program_is_handed_back():
    program = generate("1f1b", 4, 8)
    assert validate(program) is program
    assert list(errors(program)) == []


def test_a_missing_forward_is_named_with_the_op_that_needs_it():
    assert (
        complaint(without(generate("gpipe", 4, 2), "3F0"))
        == "rank 3: 3F0 never runs, but 3B0 needs it"
    )


def test_a_missing_backward_is_named_with_the_op_that_needs_it():
    assert (
        complaint(without(generate("1f1b", 4, 2), "2B1"))
        == "rank 1: 2B1 never runs, but 1B1 needs it"
    )


@pytest.mark.parametrize("ranks, message", [
    (("0F0 0F0 0B0",), "rank 0: 0F0 runs twice (ops 1 and 2); an op runs once"),
    (("0F0 0B0 0B0",), "rank 0: 0B0 runs twice (ops 2 and 3); an op runs once"),
    (("0F0 0B0", "1F0 0F0 1B0"), "rank 1: 0F0 runs here and on rank 0 too; an op runs once"),
    (("0B0 0F0",), "rank 0: 0B0 comes before 0F0, which it needs"),
    (("1F0 0F0 1B0 0B0",), "rank 0: 1F0 comes before 0F0, which it needs"),
    (("0F0 0W0 0I0",), "rank 0: 0W0 comes before 0I0, which it needs"),
    (("0F0", "1F0 1B0 0B0"), "rank 1: 0B0 needs 0F0, whose saved tensors are on rank 0; move one to the other"),
    (("0F0 0I0", "0W0"), "rank 1: 0W0 needs 0I0, whose saved tensors are on rank 0; move one to the other"),
    (("0F0",), "rank 0: 0F0 has no backward: neither 0B0 nor 0I0 with 0W0 runs"),
    (("0F0 0B0 0I0 0W0",), "rank 0: 0B0 does the whole backward, but 0I0 does part of it again"),
    (("0F0 0B0 0I0",), "rank 0: 0B0 does the whole backward, but 0I0 does part of it again"),
    (("0F0 0B0 0W0",), "rank 0: 0I0 never runs, but 0W0 needs it"),
    (("0F0 0I0",), "rank 0: 0I0 has no weight gradient: 0W0 never runs"),
    (("0F0 0W0",), "rank 0: 0I0 never runs, but 0W0 needs it"),
    (("0F0 0B0", "2F0 2B0"), "stage 1 is on no rank, but there is a stage 2"),
    (("1F0 1B0",), "stage 0 is on no rank, but there is a stage 1"),
    (("0F0 0B0 0F2 0B2",), "rank 0: 0F1 never runs, but there is a microbatch 2"),
    (("0F0 0B0", "1F0 1B0", ""), "rank 2: has no ops; every rank must run at least one stage"),
    ((), "the program has no ranks"),
])  # fmt: skip
def test_each_broken_rule_has_its_message(ranks, message):
    assert complaint(program_of(*ranks)) == message


def test_an_error_says_rank_and_op_to_programs_too():
    with pytest.raises(ProgramError) as raised:
        validate(program_of("0F0 0B0", "1B0 1F0"))
    assert (raised.value.rank, raised.value.op) == (1, Op(1, "B", 0))


def test_errors_lists_every_missing_op_not_only_the_first():
    program = without(without(generate("gpipe", 2, 2), "1F0"), "1F1")
    assert [str(error) for error in errors(program)] == [
        "rank 1: 1F0 never runs, but 1B0 needs it",
        "rank 1: 1F1 never runs, but 1B1 needs it",
    ]


def test_validator_and_simulator_name_the_circle_of_a_deadlock_in_the_same_words():
    program = program_of(*CIRCLE)
    assert complaint(program) == CIRCLE_TEXT
    with pytest.raises(DeadlockError) as raised:
        simulate(program, UNIT)
    assert str(raised.value) == CIRCLE_TEXT
    assert [
        (wait.rank, str(wait.op), str(wait.need), wait.holder) for wait in raised.value.waits
    ] == [
        (0, "0B0", "1B0", 1),
        (1, "1F1", "0F1", 0),
    ]


def test_who_only_waits_for_a_circle_is_not_blamed():
    circle_of_1_and_2 = ("0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1", "2F1 2F0 2B0 2B1")
    assert complaint(program_of(*circle_of_1_and_2)) == (
        "deadlock: rank 1 waits at 1B0 for 2B0, which rank 2 has not run; rank 2 waits at 2F1 for 1F1, which rank 1 has not run"
    )


@pytest.mark.parametrize("ranks, message", [
    (("0F0 0B0", "1F0"), "rank 0 waits at 0B0 for 1B0, which no rank runs"),
    (("0B0 0F0",), "rank 0 waits at 0B0 for 0F0, which comes later on the same rank"),
    (("0F0", "0B0"), "rank 1 waits at 0B0 for 0F0, which rank 0 has run but does not send here"),
    (("0F0", "1F0", "1F0"), "rank 2 waits at 1F0 for 0F0, which rank 0 has run but does not send here"),
])  # fmt: skip
def test_the_simulator_says_why_a_program_that_was_not_validated_cannot_end(ranks, message):
    with pytest.raises(DeadlockError) as raised:
        simulate(program_of(*ranks), UNIT)
    assert str(raised.value) == f"deadlock: {message}"


@given(plans())
def test_every_legal_order_of_every_plan_is_valid(program):
    assert validate(program) is program


@given(plans(), st.randoms(use_true_random=False))
def test_a_program_that_lost_any_op_is_rejected_with_a_place_and_that_op(program, random):
    lost = str(random.choice(list(program.rank_of)))
    message = complaint(without(program, lost))
    assert message.startswith(("rank ", "stage "))
    assert lost in message


@given(plans(), st.randoms(use_true_random=False))
def test_validator_and_simulator_agree_on_programs_with_ops_swapped(program, random):
    rows = [list(ops) for ops in program.ranks]
    for _ in range(random.randint(1, 2)):
        row = random.choice(rows)
        a, b = random.randrange(len(row)), random.randrange(len(row))
        row[a], row[b] = row[b], row[a]
    swapped = Program(rows)
    found = next(errors(swapped), None)
    assert (found is None) == can_end(rows)
    if found is None:
        assert len(simulate(swapped, UNIT).compute()) == len(swapped.rank_of)
        return
    with pytest.raises(DeadlockError) as raised:
        simulate(swapped, UNIT)
    if isinstance(found, DeadlockError):
        assert str(raised.value) == str(found)
        circle = found.waits
        assert all(
            wait.holder == after.rank for wait, after in zip(circle, [*circle[1:], circle[0]])
        )
        assert len({wait.rank for wait in circle}) == len(circle) > 1
    else:
        assert "comes before" in str(found)


@given(
    st.lists(
        st.lists(
            st.builds(Op, st.integers(0, 2), st.sampled_from("FBIW"), st.integers(0, 1)), max_size=6
        ),
        max_size=3,
    )
)
def test_on_any_list_of_ops_both_end_in_an_answer_and_what_is_valid_runs_to_its_end(ranks):
    program = Program(ranks)
    found = next(errors(program), None)
    try:
        trace = simulate(program, UNIT)
    except DeadlockError as error:
        assert found is not None and str(error).startswith("deadlock: rank ")
    else:
        assert len(trace.compute()) == sum(map(len, ranks))
