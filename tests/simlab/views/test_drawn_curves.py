"""The curves of the lessons: what a picture says is what it was given."""

from simlab.views.chart import Dots, Line, Rule
from simlab.views.still.curves import Curves, curves

LEFT = Curves("left", "GPUs", [8, 64, 1024], "%", {"one": [1, 2, 3], "two": [3, 2, 1]})


def test_each_line_has_its_points_and_its_own_colour_dash_and_symbol():
    marks = LEFT.chart().marks
    lines = [mark for mark in marks if isinstance(mark, Line)]
    dots = [mark for mark in marks if isinstance(mark, Dots)]
    assert [list(line.y) for line in lines] == [[1, 2, 3], [3, 2, 1]]
    assert [line.name.en for line in lines] == ["one", "two"]
    for marks in ([line.colour for line in lines], [dot.symbol for dot in dots]):
        assert len({*marks}) == 2
    assert LEFT.chart().x.names == ["8", "64", "1024"]


def test_a_limit_is_a_line_across_and_pictures_stand_side_by_side():
    limited = LEFT._replace(cap=("memory", 80.0))
    (rule,) = [mark for mark in limited.chart().marks if isinstance(mark, Rule)]
    assert rule.y == 80.0 and rule.x is None
    picture = curves(LEFT, limited)
    boxes = [axes.get_window_extent() for axes in picture.axes]
    assert boxes[0].x1 < boxes[1].x0 and abs(boxes[0].y0 - boxes[1].y0) < 1
