import pytest

from simlab.errors import InputError
from simlab.program.validation import validate
from simlab.schedules import ALIASES, RECORDS, SCHEDULES, generate

# Narayanan et al. 2021 (arXiv 2104.04473), figure 4 top, with 8 microbatches cut down to 4; written
# by hand
ONE_F_ONE_B_4_4 = """\
0F0 0F1 0F2 0F3 0B0 0B1 0B2 0B3
1F0 1F1 1F2 1B0 1F3 1B1 1B2 1B3
2F0 2F1 2B0 2F2 2B1 2F3 2B2 2B3
3F0 3B0 3F1 3B1 3F2 3B2 3F3 3B3"""


def test_1f1b_of_4_stages_and_4_microbatches_is_the_papers_figure():
    assert str(generate("1f1b", 4, 4)) == ONE_F_ONE_B_4_4


def test_gpipe_runs_all_forwards_then_all_backwards():
    assert str(generate("gpipe", 2, 3)) == "0F0 0F1 0F2 0B0 0B1 0B2\n1F0 1F1 1F2 1B0 1B1 1B2"


def test_afab_is_another_name_of_gpipe():
    assert generate("afab", 3, 4) == generate("gpipe", 3, 4)


def accepted(name, stages, microbatches):
    """The program, or None where the schedule says that it cannot."""
    try:
        return generate(name, stages, microbatches)
    except InputError:
        return None


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("stages", range(1, 9))
def test_every_schedule_is_valid_and_complete(name, stages):
    programs = [accepted(name, stages, microbatches) for microbatches in range(1, 33)]
    odd = name == "dualpipe" and stages % 2
    assert odd or programs[2 * stages - 1] is not None, (
        "m = 2p suits every schedule, but DualPipe wants an even p"
    )
    for program in filter(None, programs):
        validate(program)
        kinds = [op.kind for ops in program.ranks for op in ops]
        work = program.stages * program.microbatches
        assert len(program.ranks) == stages
        assert program.stages % stages == 0
        assert kinds.count("F") == kinds.count("B") + kinds.count("I") == work
        assert kinds.count("I") == kinds.count("W")


@pytest.mark.parametrize("stages, microbatches, quoted", [(0, 4, "0 pipeline stages"), (-1, 4, "-1 pipeline"), (4, 0, "0 microbatches"),
                                                          (4, 2.0, "2.0 microbatches"), (1001, 1000, "1,000,000")])  # fmt: skip
def test_a_count_that_is_no_count_is_refused_and_quoted(stages, microbatches, quoted):
    with pytest.raises(InputError, match=quoted):
        generate("1f1b", stages, microbatches)


def test_an_unknown_schedule_is_refused_and_the_known_ones_are_named():
    known = ", ".join(sorted([*RECORDS, *ALIASES]))
    assert "1f1b, afab, dualpipe" in known
    with pytest.raises(
        InputError,
        match=rf"^unknown schedule 'zb', did you mean 'zb-auto', 'zb-h1', 'zb-h2' or 'zb-v'\? there is {known}$",
    ):
        generate("zb", 2, 2)
