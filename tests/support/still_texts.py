"""The texts of a still picture, and whether they can be read."""

from itertools import combinations

from matplotlib.text import Text


def texts(figure):
    """[(text, its box of pixels)] of every text that can be seen in `figure`."""
    out = set()
    for panel in figure.axes:
        out |= set() if panel.get_visible() else {*panel.findobj(Text)}
        for axis in (panel.xaxis, panel.yaxis):
            low, high = sorted(axis.get_view_interval())
            for tick in axis.get_major_ticks():
                if not (panel.axison and low <= tick.get_loc() <= high):
                    out |= {tick.label1, tick.label2}
    seen = [t for t in figure.findobj(Text) if t.get_visible() and t.get_text() and t not in out]
    return [(text.get_text(), text.get_window_extent()) for text in seen]


def lie_apart(figure):
    """Fail where a text of `figure` reaches out of it or lies over another one."""
    found = texts(figure)
    for text, box in found:
        assert figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1, text
        assert figure.bbox.y0 <= box.y0 and box.y1 <= figure.bbox.y1, text
    for (one, box), (other, its) in combinations(found, 2):
        assert not box.overlaps(its), (one, other)
