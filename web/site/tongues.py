"""The two languages of a lesson's page: each text stands where a reader of its language looks for it,
and what it says in the other language is folded behind it."""

import re
from collections.abc import Collection, Iterator
from copy import copy
from html import escape, unescape

from bs4 import BeautifulSoup, Tag

NAMES = {"en": "English", "zh": "中文"}  # the lessons fold their Chinese texts under the latter
TEXTS = ("p", "ul", "ol", "blockquote")
SHARED = ("table", "pre")
PLACES = ".text_cell_render, .output_subarea, details"
COLUMNS = {"question": "only-en", "问题": "only-zh"}
NUMBERS = {"en": "id", "zh": "编号"}  # what the questions are told apart by
HAN = r"\u4e00-\u9fff"
CHINESE = re.compile(f"[{HAN}]")
BOTH = re.compile(
    r"<(summary|b|th|td|li)\b([^>]*)>([a-z]\d+ · )?"
    rf"([^<·{HAN}]+) · ([^<·]*?[{HAN}][^<·]*?)( \(?[a-z]\d+\)?)?</\1>"
)
"""A short text in both languages, "English · 中文", and the id of a question before or after it."""


def in_two_tongues(body: str, titles: Collection[str]) -> str:
    """`body`, which shows a reader of Chinese the Chinese texts first, where the English ones begin in
    English. The texts of the other language are in one fold behind those of the page's; code,
    formulas and tables between them stay where they are, for both. A line below a heading that only
    has one of `titles`, the Chinese of the headings, is left out."""
    page = BeautifulSoup(BOTH.sub(_parted, body), "html.parser")
    for line in page.select("h2 + p:has(> strong:only-child)"):
        if line.get_text().strip() in titles:
            line.decompose()
    for table in page.find_all("table"):
        _mark_columns(table)
    places = [place for place in page.select(PLACES) if not _is_fold(place)]
    for run in [run for place in places for run in _runs(place)]:
        _part(run)
    return str(page)


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
            elif cell.name == "th" and head == NUMBERS["en"]:
                cell.attrs |= {f"data-{tongue}": text for tongue, text in NUMBERS.items()}


def _runs(place: Tag) -> Iterator[list[Tag]]:
    """The children of `place` that follow each other with nothing between them but what both
    languages share: a heading, a form or a fold of something else ends a run."""
    run: list[Tag] = []
    for child in place.children:
        if not isinstance(child, Tag) and not child.strip():
            continue
        if isinstance(child, Tag) and (child.name in TEXTS or _is_shared(child) or _is_fold(child)):
            run.append(child)
        else:
            yield run
            run = []
    yield run


def _is_fold(part: Tag) -> bool:
    """Whether it folds Chinese texts."""
    return part.name == "details" and part.find("summary").get_text() == NAMES["zh"]


def _is_shared(part: Tag) -> bool:
    """Whether it is for both languages: a table, code, a formula, or a list with both."""
    if part.name in SHARED or "highlight" in part.get("class", ()):
        return True
    formula = part.find("tex-math", recursive=False)
    both = part.find(attrs={"data-en": True})
    return both is not None or (formula is not None and part.get_text() == formula.get_text())


def _part(run: list[Tag]) -> None:
    """Give the texts of `run` their places in both languages."""
    texts = [part for part in run if not _is_shared(part)]
    chinese = [part for part in texts if _is_fold(part) or CHINESE.search(part.get_text())]
    english = [part for part in texts if part not in chinese]
    if not chinese or not (english or any(map(_is_fold, chinese))):
        return  # a list with both languages in each line is one for both
    translation = [each for part in chinese for each in _unfolded(part)]
    (english or chinese)[0].insert_before(_holder("div", "zh", "zh", translation))
    chinese[-1].insert_after(_holder("details", "en", "zh", translation))
    if english:
        chinese[-1].insert_after(_holder("details", "zh", "en", english))
    for part in chinese:
        part.extract()
    for part in english:
        part["class"] = "only-en"


def _unfolded(part: Tag) -> list[Tag]:
    return part.find_all(True, recursive=False)[1:] if _is_fold(part) else [part]


def _holder(name: str, shown_in: str, tongue: str, texts: list[Tag]) -> Tag:
    """An element with copies of `texts`, which are in `tongue`, on pages in the language `shown_in`."""
    holder = Tag(name=name, attrs={"class": f"only-{shown_in}", "lang": tongue})
    if name == "details":
        summary = Tag(name="summary")
        summary.string = NAMES[tongue]
        holder.append(summary)
    holder.extend(map(copy, texts))
    return holder
