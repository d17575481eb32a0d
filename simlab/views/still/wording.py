"""It says the texts of a finished picture in other words, such as those of another language."""

import re
import sys
from collections.abc import Callable
from functools import cache

from matplotlib.figure import Figure
from matplotlib.font_manager import findSystemFonts, fontManager
from matplotlib.text import Text

from simlab.views.language import is_term, said

CHINESE_FONTS = (
    "Noto Sans CJK SC",
    "Noto Sans SC",
    "Source Han Sans SC",
    "WenQuanYi Micro Hei",
    "WenQuanYi Zen Hei",
    "PingFang SC",
    "Hiragino Sans GB",
    "Microsoft YaHei",
    "SimHei",
    "Noto Sans CJK JP",
    "Droid Sans Fallback",
)

FIGURE = re.compile(r"[\d.,]+( ?(%|s|ms|µs|min|B|KiB|MiB|GiB|KB|MB|GB|TB))?")
"""What may follow a caption, with its unit."""


def chinese_font() -> str | None:
    """The first family of this machine that has Chinese characters; None if it has none.

    matplotlib keeps a list of the machine's fonts in its cache and never makes it anew. Where that
    list has no such family, the fonts that were installed after it was made are added to it.
    """
    found = _listed()
    if found is None:
        _list_new_fonts()
        found = _listed()
    return found


def _listed() -> str | None:
    there = {font.name for font in fontManager.ttflist}
    return next((name for name in CHINESE_FONTS if name in there), None)


@cache
def _list_new_fonts() -> None:
    """Add the font files that matplotlib's list lacks, once per process."""
    for path in {*findSystemFonts()} - {font.fname for font in fontManager.ttflist}:
        try:
            fontManager.addfont(path)
        except Exception:  # as matplotlib does: FreeType and fontTools raise errors of many kinds
            continue


def drawable(tongue: str) -> str:
    """The language that a picture can be drawn in: `tongue`, or "en" where `tongue` is "zh" and no
    font of this machine has Chinese characters. Then one line on the standard error says so, once
    per process."""
    if tongue == "zh" and chinese_font() is None:
        _say_that_no_font_is_there()
        return "en"
    return tongue


@cache
def _say_that_no_font_is_there() -> None:
    print(
        "没有找到含中文字符的字体，图中文字保持英文 (pictures stay English: no font here has Chinese "
        "characters; install one, such as Noto Sans CJK, fonts-noto-cjk in Debian)",
        file=sys.stderr,
    )


def say_in_chinese(figure: Figure, phrase: Callable[[str], str]) -> None:
    """Replace the English texts of `figure` by Chinese ones, in place, where this machine has a font
    for them; elsewhere they stay, and one line says so (`drawable`).

    phrase: an English text → the Chinese one, or the same text where it knows none; then the terms
    of the visual language are replaced in it. What the charts of `figure` say in both languages is
    theirs.
    """
    font = chinese_font()
    if font is None:
        _say_that_no_font_is_there()
        return

    own = _own_words(figure)

    def chinese(text: str) -> str:
        if (whole := " ".join(text.split())) in own:  # without the breaks of lines
            return own[whole]
        # a figure is in a line of its own, and a label of words may be known as a whole
        if "\n" in text and (re.search(r"\d", text) or phrase(text) == text):
            return "\n".join(map(chinese, text.split("\n")))
        if is_term(text):
            return said(text, "zh")
        caption, _, rest = text.rpartition(": ")
        known = phrase(caption) if FIGURE.fullmatch(rest) else caption
        if known != caption:
            return f"{known}：{said(rest, 'zh')}"
        known = phrase(text)
        if known != text:
            return known
        name, comma, rest = text.partition(", ")  # or a name, in the title of a timeline
        known = phrase(name) if comma else name
        return f"{known}，{chinese(rest)}" if known != name else said(text, "zh")

    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            places, limits = list(axis.get_majorticklocs()), axis.get_view_interval()
            names = list(map(str, axis.get_major_formatter().format_ticks(places)))
            other = [chinese(name) for name in names]
            if other != names:  # else they are numbers, which the axis writes anew when it is drawn
                axis.set_ticks(places, other)
                axis.set_view_interval(*limits, ignore=True)
    for text in figure.findobj(Text):
        text.set_text(chinese(text.get_text()))
        text.set_fontfamily(["DejaVu Sans", font])


def _own_words(figure: Figure) -> dict[str, str]:
    """{English: Chinese} of the texts of the charts that `figure` draws, if it draws some."""
    found: dict[str, str] = {}
    for chart in getattr(figure, "charts", ()):
        names = [name for name, _ in chart.legend()]
        for words in (chart.title, chart.x.label, chart.y.label, *names):
            lines = zip(words.en.split("\n"), words.zh.split("\n"))
            found |= {en: zh for en, zh in lines if en != zh}
    return found
