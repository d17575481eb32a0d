"""The visual language: what may stand side by side in a picture can be told apart by everybody."""

import re
from itertools import combinations

import pytest
from timelines import ROOT

from simlab.views.language import LANGUAGE, colours, names, shade

# Machado, Oliveira and Fernandes, IEEE TVCG 15 (2009), severity 1.0, on linear RGB: what people see
# who lack one kind of cone
SEEN_WITHOUT = {
    "none": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "red": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "green": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "blue": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}  # fmt: skip
TO_XYZ = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))
WHITE_XYZ = (0.9505, 1.0, 1.089)
APART = 9  # CIE76: four times what is just noticeable, 2.3


def times(matrix, vector):
    return [sum(a * b for a, b in zip(row, vector)) for row in matrix]


def lab(colour, cones):
    """CIE L*a*b* of a "#RRGGBB" as people without these cones see it."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    ]
    seen = [min(max(part, 0), 1) for part in times(SEEN_WITHOUT[cones], linear)]
    x, y, z = (
        value ** (1 / 3) if (value := part / white) > 0.008856 else 7.787 * value + 16 / 116
        for part, white in zip(times(TO_XYZ, seen), WHITE_XYZ)
    )
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def distance(one, other, cones):
    return sum((a - b) ** 2 for a, b in zip(lab(one, cones), lab(other, cones))) ** 0.5


@pytest.mark.parametrize("cones", SEEN_WITHOUT)
def test_kinds_of_work_differ_in_colour_or_in_pattern_for_everybody(cones):
    for (name, one), (other_name, other) in combinations(LANGUAGE["work"].items(), 2):
        told = distance(one["colour"], other["colour"], cones)
        assert told >= APART or one["pattern"] != other["pattern"], (name, other_name, told)


@pytest.mark.parametrize("cones", SEEN_WITHOUT)
def test_the_shades_of_two_chunks_and_of_the_kinds_of_ops_can_be_told_apart(cones):
    shades = {(kind, at): shade(colours("work")[kind], at, 2) for kind in "FBIW" for at in (0, 1)}
    for (name, one), (other_name, other) in combinations(shades.items(), 2):
        assert distance(one, other, cones) >= APART, (name, other_name)


def test_shades_go_from_the_full_colour_to_its_last_share_in_even_steps():
    assert shade("#000000", 0, 1) == "#000000"
    assert [shade("#000000", chunk, 3) for chunk in range(3)] == ["#000000", "#404040", "#808080"]


def test_every_entry_has_a_name_in_both_languages_and_texts_are_readable_in_both_themes():
    for table in ("work", "streams"):
        for tongue in ("en", "zh"):
            assert all(names(table, tongue).values())
    light, dark = LANGUAGE["themes"]["light"], LANGUAGE["themes"]["dark"]
    assert light.keys() == dark.keys()
    for theme in (light, dark):
        for part in ("ink", "muted"):
            assert contrast(theme[part], theme["background"]) >= 4.5  # WCAG 2.1, 1.4.3


def contrast(one, other):
    """WCAG's ratio of the luminances of two colours."""
    bright, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (low + 0.05)


def luminance(colour):
    lightness = lab(colour, "none")[0]
    return ((lightness + 16) / 116) ** 3 if lightness > 8 else lightness / 903.3


HEX = re.compile(r"""["'`]#(?:[0-9A-Fa-f]{6}|[0-9A-Fa-f]{3})["'`]""")


def test_no_renderer_and_no_explorer_has_a_colour_of_its_own():
    """Colours stand in language.json, so that one thing has one colour in every picture. The style
    sheets of pages have their own."""
    folders = "simlab/views", "simlab/explorers", "web/src", "realrun/report", "realrun/lessons"
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.*")]
    sources = [path for path in files if path.suffix in (".py", ".ts")]
    assert len(sources) > 80
    found = [
        f"{path.relative_to(ROOT)}: {hit}"
        for path in sources
        for hit in HEX.findall(path.read_text(encoding="utf-8"))
    ]
    assert found == []
