"""The two languages of a lesson's page: what is English text beside a Chinese one can be folded away."""

import re
from collections.abc import Iterator
from html import escape, unescape

from bs4 import BeautifulSoup, Tag

FOLDED = "中文"  # what the lessons fold their Chinese texts under
TEXTS = ("p", "ul", "ol", "blockquote")
HEADINGS = ("h1", "h2", "h3", "h4")
COLUMNS = {"question": "only-en", "问题": "only-zh"}
HAN = r"\u4e00-\u9fff"
CHINESE = re.compile(f"[{HAN}]")
BOTH = re.compile(
    r"<(summary|b|th|td|li)\b([^>]*)>([a-z]\d+ · )?"
    rf"([^<·{HAN}]+) · ([^<·]*?[{HAN}][^<·]*?)( \(?[a-z]\d+\)?)?</\1>"
)
"""A short text in both languages, "English · 中文", and the id of a question before or after it."""


def folded(body: str) -> str:
    """`body`, with English texts that a Chinese one follows in a fold of their own. It is open, and
    its title hidden, on a page in English; a page in Chinese closes it."""
    page = BeautifulSoup(body, "html.parser")
    for table in page.find_all("table"):
        _mark_columns(table)
    for text in [*page.find_all(TEXTS)]:
        if text.find_parent(TEXTS) or CHINESE.search(text.get_text()) or not _followed(text):
            continue
        before = text.find_previous_sibling()
        if before and "english" in before.get("class", ()):
            before.append(text.extract())
            continue
        fold = page.new_tag("details", attrs={"class": "english", "open": ""})
        summary = page.new_tag("summary")
        summary.string = "English"
        text.replace_with(fold)
        fold.extend([summary, text])
    return BOTH.sub(_parted, str(page))


def _parted(found: re.Match[str]) -> str:
    """The element `found`, which a page shows in its own language."""
    tag, attributes, first, english, chinese, last = (part or "" for part in found.groups())
    texts = {"en": english, "zh": chinese}
    said = (
        f' data-{tongue}="{escape(unescape(first + text + last))}"'
        for tongue, text in texts.items()
    )
    return f"<{tag}{attributes}{''.join(said)}>{first}{english} · {chinese}{last}</{tag}>"


def _mark_columns(table: Tag) -> None:
    """A page shows of the questions in both languages those in its own."""
    heads = [cell.get_text().strip() for cell in table.find_all("th")]
    if not {*COLUMNS} <= {*heads}:
        return
    for row in table.find_all("tr"):
        for head, cell in zip(heads, row.find_all(("th", "td"))):
            if head in COLUMNS:
                cell["class"] = COLUMNS[head]


def _followed(text: Tag) -> bool:
    """Whether a Chinese text follows in the same place, before the next heading."""
    return any(
        (part.name in TEXTS and CHINESE.search(part.get_text()))
        or (part.name == "details" and part.find("summary").get_text() == FOLDED)
        for part in _same_place(text)
    )  # fmt: skip


def _same_place(text: Tag) -> Iterator[Tag]:
    for part in text.find_next_siblings():
        if part.name in HEADINGS:
            return
        yield part
