"""What the pages say when something fails, and that they go on afterwards."""

from contextlib import closing, contextmanager

import pytest

from tests.support.browser import PAINT_S, chromium_page, needs_chromium, needs_node

pytestmark = [needs_node, needs_chromium]
# a simulator that cannot answer what it is asked first, and then answers with nothing to draw
WORKER = """
let asked = 0;
postMessage({ kind: "ready", loaded: [] });
onmessage = () => {
  asked += 1;
  if (asked === 1) postMessage({ kind: "failed", why: "out of memory" });
  else postMessage({ kind: "answer", answer: %s });
};
"""
NOTHING = {
    "index": "{ panels: [], figures: [], refused: [] }",
    "explorers/zero_grid": "{ figures: [], heads: [], pictures: [], values: {}, idle: {}, refused: null }",
}
SAYS = "text => document.querySelector('#status').textContent === text"
BROKEN, LIVE = "The simulator could not answer: out of memory", "Live"


@contextmanager
def opened(address, path, worker):
    """The page at `path`, where the simulator is the script `worker`."""
    with chromium_page() as browser, closing(browser.context.browser.new_context()) as context:
        context.add_init_script("localStorage.setItem('simlab-tongue', 'en')")
        context.route(
            "**/worker.js", lambda route: route.fulfill(body=worker, content_type="text/javascript")
        )
        page = context.new_page()
        page.set_default_timeout(PAINT_S * 1e3)
        page.goto(f"{address}{path}.html")
        yield page


@pytest.mark.parametrize("path", NOTHING)
def test_a_failed_answer_is_said_until_the_next_one(address, path):
    with opened(address, path, WORKER % NOTHING[path]) as page:
        slider = page.locator("input[type=range]:not(.simlab-sweep *)").first
        if path != "index":  # the page of an explorer has its first answer from the recording
            slider.press("ArrowRight")
        page.wait_for_function(SAYS, arg=BROKEN)
        slider.press("ArrowLeft")
        if path != "index":  # the start again, which is recorded; then one that is not
            slider.press("ArrowRight")
        page.wait_for_function(SAYS, arg=LIVE)


@pytest.mark.parametrize("path, name", [("index", "recorded"), ("explorers/ring", "ring")])
def test_a_recording_that_is_missing_is_named(address, path, name):
    with opened(address, "lessons/index", "") as page:
        page.route(f"**/{name}.json", lambda route: route.fulfill(status=404, body=""))
        page.goto(f"{address}{path}.html")
        why = f"The page could not be loaded; try again: {name}.json: 404"
        page.wait_for_function(SAYS, arg=why)
        assert page.locator("#progress").is_hidden()
