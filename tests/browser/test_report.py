"""realrun's report as a file: opened from the disk it draws its timelines and asks for nothing."""

import json
import re
from base64 import b64decode
from struct import calcsize, unpack
from types import SimpleNamespace

import pytest
from timelines import ROOT

from realrun.report import page as report_page
from realrun.report.page import Reported, write_html
from realrun.report.traces import RunTraces
from simlab.trace import Trace
from simlab.views.language import LANGUAGE
from simlab.views.scene import scenes
from tests.support.browser import chromium_page, needs_chromium

RECORDED = ("gpipe", "zb-v")
EVIL = "</script><script>window.evil = 1</script><!-- & <b>"


@pytest.fixture(scope="module")
def traces():
    found = []
    for name in RECORDED:
        predicted, measured = (
            Trace.load(ROOT / "assets" / "recorded" / f"{name}-{kind}.json")
            for kind in ("predicted", "measured")
        )
        found.append(RunTraces(predicted, measured, predicted.step_s, [measured.step_s]))
    found[0].measured.metadata["name"] = EVIL
    return found


@pytest.fixture(scope="module")
def report(traces, tmp_path_factory):
    """The page of two runs; what the summaries say is not of interest here."""
    facts = {"compute": "padded", "why_compute": "<why>", "device": "cpu", "name": EVIL}
    path = tmp_path_factory.mktemp("report") / "report.html"
    job = SimpleNamespace(programs=[*RECORDED])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report_page, "summary", lambda job, facts: EVIL)
        write_html(path, [Reported(job, facts, each) for each in traces], [])
    return path


def column(packed, code):
    """The numbers of a packed column of the page."""
    raw = b64decode(packed["base64"])
    return unpack(f"<{len(raw) // calcsize(code)}{code}", raw)


def test_the_page_has_the_boxes_of_the_scenes_and_no_plotting_library(report, traces):
    page = report.read_text(encoding="utf-8")
    assert "plotly" not in page.lower() and len(page) < 300_000
    data = re.search(r'<script type="application/json" id="simlab-timelines">(.*?)</script>', page)
    for drawn, its in zip(json.loads(data[1])["timelines"], traces, strict=True):
        for packed, view in zip(drawn, scenes([its.predicted, its.measured]), strict=True):
            assert (packed["title"], packed["stages"]) == (view.title, view.stages)
            edges, ranks = column(packed["boxes"], "f"), column(packed["rows"], "H")
            kinds, ops = (b64decode(packed[name]["base64"]).decode() for name in ("kinds", "ops"))
            assert ops.split() == [box.op for box in view.boxes]
            assert [*zip(ranks, kinds)] == [(box.rank, box.kind) for box in view.boxes]
            expected = [box.start_s for box in view.boxes] + [box.end_s for box in view.boxes]
            assert edges == pytest.approx(expected, abs=1e-6)


@needs_chromium
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_opened_from_the_disk_it_draws_everything_and_asks_for_nothing(report, traces, scheme):
    with chromium_page() as page:
        asked, wrong = [], []
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.emulate_media(color_scheme=scheme)
        page.goto(report.as_uri())
        page.wait_for_function(
            "() => document.querySelectorAll('canvas[data-painted]').length == 2"
        )
        assert page.evaluate("window.evil") is None and wrong == []
        assert [url for url in asked if not url.startswith("blob:")] == [report.as_uri()]
        for at, its in enumerate(traces):
            canvas = page.locator("canvas").nth(at)
            texts = canvas.evaluate("c => c.texts()")
            titles = [text["text"] for text in texts if text["part"] == "title"]
            assert titles[0].startswith("Predicted: ") and titles[1].startswith("Measured: ")
            assert float(canvas.get_attribute("data-step-s")) == pytest.approx(its.predicted.step_s)
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        shown = LANGUAGE["themes"][scheme]["background"]
        expected = ", ".join(str(int(shown[at : at + 2], 16)) for at in (1, 3, 5))
        assert background == f"rgb({expected})"
