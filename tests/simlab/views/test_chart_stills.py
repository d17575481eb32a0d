"""Charts drawn with matplotlib: they show every mark, and no text lies over another."""

from dataclasses import replace
from functools import cache

import pytest
from matplotlib import rc_context
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_hex
from matplotlib.font_manager import fontManager
from matplotlib.patches import FancyArrowPatch, Rectangle

import simlab as sl
from simlab.apps import CausalMask
from simlab.explorers import NAMES, explorer
from simlab.views.chart import Area, Arrows, Axis, Boxes, Chart, Dots, Line, Rule, Words
from simlab.views.language import LANGUAGE, text_colour
from simlab.views.still import wording
from simlab.views.still.chart import charts, joint
from simlab.views.still.marks import HATCHES
from simlab.views.still.wording import CHINESE_FONTS, chinese_font
from tests.support.chinese import needs_chinese_font
from tests.support.still_texts import lie_apart, texts

RANKS, GIB = Axis(Words("ranks", "rank 数"), "log2"), Axis(Words("GiB", "GiB"), least=0)
NONE = Axis(Words("", ""))


def curves():
    return Chart(
        "curves",
        Words("What a rank holds of the states, over the ranks that share them " * 3, "状态" * 90),
        RANKS,
        GIB,
        [
            Line([1, 4, 4096], [10, 5, 2], "#0072B2", Words("ZeRO-1", "ZeRO-1")),
            Line([1, 4, 4096], [10, 4, 1], "ink", Words("ZeRO-2", "ZeRO-2"), (6, 3), True),
            Rule("cap", Words("memory of a GPU", "GPU 显存"), y=9),
            Rule("muted", x=64),
            Dots([4], [5], "#D55E00", Words("chosen", "所选"), labels=["here"]),
        ],
    )


def matrix():
    names = [Words(f"a kind of work with a long name, number {at}", f"{at}") for at in range(6)]
    rows = [
        Boxes.at([(0, 1, at, at + 1), (1, 2, at, at + 1)], "#0072B2", name, labels=["a", "b"])
        for at, name in enumerate(names)
    ]
    ticks = Axis(Words("columns", "列"), ticks=[0.5, 1.5], names=["the first column", "the next"])
    return Chart("matrix", Words("Matrix", "矩阵"), ticks, GIB, rows, height=150, square=True)


def stack():
    marks = [
        Area([0, 1, 2], [0, 0, 0], [3, 4, 1], "#009E73", Words("one", "一"), pattern=pattern)
        for pattern in HATCHES
    ]
    idle = Boxes([1], [2], [5], [6], "waiting", Words("idle", "空闲"), "hatched", outline="ink")
    return Chart("stack", Words("Stack", "堆"), NONE, NONE, [*marks, idle])


def ring():
    at = [0, 1, 1, 0], [0, 0, 1, 1]
    arrows = Arrows(*at, [1, 1, 0, 0], [0, 1, 1, 0], "#CC79A7", labels=["1 MiB"] * 4)
    marks = [arrows, Dots(*at, "#0072B2", radius=12, labels=["0", "1", "2", "3"])]
    return Chart("ring", Words("Ring", "环"), NONE, NONE, marks, square=True, bare=True)


ALL = curves, matrix, stack, ring


@pytest.mark.parametrize("columns", [1, 2, 4])
def test_every_text_is_inside_the_figure_and_none_lies_over_another(columns):
    figure = charts([make() for make in ALL], columns=columns)
    assert len(texts(figure)) > 30
    lie_apart(figure)


@pytest.mark.parametrize("columns", [1, 2])
@pytest.mark.parametrize("name", sorted({*NAMES} - {"pipeline", "puzzle"}))  # timelines only
def test_so_are_those_of_every_explorer(name, columns):
    found = explorer(name)
    pictures = found.answer(found.start()).pictures
    lie_apart(charts([each for each in pictures if isinstance(each, Chart)], columns=columns))


@pytest.mark.parametrize("make", ALL)
def test_a_legend_names_the_named_marks_and_nothing_else(make):
    chart = make()
    (part,) = charts(chart).subfigs
    shown = [text.get_text() for legend in part.legends for text in legend.get_texts()]
    assert shown == [name.en for name in dict.fromkeys(m.name for m in chart.marks) if name]


def test_colours_patterns_and_places_are_those_of_the_marks():
    (panel,) = charts(stack()).axes
    *areas, box, outline = panel.findobj(PolyCollection)
    assert [area.get_hatch() for area in areas] == list(HATCHES.values())
    assert {to_hex(area.get_facecolor()[0]) for area in areas} == {"#009e73"}
    light = LANGUAGE["themes"]["light"]
    assert to_hex(box.get_facecolor()[0]).upper() == light["waiting"].upper()
    assert to_hex(outline.get_edgecolor()[0]).upper() == light["ink"].upper()
    assert box.get_paths()[0].get_extents().extents.tolist() == [1, 5, 2, 6]
    top = areas[0].get_paths()[0].vertices.tolist()
    assert [1, 3] in top and [1, 4] in top  # 3 until 1, and 4 from there on


def test_lines_keep_their_colours_and_log2_axes_have_powers_of_two():
    (panel,) = charts(curves()).axes
    solid, stepped, cap, *_ = panel.lines
    assert (solid.get_color(), solid.get_xdata().tolist()) == ("#0072B2", [1, 4, 4096])
    assert stepped.get_drawstyle() == "steps-post" and stepped.get_linestyle() == "--"
    assert cap.get_color() == LANGUAGE["themes"]["light"]["cap"] and {*cap.get_ydata()} == {9}
    shown = [t.get_text() for t in panel.get_xticklabels() if t.get_visible()]
    assert shown[:3] == ["1", "2", "4"] and shown[-1] == "4,096"
    assert panel.get_ylim()[0] == 0


def test_a_label_is_written_where_it_fits_into_its_box():
    wide = Boxes.at([(0, 1, 0, 1), (1, 3, 0, 1)], "#0072B2", labels=["a", "long" * 30])
    (panel,) = charts(replace(matrix(), marks=[wide])).axes
    assert [text.get_text() for text in panel.texts] == ["a"]


@pytest.mark.parametrize(("last", "count"), [("a", 12), ("long" * 30, 0)])
def test_boxes_of_one_size_are_all_labelled_or_none_is(last, count):
    *rows, end = matrix().marks
    chart = replace(matrix(), marks=[*rows, replace(end, labels=["a", last])])
    (panel,) = charts(chart).axes
    assert len(panel.texts) == count


def test_arrows_go_from_points_to_points_and_leave_the_scale_alone():
    (panel,) = charts(ring()).axes
    assert len(panel.findobj(FancyArrowPatch)) == 4
    assert {text.get_text() for text in panel.texts} == {"0", "1", "2", "3", "1 MiB"}
    assert panel.get_xlim() == panel.get_ylim()


def test_boxes_are_made_of_their_places():
    assert Boxes.at([(0, 1, 2, 3), (4, 5, 6, 7)], "ink", pattern="striped") == Boxes(
        (0, 4), (1, 5), (2, 6), (3, 7), "ink", None, "striped"
    )
    assert Boxes.at([], "ink").x0 == ()


def test_a_label_in_a_box_has_no_rim_which_would_reach_out_of_a_low_one():
    (panel,) = charts(matrix()).axes
    labels = [text for text in panel.texts if text.get_text() in ("a", "b")]
    assert labels and all(text.get_path_effects() == [] for text in labels)


def test_a_label_in_a_pattern_stands_on_a_plate_of_its_colour():
    def plates(pattern):
        mark = Boxes.at([(0, 1, 0, 1)], "#56B4E9", pattern=pattern, labels=["QKV"])
        (panel,) = charts(Chart("t", Words("a", "b"), NONE, NONE, [mark])).axes
        return [text.get_bbox_patch() for text in panel.texts]

    assert plates("plain") == [None]
    (plate,) = plates("dotted")
    assert to_hex(plate.get_facecolor()).upper() == "#56B4E9"


def test_rows_that_grow_downward_begin_at_the_top():
    chart = Chart("rows", Words("a", "b"), NONE, Axis(Words("", ""), down=True), [Rule("ink", y=1)])
    low, high = charts(chart).axes[0].get_ylim()
    assert low > high


def test_charts_can_be_drawn_on_given_axes():
    axes = sl.views.still.picture.Figure().subplots(1, 2)
    given = list(axes)
    assert charts([curves(), stack()], ax=given) is given
    assert given[0].get_legend().get_texts()[0].get_text() == "ZeRO-1"
    with pytest.raises(sl.InputError, match="ax has 2 axes: this picture needs 1"):
        charts(curves(), ax=given)


def test_charts_that_share_a_name_have_one_legend_with_all_their_looks():
    """What is nowhere drawn, and only explains, comes last; names of others have their own legend."""
    said = Boxes.at([], "waiting", Words("idle", "空闲"))
    first, second = (
        Boxes.at([(0, 1, 0, 1)], colour, Words("forward", "前向"), outline="ink")
        for colour in ("#0072B2", "#56B4E9")
    )
    other = Boxes.at([(1, 2, 0, 1)], "#E69F00", Words("backward", "反向"))
    parts = [[said, first], curves().marks, [second, other]]
    figure = joint([replace(stack(), marks=marks) for marks in parts])
    (legend,), (_, beside, _) = figure.legends, figure.axes
    assert [text.get_text() for text in legend.get_texts()] == ["forward", "backward", "idle"]
    swatches = {to_hex(patch.get_facecolor()).upper() for patch in legend.findobj(Rectangle)}
    assert {"#0072B2", "#56B4E9", "#E69F00"} <= swatches
    assert beside.get_legend().get_texts()[0].get_text() == "ZeRO-1"


def test_charts_over_time_share_their_axis_and_say_its_name_once():
    timed = [replace(stack(), timed=True, x=RANKS) for _ in range(2)]
    above, below = joint(timed).axes
    assert above.get_shared_x_axes().joined(above, below)
    assert (above.get_xlabel(), below.get_xlabel()) == ("", "ranks")


@pytest.mark.parametrize(
    ("label", "short", "narrow"),
    [("QKV, attention, output", "QKV…", 0.03), ("layer 12", "L12", 0.03), ("1 of 8", "1", 0.015)],
)
def test_a_label_without_room_is_written_in_its_short_form(label, short, narrow):
    def written(wide):
        mark = Boxes.at([(0, wide, 0, 1)], "#56B4E9", labels=[label])
        axis = Axis(Words("", ""), least=0, most=1)
        (panel,) = charts(Chart("t", Words("a", "b"), axis, axis, [mark])).axes
        return [text.get_text() for text in panel.texts]

    assert written(0.5) == [label] and written(narrow) == [short] and written(0.001) == []


@pytest.fixture
def no_font(monkeypatch):
    """A machine without a Chinese font; returns the fonts that it really has."""
    there = list(fontManager.ttflist)
    files = {font.fname for font in there if font.name in CHINESE_FONTS}  # one has several families
    few = [font for font in there if font.fname not in files]
    monkeypatch.setattr(fontManager, "ttflist", few)
    monkeypatch.setattr(wording, "findSystemFonts", list)
    for each in (wording._list_new_fonts, wording._say_that_no_font_is_there):
        monkeypatch.setattr(wording, each.__name__, cache(each.__wrapped__))
    return there


@needs_chinese_font
def test_a_font_that_was_installed_after_matplotlib_had_listed_all_is_found(no_font, monkeypatch):
    """`make demo` has the fonts listed, and `make test` installs the Chinese ones afterwards."""
    path = next(font.fname for font in no_font if font.name in CHINESE_FONTS)
    assert chinese_font() is None
    wording._list_new_fonts.cache_clear()
    broken = __file__  # a file that is no font, as some on a machine are none that FreeType reads
    monkeypatch.setattr(wording, "findSystemFonts", lambda: [broken, path])
    assert chinese_font() in CHINESE_FONTS
    assert charts(curves(), tongue="zh")


def test_an_explorer_without_a_chinese_font_is_drawn_in_english_and_says_so_once(no_font, capsys):
    widget = CausalMask(tongue="zh")
    english = widget.still("en")
    assert widget.still()._repr_png_() == english._repr_png_()
    widget.in_tongue(english, "zh")
    assert "image/png" in widget._repr_mimebundle_()[0]
    (line,) = capsys.readouterr().err.splitlines()
    assert "pictures stay English" in line and "fonts-noto-cjk" in line


def test_chinese_needs_a_font_that_has_it(no_font):
    with pytest.raises(sl.InputError, match="install one, such as Noto Sans CJK"):
        charts(curves(), tongue="zh")
    with pytest.raises(sl.InputError, match="tongue = 'fr': give one of en, zh"):
        charts(curves(), tongue="fr")


@needs_chinese_font
def test_chinese_texts_are_drawn_where_there_is_a_font():
    (panel,) = charts(stack(), tongue="zh").axes
    assert panel.figure.legends[0].get_texts()[-1].get_text() == "空闲"


def test_a_picture_is_the_same_whatever_style_the_machine_has():
    trace = sl.simulate(sl.generate("1f1b", 2, 2), sl.OpTimes(forward_s=1, backward_s=2))
    draws = (lambda: charts(curves()), lambda: sl.timeline(trace))
    usual = [draw()._repr_png_() for draw in draws]
    odd = {
        "font.family": "cursive",
        "font.size": 31,
        "savefig.bbox": "tight",
        "text.color": "white",
    }
    with rc_context(odd | {"axes.facecolor": "black", "savefig.dpi": 20}):
        assert [draw()._repr_png_() for draw in draws] == usual


def test_no_chart_is_refused():
    with pytest.raises(sl.InputError, match="no chart to draw"):
        charts([])
    with pytest.raises(sl.InputError, match="columns = 0"):
        charts(curves(), columns=0)


@pytest.mark.parametrize("height", [130, 230])
@pytest.mark.parametrize("most", [7, 88, 149])
def test_a_linear_axis_has_three_ticks_or_more(height, most):
    axis = Axis(Words("GiB", "GiB"), least=0, most=most)
    line = Line([0, 1], [0, most], "ink")
    (panel,) = charts(Chart("line", Words("Line", "线"), NONE, axis, [line], height=height)).axes
    low, high = panel.get_ylim()
    shown = [t for t in panel.yaxis.get_major_ticks() if t.label1.get_visible()]
    assert sum(low <= tick.get_loc() <= high for tick in shown) >= 3


def test_a_text_in_a_box_has_the_colour_with_more_contrast():
    """Of WCAG 2: #D55E00 has 3.9 with white and 5.4 with black, #009E73 3.4 and 6.1."""
    black = [text_colour(fill) for fill in ("#D55E00", "#009E73", "#E69F00", "#787878")]
    white = [text_colour(fill) for fill in ("#0072B2", "#666666", "#000000")]
    assert {*black} == {"#000000"} and {*white} == {"#FFFFFF"}


def test_a_wide_chart_has_the_room_of_all_columns():
    figure = charts([replace(stack(), wide=True), curves(), ring()], columns=2)
    figure.draw_without_rendering()
    wide, left, right = (
        panel.get_subplotspec().get_gridspec().figure.bbox for panel in figure.axes
    )
    assert wide.width == pytest.approx(left.width + right.width, rel=0.02)
    assert wide.y0 >= left.y1 and left.y0 == pytest.approx(right.y0)
