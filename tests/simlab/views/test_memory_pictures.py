"""Pictures of memory: what they draw is what they were given."""

import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import Patch

import simlab as sl
from simlab.errors import InputError
from simlab.units import GIB
from simlab.views.language import colours
from simlab.views.scene import CAP_COLOUR

NODE = sl.load_cluster("dgx-h100")
PLAN = sl.Plan(dp=2, pp=4, microbatches=8, zero=1)
STACK = sl.predict(sl.load_model("llama-3-8b"), PLAN, NODE).memory_stack()


def test_a_stack_is_drawn_up_to_its_peak_with_the_op_and_the_capacity():
    small = STACK._replace(capacity_bytes=20 * GIB, name="small")
    picture = sl.memory_picture([STACK, small])
    first, second = picture.axes
    for axes in (first, second):
        highest = max(
            path.vertices[:, 1].max()
            for area in axes.collections
            if not area.get_hatch()
            for path in area.get_paths()
        )
        assert highest == pytest.approx(max(STACK.totals) / GIB)
        assert any(STACK.ops[STACK.peak] in text.get_text() for text in axes.texts)
    assert not any(area.get_hatch() for area in first.collections) and any(
        area.get_hatch() for area in second.collections
    )
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
    (axes,) = picture.axes
    ends = [patch.get_x() + patch.get_width() for patch in axes.patches]
    assert max(
        end for end, patch in zip(ends, axes.patches) if patch.get_y() < 0.5
    ) == pytest.approx(5)
    assert max(ends) <= 101 and axes.patches[2].get_width() == 10
    assert [text.get_text().strip() for text in axes.texts] == ["5.0 GiB", "101.0 GiB →"]
    assert {text.get_color() for text in axes.texts} == {CAP_COLOUR}


def test_curves_are_drawn_as_they_are():
    ranks = [1, 2, 4]
    curves = sl.zero_curves(1e9, ranks)
    picture = sl.zero_picture(ranks, curves, capacity_bytes=80 * GIB)
    drawn = [list(line.get_ydata()) for line in picture.axes[0].lines]
    for zero in range(4):
        assert drawn[zero] == pytest.approx([size / GIB for size in curves[zero]])


def test_nothing_to_draw_is_said():
    with pytest.raises(InputError, match="no stack"):
        sl.memory_picture([])


def test_a_category_of_memory_has_one_colour_in_every_still():
    table = colours("memory")
    prediction = sl.predict(sl.load_model("llama-3-8b"), PLAN, NODE)
    bars = sl.memory_bars({"a": prediction.memory_bytes})
    stack = sl.memory_picture(STACK).legends[0]
    shares = sl.shares([prediction], ["a"]).axes[1].get_legend()
    for legend in (bars.legends[0], stack, shares):
        found = {
            text.get_text(): to_hex(handle.get_facecolor()).upper()
            for text, handle in zip(legend.get_texts(), legend.legend_handles)
            if isinstance(handle, Patch)
        }
        assert len(found) >= 4 and found == {name: table[name] for name in found}
