"""The visual language: one table of colours, patterns and names, which every renderer reads.

The table is `language.json`. The Python renderers read it here, and the front end in `web/` has the
same file in its bundle, so a kind of work looks the same in a still, in a notebook and on the page.
The colours are those of Okabe & Ito, "Color Universal Design" (2008), which colour-blind people can
tell apart; where two kinds share a colour their patterns differ.
"""

import json
import re
from functools import lru_cache
from importlib.resources import files
from typing import Any

from simlab.phrasebook import Phrasebook
from simlab.views.chart import Words


def _table(name: str) -> Any:
    return json.loads((files("simlab.views") / name).read_text(encoding="utf-8"))


LANGUAGE: dict[str, Any] = _table("language.json")
REFUSALS = [Words(**each) for each in _table("refusals.json")]
"""Why an explorer has no answer: templates of errors, as `Phrasebook` has them."""
RANK_COLOURS = ("rank_0", *LANGUAGE["ranks"][1:])
"""The colours of ranks, and of the stages that stand for them, in charts: the first one is black in
the light theme and white in the dark one."""
CHINESE_PNG = "image/vnd.simlab.zh+png"
"""The kind of a picture with Chinese texts that a copy for reading has beside "image/png". Notebooks do
not know it and show the other one; the site shows it to Chinese readers."""
WHITE = 255
NAMED = ("work", "streams", "memory", "words")
"""The tables whose entries have a name in each language."""
BETWEEN = r"(?<=[\u3000-\u9fff\uff00-\uffef]) (?=[\u3000-\u9fff\uff00-\uffef])"
"""A space between two Chinese characters."""
FULL_WIDTH = {",": "，", ":": "：", ";": "；"}


def colours(table: str) -> dict[str, str]:
    """{entry: "#RRGGBB"} of the table 'work', 'streams' or 'memory', in the order of the file."""
    return {name: entry["colour"] for name, entry in LANGUAGE[table].items()}


def names(table: str, tongue: str = "en") -> dict[str, str]:
    """{entry: its name} of such a table in `tongue`, 'en' or 'zh'."""
    return {name: entry[tongue] for name, entry in LANGUAGE[table].items()}


def shade(colour: str, chunk: int, chunks: int) -> str:
    """The shade of `colour`, "#RRGGBB", for number `chunk` of a rank's `chunks` chunks.

    As in Megatron's pictures of interleaved schedules the first chunk has the full colour and the
    later ones are lighter: evenly spaced mixtures with white, of which the last one keeps the part
    `last_share` of the colour.
    """
    if chunks <= 1:
        return colour
    share = 1 - (1 - LANGUAGE["chunks"]["last_share"]) * chunk / (chunks - 1)
    parts = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    mixed = (int(share * part + (1 - share) * WHITE + 0.5) for part in parts)
    return "#" + "".join(f"{part:02X}" for part in mixed)


def text_colour(fill: str) -> str:
    """The colour of a text on `fill`, "#RRGGBB": black or white, whichever has more contrast, as
    WCAG 2 counts it: (a + 0.05) / (b + 0.05) for the relative luminances a > b."""
    parts = [int(fill[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
    luminance = sum(w * part for w, part in zip((0.2126, 0.7152, 0.0722), linear))
    light = (luminance + 0.05) ** 2 > 0.05 * 1.05
    return str(LANGUAGE["marks"]["on_light" if light else "on_dark"])


@lru_cache(1)
def _terms() -> tuple[re.Pattern[str], dict[str, str]]:
    """What finds the English terms in a text, the longest first, and {term: the Chinese one}."""
    found = {name["en"].lower(): name["zh"] for table in NAMED for name in LANGUAGE[table].values()}
    found |= {term.lower(): chinese for term, chinese in LANGUAGE["terms"].items()}
    longest = sorted(found, key=len, reverse=True)
    pattern = rf"(?<![\w-])(?:{'|'.join(map(re.escape, longest))})(?![\w-])"
    return re.compile(pattern, re.ASCII | re.IGNORECASE), found


@lru_cache(1)
def _numbered() -> re.Pattern[str]:
    """What finds terms with a number after them, whose place differs in Chinese."""
    longest = "|".join(sorted(LANGUAGE["numbered"], key=len, reverse=True))
    return re.compile(rf"(?<![\w-])({longest}) (\d+)(?![\w-])", re.ASCII | re.IGNORECASE)


@lru_cache(4096)
def said(text: str, tongue: str) -> str:
    """`text` as a picture in `tongue`, 'en' or 'zh', shows it: for Chinese, with the English terms
    of the table replaced, and with Chinese punctuation. So names of rows, ops and schedules need be
    given in English only."""
    if tongue != "zh":
        return text
    pattern, chinese = _terms()
    text = _numbered().sub(
        lambda found: LANGUAGE["numbered"][found[1].lower()].format(found[2]), text
    )

    def term(match: re.Match[str]) -> str:
        found = chinese[match[0].lower()]
        return match[0] if found == match[0].lower() else found  # PP is not pp

    replaced = pattern.sub(term, text)
    return re.sub(BETWEEN, "", _punctuated(replaced))


def is_term(text: str) -> bool:
    """Whether `text` as a whole is an English term of the table."""
    return text.lower() in _terms()[1]


def _punctuated(text: str) -> str:
    """`text` with Chinese commas, colons and semicolons. Numbers, and words where there is nothing
    else, are a list."""
    comma = FULL_WIDTH[","] if re.search(r"[\d:;]", text) else "、"
    text = re.sub(r"(?<=\d), (?=\d)", "、", text)
    return re.sub("([,:;]) ", lambda match: (FULL_WIDTH | {",": comma})[match[1]], text)


@lru_cache(1)
def _refusals() -> Phrasebook:
    return Phrasebook(REFUSALS)


def refusal(error: Exception) -> Words:
    """Why there is no answer, as `error` says it in English. `REFUSALS` has the Chinese of what
    controls can bring about; what is not there stays in English."""
    english = str(error)
    chinese = _refusals().said(english)
    if chinese is None:
        return Words(english, english)
    return Words(english, re.sub(BETWEEN, "", chinese.replace(", ", "、")))
