"""python assets/share.py: draw the pictures that stand for pages of the site where they are shared: the title
in both languages, and something that the page shows. Run by `make record`, and after a title has changed.
"""

import json
from pathlib import Path

import yaml
from matplotlib import rc_context
from matplotlib.figure import Figure

import simlab as sl
from simlab.explorers import explorer
from simlab.views.still.chart import charts
from simlab.views.still.wording import chinese_font

HERE = Path(__file__).parent
ROOT = HERE.parent
WIDTH_IN, HEIGHT_IN, DPI = 12, 6.3, 100  # 1200 x 630 pixels, as Open Graph's readers show them
LEFT, RIGHT = 0.06, 0.97
SHOWN = "b09", "w05", "w10", "d18"
"""Questions of the list, as examples."""
BLUE, MUTED = "#0072B2", "#5C5C5C"


def main():
    """Draw the picture of each page of the site's navigation that has one of its own."""
    pages = json.loads((ROOT / "web" / "site" / "pages.json").read_text(encoding="utf-8"))
    drawn = {"pipelines": pipelines, "questions": questions, "explorers": explorers}
    with rc_context({"font.family": ["DejaVu Sans", chinese_font()]}):
        for page in pages:
            name = Path(page["image"]).stem
            if draw := drawn.pop(name, None):
                figure = Figure(figsize=(WIDTH_IN, HEIGHT_IN), dpi=DPI)
                title = f"{page['en']} · {page['zh']}"
                figure.text(LEFT, 0.89, page["en"], fontsize=27, fontweight="bold")
                figure.text(LEFT, 0.80, page["zh"], fontsize=25, fontweight="bold")
                figure.text(RIGHT, 0.03, "simlab", fontsize=20, color=BLUE, ha="right")
                draw(figure)
                figure.savefig(HERE / "share" / f"{name}.png", metadata={"Title": title})


def pipelines(figure):
    """Two schedules under each other, as the first page shows them."""
    times = sl.OpTimes(forward_s=0.02, backward_s=0.04, input_grad_s=0.02, weight_grad_s=0.02)
    traces = [sl.simulate(sl.generate("1f1b", 4, 8), times)]
    halves = sl.OpTimes(forward_s=0.01, input_grad_s=0.01, weight_grad_s=0.01)
    traces.append(sl.simulate(sl.generate("zb-v", 4, 8), halves))
    axes = figure.subplots(2, 1, sharex=True)
    figure.subplots_adjust(left=0.125, right=RIGHT, bottom=0.13, top=0.72, hspace=0.3)
    sl.timeline(traces, ax=axes, memory=False)
    for each in axes:
        if each.get_legend():
            each.get_legend().remove()


def questions(figure):
    """Some of the questions, in both languages."""
    asked = yaml.safe_load((ROOT / "notebooks" / "questions.yml").read_text(encoding="utf-8"))
    titles = {each["id"]: each for each in asked}
    for at, name in enumerate(SHOWN):
        top = 0.66 - 0.155 * at
        figure.text(LEFT, top, name, fontsize=20, color=BLUE, fontweight="bold")
        figure.text(LEFT + 0.07, top, titles[name]["title_en"], fontsize=17)
        figure.text(LEFT + 0.07, top - 0.06, titles[name]["title_zh"], fontsize=17, color=MUTED)


def explorers(figure):
    """The step and the memory of a plan."""
    found = explorer("plan")
    shown = found.answer(found.start()).pictures[:2]
    axes = figure.subplots(2, 1)
    figure.subplots_adjust(left=LEFT, right=0.72, bottom=0.18, top=0.72, hspace=0.9)
    charts(shown, ax=axes)


if __name__ == "__main__":
    main()
