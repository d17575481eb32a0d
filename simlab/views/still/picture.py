"""It defines the picture that a notebook shows by itself, and how a picture takes given axes."""

from collections.abc import Callable, Sequence
from functools import wraps
from io import BytesIO
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from matplotlib import rc_context, rcParamsDefault
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from simlab.errors import InputError
from simlab.views.chart import Chart, plotly_figure, write_page

Panels = Axes | Sequence[Axes]
"""What a caller may draw on: one `Axes`, or one for each panel of the picture, in reading order."""
WIDTH_IN = 12.0
"""The width of a picture, in inches, unless the caller gives another one."""


Given = ParamSpec("Given")
Drawn = TypeVar("Drawn")
BACKENDS = ("backend", "backend_fallback")
DEFAULTS = {name: its for name, its in rcParamsDefault.items() if name not in BACKENDS}


def own_style(draw: Callable[Given, Drawn]) -> Callable[Given, Drawn]:
    """Have `draw` work with matplotlib's defaults: a picture has the colours and the fonts of its visual
    language, whatever a matplotlibrc of this machine or a style of a notebook says."""

    @wraps(draw)
    def drawn(*args: Given.args, **kwargs: Given.kwargs) -> Drawn:
        with rc_context(DEFAULTS):
            return draw(*args, **kwargs)

    return drawn


class Picture(Figure):
    """A Figure that a notebook shows by itself.

    A notebook shows matplotlib's own Figure only through pyplot, which keeps global state.
    """

    charts: Sequence[Chart] = ()
    """What it shows, as data that another renderer draws, too."""

    def plotly(self, *, tongue: str = "en", theme: str = "light") -> Any:
        """The same picture as a Figure of plotly, to zoom, restyle and embed.

        tongue: the language of the texts, "en" or "zh". theme: "light" or "dark".

        Raises `MissingLibrary` where plotly is not installed, and `InputError` for a picture that
        has no charts, and for one of too many boxes.
        """
        if not self.charts:
            raise InputError("this picture has no charts that plotly could draw")
        return plotly_figure(self.charts, tongue=tongue, theme=theme)

    @own_style
    def savefig(self, fname: Any, *args: Any, **kwargs: Any) -> None:
        """As matplotlib's, with its defaults; to a path that ends in .html, the page of `plotly`,
        which needs no network."""
        if isinstance(fname, str | Path) and Path(fname).suffix.lower() == ".html":
            write_page(Path(fname), self.plotly())
        else:
            super().savefig(fname, *args, **kwargs)

    def _repr_png_(self) -> bytes:
        whole = BytesIO()
        self.savefig(whole, format="png")
        return with_palette(whole.getvalue())


def with_palette(png: bytes) -> bytes:
    """The picture `png` with a palette of 256 colours, which makes it a third as large and does not
    show, since flat colours are what a picture consists of."""
    small = BytesIO()
    few = Image.open(BytesIO(png)).convert("RGB").quantize(dither=Image.Dither.NONE)
    few.save(small, format="png", optimize=True)
    return small.getvalue()


def panels(
    ax: Panels | None,
    count: int,
    *,
    width_in: float | None,
    height_in: float,
    dpi: int,
    **layout: Any,
) -> tuple[Picture | None, list[Axes]]:
    """The picture and the axes to draw on: a new `Picture`, or None and the axes given as `ax`.

    ax:        what the caller gave: one axes, in which all panels are drawn, or as many as there are
               panels; None asks for a new picture.
    count:     the number of panels that are drawn.
    width_in:  the width in inches that the caller gave; None takes `WIDTH_IN`.
    height_in: the height of a new picture, in inches.
    dpi:       the resolution of a new picture, in pixels per inch.
    layout:    the arguments of `Figure.subplots`.

    Raises `InputError` if `ax` holds another number of axes, or if a width is given together with
    axes, which already have one.
    """
    if ax is None:
        picture = Picture(figsize=(width_in or WIDTH_IN, height_in), layout="constrained", dpi=dpi)
        return picture, list(picture.subplots(squeeze=False, **layout).flat)
    if width_in is not None:
        raise InputError(f"width_in = {width_in}: axes that are given as ax have a width already")
    # pyplot.subplots gives an array, which is flattened row by row
    axes = [ax] if isinstance(ax, Axes) else list(getattr(ax, "flat", ax))
    if len(axes) == 1 and count > 1 and isinstance(axes[0], Axes):
        axes = _split(axes[0], count, **layout)
    if len(axes) != count or not all(isinstance(panel, Axes) for panel in axes):
        raise InputError(f"ax has {len(axes)} axes: this picture needs {count}")
    return None, axes


GAP = 0.08
"""Between two panels in one axes, as a fraction of its width or height."""


def _split(
    ax: Axes,
    count: int,
    *,
    nrows: int,
    ncols: int,
    sharex: bool,
    height_ratios: Sequence[float],
) -> list[Axes]:
    """`count` panels within `ax`, row by row, in place of what it would show itself."""
    share = (1 - GAP * (nrows - 1)) / sum(height_ratios)
    width = (1 - GAP * (ncols - 1)) / ncols
    ax.set_axis_off()
    made: list[Axes] = []
    for row in range(nrows):
        below = sum(height_ratios[row + 1 :]) * share + GAP * (nrows - 1 - row)
        for column in range(min(ncols, count - len(made))):
            place = (column * (width + GAP), below, width, height_ratios[row] * share)
            made.append(ax.inset_axes(place, sharex=made[0] if sharex and made else None))
            made[-1].tick_params(labelbottom=not sharex or row == nrows - 1)
    return made
