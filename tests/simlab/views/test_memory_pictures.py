"""Pictures of memory: what they draw is what they were given."""

import pytest

import simlab as sl
from simlab.errors import InputError
from simlab.units import GIB
from simlab.views.chart import Area, Boxes, Dots, Line, Rule
from simlab.views.language import LANGUAGE, colours

NODE = sl.load_cluster("dgx-h100")
PLAN = sl.Plan(dp=2, pp=4, microbatches=8, zero=1)
STACK = sl.predict(sl.load_model("llama-3-8b"), PLAN, NODE).memory_stack()


def of(chart, kind):
    """The marks of `kind` of `chart`."""
    return [mark for mark in chart.marks if isinstance(mark, kind)]


def test_a_stack_is_drawn_up_to_its_peak_with_the_op_and_the_capacity():
    small = STACK._replace(capacity_bytes=20 * GIB, name="small")
    picture = sl.memory_picture([STACK, small])
    for chart in picture.charts:
        highest = max(max(area.high) for area in of(chart, Area))
        assert highest == pytest.approx(max(STACK.totals) / GIB)
        peak = of(chart, Dots)[-1]
        assert peak.y == [pytest.approx(highest)] and STACK.ops[STACK.peak] in peak.labels[0]
    assert [len(of(chart, Dots)) for chart in picture.charts] == [1, 2]  # where it is first over it
    assert [rule.y for chart in picture.charts for rule in of(chart, Rule)] == [
        pytest.approx(capacity / GIB) for capacity in (STACK.capacity_bytes, small.capacity_bytes)
    ]
    assert picture._repr_png_().startswith(b"\x89PNG")


def test_the_time_axis_holds_the_longest_of_several_stacks():
    longer = STACK._replace(edges=tuple(2 * edge for edge in STACK.edges))
    for stacks in ([STACK, longer], [longer, STACK]):
        for axes in sl.memory_picture(stacks).axes:
            assert axes.get_xlim() == pytest.approx((0, 1e3 * longer.edges[-1]))


def test_bars_end_at_their_sums_and_the_ones_too_long_are_cut_off():
    bars = {
        "a": {"parameters": 2 * GIB, "activations": 3 * GIB},
        "b": {"optimizer": 100 * GIB, "buffers": 1 * GIB},
    }
    picture = sl.memory_bars(bars, capacity_bytes=4 * GIB, longest_bytes=10 * GIB)
    (chart,), (axes,) = picture.charts, picture.axes
    ends = {}
    for mark in of(chart, Boxes):
        for end, low, high in zip(mark.x1, mark.y0, mark.y1):
            row = round((low + high) / 2)
            ends[row] = max(end, ends.get(row, 0))
    assert ends == {0: pytest.approx(5), 1: pytest.approx(101)} and axes.get_xlim()[1] < 12
    assert [text.get_text() for text in axes.get_yticklabels()] == ["a: 5.0 GiB", "b: 101.0 GiB"]
    assert [rule.x for rule in of(chart, Rule)] == [4]


def test_curves_are_drawn_as_they_are():
    ranks = [1, 2, 4]
    curves = sl.zero_curves(1e9, ranks)
    picture = sl.zero_picture(ranks, curves, capacity_bytes=80 * GIB)
    drawn = [line.y for line in of(picture.charts[0], Line)]
    assert drawn == [pytest.approx([size / GIB for size in curves[zero]]) for zero in range(4)]
    legend = [text.get_text() for text in picture.subfigs[0].legends[0].get_texts()]
    assert legend[-1] == "the GPU's memory: 80.0 GiB"


def test_nothing_to_draw_is_said():
    with pytest.raises(InputError, match="no stack"):
        sl.memory_picture([])


def test_a_category_of_memory_has_one_colour_in_every_still():
    names = {its["en"]: colours("memory")[name] for name, its in LANGUAGE["memory"].items()}
    prediction = sl.predict(sl.load_model("llama-3-8b"), PLAN, NODE)
    bars = sl.memory_bars({"a": prediction.memory_bytes}).charts[0]
    stack = sl.memory_picture(STACK).charts[0]
    shares = sl.shares([prediction], ["a"]).charts[1]
    for chart in (bars, stack, shares):
        found = {mark.name.en: mark.colour for mark in of(chart, Boxes | Area)}
        assert len(found) >= 4 and found == {name: names[name] for name in found}
