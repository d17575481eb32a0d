"""It draws predicted against measured step times of published runs with matplotlib."""

from collections.abc import Mapping, Sequence
from typing import Any

from simlab.views.charts.amounts import runs_chart
from simlab.views.language import LANGUAGE
from simlab.views.still.marks import THEME
from simlab.views.still.picture import Panels, Picture, drawn, own_style, panels

SYMBOLS = ("o", "s", "^", "D", "v", "P", "X", "o", "<", ".")
MARKS = tuple(zip(LANGUAGE["suites"], SYMBOLS, strict=True))


@own_style
def runs_figure(
    rows: Sequence[tuple[str, float, float]],
    errors: Mapping[str, float],
    *,
    ax: Panels | None = None,
) -> Picture | Panels:
    """Draw each run's predicted over measured step time against its measured one; return the
    Figure.

    rows:   [(suite, measured step time in s, predicted step time in s)].
    errors: {suite: mean absolute error in percent}, for the legend.
    ax:     the axes to draw on, which are then returned. None makes a new Figure.
    """
    picture, (axes,) = panels(ax, 1, width_in=None, usual_width_in=10, height_in=5, dpi=100)
    axes.axhspan(0.9, 1.1, color=THEME["waiting"], label="within 10%")
    axes.axhline(1, color=THEME["muted"], linewidth=1)
    for suite, (colour, marker) in zip(sorted({row[0] for row in rows}), MARKS * (1 + len(rows))):
        its = [(measured_s, s / measured_s) for name, measured_s, s in rows if name == suite]
        many = len(its) > 50
        axes.scatter(
            [measured_s for measured_s, _ in its],
            [ratio for _, ratio in its],
            s=18 if many else 42,
            marker=marker,
            color=colour,
            edgecolors=THEME["outline"],
            linewidths=0.3,
            label=f"{suite}: {len(its)} runs, {errors[suite]:.1f}%",
            zorder=1 if many else 2,
        )
    axes.set_xscale("log")
    axes.set_ylim(0.5, 1.5)
    axes.set_xlabel("measured step time, s")
    axes.set_ylabel("predicted / measured")
    axes.set_title("Published training runs, predicted", fontsize=11, loc="left")
    style: dict[str, Any] = {"title": "suite: runs, mean absolute error", "alignment": "left"}
    style |= {"title_fontsize": 9, "fontsize": 8, "frameon": False}
    if picture is not None:
        picture.legend(loc="outside right upper", **style)
    else:
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), **style)
    return drawn(picture, ax, lambda: [runs_chart(rows, errors)])
