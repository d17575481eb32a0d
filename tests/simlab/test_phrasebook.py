"""A table of texts in two languages, some of them templates."""

import pytest

from simlab.phrasebook import Phrasebook

BOOK = Phrasebook(
    [
        ("late", "晚"),
        ("{name} comes {how}", "{name} 来得{how}"),
        ("{name} comes {how}, and rank {rank} waits", "{name} 来得{how}，rank {rank} 在等"),
        ("rank {rank}", "第 {rank} 个 rank"),
    ]
)


@pytest.mark.parametrize(
    ("english", "chinese"),
    [
        ("late", "晚"),
        ("0F1 comes late", "0F1 来得晚"),  # a known text in the place of a name
        ("0F1 comes slow", "0F1 来得slow"),  # and one that is not known
        ("rank 3 comes late", "第 3 个 rank 来得晚"),  # a template in the place of a name
        ("rank 3, rank 4 comes late", "第 3 个 rank，第 4 个 rank 来得晚"),  # a list of them
        ("0F1 comes late, and rank 3 waits", "0F1 来得晚，rank 3 在等"),  # the longest template
        ("later", None),
        (
            "code comes\nlate",
            None,
        ),  # a value has no end of a line: a text of several is no template's
        (
            "rank 1 → rank 2 comes late",
            "第 1 个 rank → 第 2 个 rank 来得晚",
        ),  # a sequence with arrows
    ],
)
def test_a_text_is_said_as_the_table_has_it_and_what_stands_in_a_template_too(english, chinese):
    assert BOOK.said(english) == chinese
