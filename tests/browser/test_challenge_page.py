"""The page of challenges: what is solved is counted and marked, and a link shares a solution that is not the
reader's own."""

from contextlib import closing

import pytest

from simlab.explorers.challenge import CHALLENGES
from tests.support.browser import chromium_page, needs_chromium, needs_node
from tests.support.patience import PATIENCE_S

pytestmark = [needs_node, needs_chromium]
PHONE = {"width": 390, "height": 844}
WIDE = "() => document.documentElement.scrollWidth - innerWidth"
HEAR_COPIES = """
window.copied = [];
navigator.clipboard.writeText = async (text) => { window.copied.push(text); };
delete Navigator.prototype.share;
"""
KEPT = "() => Object.keys(JSON.parse(localStorage.getItem('simlab-progress') ?? '{}').challenges ?? {})"
ALL = len(CHALLENGES)


@pytest.fixture(scope="module")
def visitor():
    """What opens the browser of a visitor who has done nothing yet, at an address."""
    with chromium_page() as first:

        def opened(url):
            context = first.context.browser.new_context(viewport=PHONE, locale="en")
            context.add_init_script(HEAR_COPIES)
            page = context.new_page()
            page.set_default_timeout(PATIENCE_S * 1e3)
            page.goto(url)
            page.wait_for_selector("[data-answers]")
            return closing(context), page

        yield opened


def test_a_solved_challenge_is_counted_and_shared_and_does_not_count_for_who_opens_the_link(
    visitor, address
):
    url = f"{address}explorers/challenge.html"
    context, page = visitor(url)
    with context:
        assert page.inner_text("#solved") == f"0 of {ALL} challenges solved"
        assert page.locator("#challenges li").count() == ALL and page.locator("#share").is_hidden()
        page.locator("[data-control=hint] select").select_option("second")
        page.locator("[data-control=zero] select").select_option("3")
        page.wait_for_selector("#share:visible")
        assert page.inner_text("#solved") == f"1 of {ALL} challenges solved"
        assert page.inner_text("[data-id='13b-on-eight']").endswith("✓")
        assert page.locator("#shared").is_hidden() and page.evaluate(WIDE) <= 0
        page.click("#share")
        (text,) = page.evaluate("() => window.copied")
        assert text.startswith("I solved the challenge “13B on eight GPUs”: http")
        assert page.inner_text("#share") == "Copied"
        page.click("#tongue")
        assert page.inner_text("#solved") == f"已完成 1 / {ALL} 个挑战" and page.evaluate(WIDE) <= 0
        assert page.evaluate(KEPT) == ["13b-on-eight"]
    link = text.split(": ")[1]
    assert "zero=3" in link and "hint=0" in link
    context, other = visitor(link)
    with context:
        other.wait_for_selector("#shared:visible")
        assert "Solved" in other.inner_text(".simlab-note")
        assert other.evaluate(KEPT) == [] and "0 of" in other.inner_text("#solved")
        other.locator("[data-control=hint] select").select_option("first")
        other.wait_for_function(
            "() => document.querySelector('.simlab-note').textContent.includes('Adam keeps')"
        )
        assert other.evaluate(KEPT) == []  # to read a hint is no solution
        other.click("#anew")
        other.wait_for_selector("#shared", state="hidden")
        assert other.locator("[data-control=zero] select").input_value() == "0"
        other.locator("[data-control=zero] select").select_option("3")
        other.wait_for_function(f"() => ({KEPT})().length === 1")


def test_the_list_leads_to_a_challenge_with_a_slow_link_which_is_found_in_the_browser(
    visitor, address
):
    context, page = visitor(f"{address}explorers/challenge.html")
    with context:
        page.click("[data-id='slow-link-of-activations'] a")
        link = page.locator("[data-control=link] select")
        link.wait_for(state="visible")
        controls = page.locator("[data-control]:visible").count()
        assert controls == 3  # the challenge, the link, a hint
        link.select_option("2 → 3")
        page.wait_for_function(
            "() => document.querySelector('.simlab-note').textContent.includes('Not yet')"
        )
        assert page.locator("#share").is_hidden()
        link.select_option("1 → 2")
        page.wait_for_selector("#share:visible")
        assert page.evaluate(KEPT) == ["slow-link-of-activations"] and page.evaluate(WIDE) <= 0
