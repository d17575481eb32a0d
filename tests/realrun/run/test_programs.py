"""Which programs a command line asks for. Nothing is started."""

import pytest

from realrun.cli.jobs import programs as programs_of
from realrun.cli.jobs import values
from realrun.cli.main import parser
from simlab import InputError, OpTimes, generate, peak_memory, simulate
from simlab.trace import ACTIVATIONS

SIZE = "--pp 4 --microbatches 8"


def programs(arguments):
    return programs_of(values(parser().parse_args(arguments.split())))


def test_without_a_name_1f1b_runs_as_in_a_plan():
    assert programs(SIZE) == [generate("1f1b", 4, 8)]


def test_options_go_to_the_schedules_that_take_them_and_pass_by_the_others():
    found = programs(f"{SIZE} --schedule 1f1b,interleaved-1f1b,looped-bfs --chunks 3 --group 8")
    assert found == [
        generate("1f1b", 4, 8), generate("interleaved-1f1b", 4, 8, chunks=3, group=8), generate("looped-bfs", 4, 8, chunks=3),
    ]  # fmt: skip
    assert programs(f"{SIZE} --schedule interleaved-1f1b,zb-v")[0].stages == 8


def test_zb_auto_is_searched_for_the_times_of_padded_compute():
    (found,) = programs(
        f"{SIZE} --schedule zb-auto --forward-ms 10 --backward-ms 40 --input-grad-ms 15 --link-ms 3 --activation-cap 6"
    )
    assert found == generate(
        "zb-auto", 4, 8, forward_s=0.01, input_grad_s=0.015, weight_grad_s=0.025, p2p_s=0.003, cap=6
    )
    (by_default,) = programs(f"{SIZE} --schedule zb-auto")
    assert by_default == generate(
        "zb-auto", 4, 8, forward_s=0.02, input_grad_s=0.02, weight_grad_s=0.02, p2p_s=0.0
    )
    times = OpTimes(forward_s=0.02, input_grad_s=0.02, weight_grad_s=0.02)
    assert max(peak_memory(simulate(by_default, times), ACTIVATIONS)) <= 4


def test_a_csv_is_called_by_its_file_made_safe_for_a_folder(tmp_path):
    generate("dualpipe", 2, 4).to_csv(tmp_path / "two.ways.csv")
    (found,) = programs(f"--csv {tmp_path}/two.ways.csv")
    assert (found.name, found.ranks, found.paired) == (
        "two_ways",
        generate("dualpipe", 2, 4).ranks,
        generate("dualpipe", 2, 4).paired,
    )


@pytest.mark.parametrize("arguments, says", [
    ("--schedule pipedream", "^pipedream updates the weights after every backward; the executor trains with a flush: run 1f1b"),
    ("--schedule 1f1b,pipedream", "^pipedream updates"),
    ("--chunks 2", "^--chunks 2: of no use to 1f1b$"), ("--schedule zb-v --chunks 2", "^--chunks 2: of no use to zb-v$"),
    ("--group 4", "^--group 4: of no use to 1f1b$"), ("--schedule looped-bfs --group 4", "^--group 4: of no use to looped-bfs$"),
    ("--activation-cap 3", r"^--activation-cap 3\.0: of no use to 1f1b$"),
    ("--schedule zb-h1 --activation-cap nan", "^--activation-cap nan: of no use to zb-h1$"),
    ("--schedule interleaved-1f1b --group 3", "^groups of 3 microbatches"), ("--schedule interleaved-1f1b --chunks 0", "^0 chunks"),
    ("--schedule zb-auto --activation-cap 0.5", r"^a cap of 0\.5: give 1 or more"),
    ("--schedule zb-auto --forward-ms nan", "^nan s for F"), ("--schedule zb-auto --link-ms -1", r"^-0\.001 s for a message"),
])  # fmt: skip
def test_what_no_asked_for_schedule_can_do_is_refused_and_quoted(arguments, says):
    with pytest.raises(InputError, match=says):
        programs(f"{SIZE} {arguments}")


@pytest.mark.parametrize(
    "option",
    [
        "--schedule 1f1b",
        "--pp 2",
        "--microbatches 4",
        "--chunks 2",
        "--group 2",
        "--activation-cap 3",
    ],
)
def test_a_csv_brings_all_that_a_schedule_is_told(tmp_path, option):
    generate("gpipe", 2, 4).to_csv(tmp_path / "good.csv")
    with pytest.raises(
        InputError, match=r"^--csv brings its own order, stages and microbatches: leave out "
    ):
        programs(f"--csv {tmp_path}/good.csv {option}")
