"""What the page that simulates in the browser is given, without a browser."""

import json
from base64 import b64decode

import pytest

import simlab as sl
from simlab.schedules import SCHEDULES
from simlab.studies.pipeline import PipelineCase
from simlab.views import page
from simlab.views.packing import panels
from tests.support.chinese import english_words

REQUEST = {
    "schedules": ["1f1b", "interleaved-1f1b"],
    "stages": 4,
    "microbatches": 8,
    "chunks": 2,
    "forward_ms": 20,
    "backward_ms": 40,
    "link_ms": 0.5,
}
CASE = {"stages": 4, "microbatches": 8, "forward_s": 0.02, "backward_s": 0.04, "link_s": 0.0005}


def test_the_answer_is_what_the_same_case_gives_in_python():
    traces = [
        PipelineCase(schedule="1f1b", **CASE).trace(),
        PipelineCase(schedule="interleaved-1f1b", **CASE, chunks=2).trace(),
    ]
    answer = page.pipeline(REQUEST)
    assert answer["panels"] == [panel._asdict() for panel in panels(traces)]
    assert [figures["step_s"] for figures in answer["figures"]] == [run.step_s for run in traces]
    shares = [figures["idle_over_makespan"] for figures in answer["figures"]]
    assert shares == [sl.bubble(run).idle_over_makespan for run in traces]
    assert answer["figures"][0]["peak"] == 4 and answer["refused"] == []


def test_a_schedule_that_cannot_do_it_is_named_and_the_other_one_is_shown():
    answer = page.pipeline(REQUEST | {"schedules": ["dualpipe", "1f1b"], "stages": 3})
    assert [name for name, _ in answer["refused"]] == ["dualpipe"]
    why = answer["refused"][0][1]
    assert "dualpipe on 3 ranks" in why["en"] and len(answer["panels"]) == 1
    assert (
        why["zh"].startswith("3 个 rank、8 个 micro-batch 的 dualpipe：")
        and "ranks" not in why["zh"]
    )


@pytest.mark.parametrize("stages", [1, 3, 16])
@pytest.mark.parametrize("microbatches", [1, 15])
def test_why_a_schedule_cannot_do_what_the_sliders_say_is_said_in_chinese(stages, microbatches):
    names = [name for name in SCHEDULES if name != "zb-auto"]  # whose search takes long
    numbers = {"stages": stages, "microbatches": microbatches, "chunks": 3}
    refused = page.pipeline(REQUEST | {"schedules": names} | numbers)["refused"]
    assert "dualpipe" in dict(refused)
    assert {why["en"]: words for _, why in refused if (words := english_words(why["zh"]))} == {}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"stages": 2.5}, r"stages = 2\.5: give a whole number"),
        ({"microbatches": True}, "microbatches = True: give a whole number"),
        ({"link_ms": "soon"}, "link_ms = 'soon': give ms"),
        ({"chunks": None}, "chunks = None: give a whole number"),
    ],
)
def test_numbers_of_another_type_are_refused(change, said):
    with pytest.raises(sl.InputError, match=said):
        page.pipeline(REQUEST | change)


def test_a_recorded_answer_is_json_with_its_bytes():
    answer = page.pipeline(REQUEST)
    read = json.loads(json.dumps(page.recorded(answer)))
    assert read["figures"] == answer["figures"]
    assert b64decode(read["panels"][1]["boxes"]["base64"]) == answer["panels"][1]["boxes"]


def test_the_page_may_choose_every_schedule_and_knows_which_take_chunks():
    found = {entry["name"]: entry["chunks"] for entry in page.schedules()}
    assert found.keys() == SCHEDULES.keys()
    assert found["interleaved-1f1b"] and not found["1f1b"]
