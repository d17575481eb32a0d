import json

import pytest

from simlab import InputError, OpTimes, Program, generate, simulate
from simlab.spec.hardware import Link
from simlab.training.calibration import Calibration

LINK = {"latency_s": 0.5, "bandwidth_bytes_per_s": 4.0}
GOOD = {"format": "simlab-calibration-1", "op_seconds": {"F": [1.0, 2.0], "B": [3.0, 5.0]},
        "links": {"0-1": LINK, "1-0": {**LINK, "latency_s": 0.25}}, "message_bytes": 2}  # fmt: skip


def calibration(**changes):
    return Calibration(
        **{field: value for field, value in {**GOOD, **changes}.items() if field != "format"}
    )


def test_prediction_adds_up_the_measured_times_of_each_stage_and_link():
    trace = calibration().predict(generate("1f1b", 2, 1))
    spans = {span.op: (span.start_s, span.end_s) for span in trace.compute()}
    # forward 1, message 2/4 + 0.5, forward 2 and backward 5, message 2/4 + 0.25, backward 3
    assert spans == {"0F0": (0, 1), "1F0": (2, 4), "1B0": (4, 9), "0B0": (9.75, 12.75)}
    assert trace.metadata["calibration"]["op_seconds"] == GOOD["op_seconds"]


def test_split_backwards_can_be_calibrated_too():
    split = calibration(op_seconds={"F": [1], "I": [2], "W": [4]})
    assert split.predict(Program.from_text("0F0 0I0 0W0")).step_s == 7


def test_cores_of_the_calibration_are_shared_by_the_ranks():
    program = generate("gpipe", 2, 4)
    free = {"0-1": {"latency_s": 0}, "1-0": {"latency_s": 0}}
    assert calibration(cores=1, links=free).predict(program).step_s == pytest.approx(
        4 * (1 + 2 + 3 + 5)
    )


def test_a_pair_that_was_not_measured_is_an_error_not_a_free_link():
    with pytest.raises(InputError, match="no link from rank 0 to rank 1"):
        calibration(links={}).predict(generate("gpipe", 2, 1))


def test_a_calibration_is_the_op_times_and_links_it_holds():
    assert calibration().times() == OpTimes(forward_s=(1.0, 2.0), backward_s=(3.0, 5.0))
    assert calibration().link_of_pairs()[1, 0] == Link(latency_s=0.25, bandwidth_bytes_per_s=4.0)


def test_a_calibration_reads_back_equal_from_its_file(tmp_path):
    path = tmp_path / "calibration.json"
    measured = calibration(cores=2, metadata={"model": "toy"})
    measured.save(path)
    assert Calibration.load(path) == measured
    program = generate("gpipe", 2, 3)
    by_hand = simulate(
        program, measured.times(), link=measured.link_of_pairs(), message_bytes=2, cores=2
    )
    assert Calibration.load(path).predict(program).spans == by_hand.spans


def test_the_time_between_ops_reads_back_from_its_file_and_is_predicted(tmp_path):
    measured = calibration(op_gap_s=0.125)
    measured.save(tmp_path / "calibration.json")
    read = Calibration.load(tmp_path / "calibration.json")
    assert read == measured and read.op_gap_s == 0.125
    assert read.predict(Program.from_text("0F0 0B0")).step_s == 1 + 0.125 + 3
    assert calibration().predict(Program.from_text("0F0 0B0")).step_s == 1 + 3


@pytest.mark.parametrize("text", [
    "", "{", "[]", "3", "{}", "[" * 100_000, "\x00",
    *(json.dumps({**GOOD, **changes}) for changes in (
        {"format": "simlab-trace-1"}, {"surprise": 1}, {"op_seconds": 3}, {"op_seconds": {"X": [1.0]}}, {"op_seconds": {"F": ["fast"]}},
        {"op_seconds": {"F": [-1.0]}}, {"links": []}, {"links": {"0": LINK}}, {"links": {"a-b": LINK}}, {"links": {"0-1": {"speed": 1}}},
        {"links": {"0-1": {"latency_s": -1}}}, {"message_bytes": "2"}, {"message_bytes": None}, {"cores": "many"}, {"cores": -1},
        {"op_gap_s": -0.1}, {"op_gap_s": "short"}, {"op_gap_s": None},
    )),
    json.dumps({field: value for field, value in GOOD.items() if field != "message_bytes"}),
])  # fmt: skip
def test_a_file_that_is_no_calibration_is_refused_in_one_line_that_names_it_once(tmp_path, text):
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(InputError) as raised:
        Calibration.load(path)
    assert str(raised.value).startswith(f"{path}: not a calibration file: ")
    assert str(raised.value).count("bad.json") == 1 and len(str(raised.value).splitlines()) == 1


def test_a_binary_file_and_an_absent_one_are_refused(tmp_path):
    (tmp_path / "binary.json").write_bytes(b"\x80\x81\xff")
    with pytest.raises(InputError, match=r"binary\.json: not a calibration file"):
        Calibration.load(tmp_path / "binary.json")
    with pytest.raises(InputError, match=r"^cannot read '.*absent\.json'"):
        Calibration.load(tmp_path / "absent.json")
