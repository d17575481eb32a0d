"""Every explorer in JupyterLab itself, at both sizes, in both themes: what is drawn is what Python
says, no text is over another or cut off, nothing is complained of or asked of another machine."""

from simlab.explorers import NAMES, explorer
from simlab.views.chart import Chart
from tests.support.browser import (
    PAINT_S,
    SHUT_DOWN,
    errors_of,
    lab,
    needs_chromium,
    page_at,
    run_all,
)
from tests.support.drawn import CLASHES, DRAWN, SIZES, check

pytestmark = needs_chromium
CELL = f"""
from IPython.display import display
from simlab.apps.explorer_widget import ExplorerWidget
from simlab.explorers import explorer

for name in {NAMES}:
    display(ExplorerWidget(explorer(name), tongue="en"))
"""
CHANGE = "apputils:change-theme"
AROUND = 113  # px of the window that are not the notebook
THEME = f"theme => jupyterapp.commands.execute('{CHANGE}', {{ theme: `JupyterLab ${{theme}}` }})"
# as a learner has it: the notebook is as wide as the window
ALONE = """async () => {
    await jupyterapp.commands.execute('application:set-mode', { mode: 'single-document' });
    if (!jupyterapp.shell.leftCollapsed) await jupyterapp.commands.execute('application:toggle-left-area');
}"""
ANSWERED = (
    f"() => document.querySelectorAll('.simlab-explorer[data-answers]').length === {len(NAMES)}"
)
# as wide as their places, in the theme, and not moving any more
SETTLED = """dark => {
    const plots = [...document.querySelectorAll('.simlab-plot')];
    const fitted = plots.every((e) => Number(e.querySelector('svg')?.getAttribute('width')) === e.clientWidth);
    const paper = (e) => Number(getComputedStyle(e).backgroundColor.match(/[0-9]+/)[0]);
    const themed = [...document.querySelectorAll('.simlab-explorer')].every((e) => paper(e) < 64 === dark);
    const now = plots.map((e) => `${e.clientWidth} ${e.clientHeight}`).join();
    const still = now === window.before;
    window.before = now;
    return plots.length > 0 && fitted && themed && still;
}"""
# texts that reach beyond the cell that they stand in
CUT = """root => {
    const cell = root.closest('.jp-OutputArea-output').getBoundingClientRect();
    return [...root.querySelectorAll('text, label, th, td, button, figcaption')]
        .filter((e) => e.getClientRects().length && e.textContent.trim())
        .filter((e) => { const b = e.getBoundingClientRect(); return b.left < cell.left - 1 || b.right > cell.right + 1; })
        .map((e) => e.textContent);
}"""
CANVAS_CLASHES = """root => [...root.querySelectorAll('canvas')].flatMap((canvas) => {
    const texts = canvas.texts(), found = [];
    texts.forEach((a, i) => {
        if (a.left < 0 || a.right > canvas.clientWidth || a.top < 0 || a.bottom > canvas.clientHeight) found.push(a);
        for (const b of texts.slice(i + 1)) {
            if (a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom) found.push([a, b]);
        }
    });
    return found;
})"""


def test_every_explorer_is_drawn_as_python_says_at_both_sizes_and_in_both_themes(tmp_path):
    with lab(tmp_path, CELL) as url, page_at(url) as (page, asked):
        complaints = errors_of(page)
        page.set_viewport_size(dict(zip(("width", "height"), SIZES[0])))
        cells = run_all(page)
        assert all(each["output_type"] != "error" for cell in cells for each in cell["outputs"])
        page.on("console", lambda line: line.type == "error" and complaints.append(line.text))
        page.evaluate(ALONE)
        page.wait_for_function(ANSWERED, timeout=PAINT_S * 1e3)
        # each after a change of size or of theme
        for size, theme in [(0, "Light"), (0, "Dark"), (1, "Dark"), (1, "Light")]:
            page.set_viewport_size(dict(zip(("width", "height"), SIZES[size])))
            page.evaluate(THEME, theme)
            settled = {"arg": theme == "Dark", "polling": 150, "timeout": PAINT_S * 1e3}
            page.wait_for_function(SETTLED, **settled)
            for name, element in zip(
                NAMES, page.query_selector_all(".simlab-explorer"), strict=True
            ):
                found = explorer(name)
                for picture in found.answer(found.start()).pictures:
                    if isinstance(picture, Chart):
                        drawn = element.query_selector(f'[data-key="{picture.key}"]')
                        check(picture, drawn.evaluate(DRAWN), theme.lower())
                height = element.bounding_box()["height"]
                assert height <= SIZES[size][1] - AROUND, (name, "not on one screen")
                for wrong in (CLASHES, CUT, CANVAS_CLASHES):
                    assert element.evaluate(wrong) == [], (name, SIZES[size], theme)
        page.evaluate(SHUT_DOWN)
    assert not complaints
    assert all(
        address.startswith((url.split("/lab")[0], "data:", "blob:", "ws://127.0.0.1"))
        for address in asked
    )
