"""The ring explorer: its sliders change what is simulated, its picture and its verdict."""

from base64 import b64decode
from dataclasses import replace

import simlab as sl
from simlab.apps import RingExplorer

PNG = b"\x89PNG\r\n"


def test_traces_are_those_of_the_public_functions_and_sliders_redraw():
    explorer = RingExplorer()
    plan = sl.Plan(cp=4, seq=32_768, cp_layout="contiguous")
    expected = [
        sl.ring_trace(explorer.model, replace(plan, cp_layout=x), explorer.cluster).step_s
        for x in ("contiguous", "zigzag")
    ]
    assert [trace.step_s for trace in explorer.traces()] == expected
    assert f"{expected[0] / expected[1]:.2f} times as long" in explorer.verdict.value
    before = bytes(explorer.picture.value)
    assert before.startswith(PNG)
    explorer.ranks.value = 8
    assert [trace.ranks for trace in explorer.traces()] == [8, 8]
    assert bytes(explorer.picture.value) != before


def test_over_the_network_a_short_sequence_waits_and_a_long_one_does_not():
    explorer = RingExplorer(tokens=4096)
    for tokens, waits in ((4096, True), (131_072, False)):
        explorer.tokens.value = tokens
        steps = []
        for link in explorer.link.options:
            explorer.link.value = link
            steps.append(explorer.traces()[1].step_s)
        assert (steps[1] > 1.5 * steps[0]) == waits
        assert waits or steps[1] == steps[0]


def test_where_no_widget_lives_there_is_the_picture():
    explorer = RingExplorer(ranks=2)
    assert b64decode(explorer._repr_mimebundle_()["image/png"]) == bytes(explorer.picture.value)
