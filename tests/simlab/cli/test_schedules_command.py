"""The command `schedules` prints one table of all schedules."""

from simlab_commands import SCHEDULES, one_object, run

from simlab import schedules


def test_schedules_prints_a_line_per_schedule(capsys):
    status, out, err = run(capsys, SCHEDULES)
    lines = [line.split() for line in out.splitlines()]
    # zb-auto has a line for each of two caps
    assert (status, err, len(lines)) == (0, "", 1 + len(schedules.SCHEDULES) + 1)
    assert [line for line in lines if line[0] in ("gpipe", "1f1b", "eager-1f1b")] == [
        [
            "gpipe",
            "660.0",
            "ms",
            "0.3750",
            "0.2727",
            "0.2727",
            "180.0",
            "ms",
            "180.0",
            "ms",
            "8",
            "1",
            "48",
        ],
        [
            "1f1b",
            "660.0",
            "ms",
            "0.3750",
            "0.2727",
            "0.2727",
            "180.0",
            "ms",
            "180.0",
            "ms",
            "4",
            "1",
            "48",
        ],
        [
            "eager-1f1b",
            "660.0",
            "ms",
            "0.3750",
            "0.2727",
            "0.2727",
            "180.0",
            "ms",
            "180.0",
            "ms",
            "7",
            "1",
            "48",
        ],
    ]


def test_schedules_json_has_what_is_known_of_each(capsys):
    status, out, _ = run(capsys, SCHEDULES.replace("pp 4", "pp 3") + " --link-ms 1 --json")
    rows = {row.pop("schedule"): row for row in one_object(out)["schedules"]}
    assert status == 0 and rows.keys() >= {
        "gpipe",
        "1f1b",
        "dualpipe",
        "zb-auto, cap 3",
        "zb-auto, cap 6",
    }
    assert (
        list(rows["dualpipe"]) == ["refused"]
        and "even number of ranks" in rows["dualpipe"]["refused"]
    )
    of_1f1b = rows["1f1b"]  # no closed form: messages take time
    assert of_1f1b.keys() == {
        "stages",
        "step_s",
        "bubble",
        "bubble_s",
        "peak_activations",
        "parameters",
        "messages",
    }
    assert (
        of_1f1b["stages"],
        of_1f1b["peak_activations"],
        of_1f1b["parameters"],
        of_1f1b["messages"],
    ) == (3, [3, 2, 1], [1, 1, 1], 32)
    assert of_1f1b["bubble"].keys() == {"idle_over_ideal", "idle_over_makespan", "longest_stage"}


def test_schedules_draws_one_timeline_per_schedule(capsys, tmp_path):
    command = SCHEDULES.replace("--pp 4 --microbatches 8", "--pp 1 --microbatches 2")
    status, _, err = run(capsys, f"{command} --picture {tmp_path}/all.png")
    assert (status, err) == (0, f"wrote {tmp_path}/all.png\n")
    assert (tmp_path / "all.png").read_bytes().startswith(b"\x89PNG")
