"""It counts what is said aloud: words in English and syllables in Chinese, with numbers and formulas as
they are spoken, so that an answer's length is known in seconds."""

import re

WORDS_A_MINUTE, CHARACTERS_A_MINUTE = 150, 270
SIGNS = {
    "+": "plus",
    "−": "minus",
    "/": "over",
    "=": "equals",
    "×": "times",
    "·": "times",
    "²": "squared",
    "³": "cubed",
    "√": "root of",
    "%": "percent",
    "^": "to the",
    "<": "less than",
    ">": "more than",
    "-": "minus",
}
NUMBER = r"[0-9][0-9,]*(?:\.[0-9]+)?"
SIGN = r"[+−/=×·²³√%^<>]|(?<=\w)-(?=\d)"
PRODUCT = r"\)\(|(?<=\w)\((?=\w+[−+])"
"""Two factors with no sign between them: (p−1)(F+B)."""


def seconds(text: str, *, tongue: str) -> float:
    """How long `text` takes aloud, in the language "en" or "zh"."""
    if tongue == "en":
        return 60 * english_words(text) / WORDS_A_MINUTE
    return 60 * chinese_syllables(text) / CHARACTERS_A_MINUTE


def english_words(text: str) -> int:
    """The words of an English text; each part of "all-reduce" is one."""
    plain = text.replace("`", " ").replace("*", "").replace("_", " ")
    found = len(re.findall(PRODUCT, plain))
    for part in re.findall(rf"{NUMBER}|[A-Za-zΨ]+(?:['’][a-z]+)?|{SIGN}", plain):
        if part in SIGNS:
            found += len(SIGNS[part].split())
        else:
            found += number_words(part) if part[0] in "0123456789" else 1
    return found


def number_words(text: str) -> int:
    """The words of a number in English: 65504 has six, 1.75 four, a year two."""
    whole, _, decimals = text.replace(",", "").partition(".")
    left, found = int(whole), 0
    if 1900 <= left <= 2099 and not decimals:
        return 2
    for size in (10**9, 10**6, 1000, 100):
        if left >= size:
            found += number_words(str(left // size)) + 1
            left %= size
    found += 2 if left > 20 and left % 10 else 1 if left or not int(whole) else 0
    return found + (1 + len(decimals) if decimals else 0)


def chinese_syllables(text: str) -> int:
    """The syllables of a Chinese text: a character, a digit and a sign are one each, an abbreviation
    in capitals one a letter, and other Latin words one for three letters."""
    plain = text.replace("`", " ").replace("*", "").replace("_", " ")
    found = len(re.findall(r"[\u4e00-\u9fff]", plain))
    for part in re.findall(rf"{NUMBER}|[A-Za-zΨ]+|{SIGN}", plain):
        if part in SIGNS:
            found += 1
        elif part[0] in "0123456789":
            found += len(part.replace(",", ""))
        else:
            found += len(part) if part.isupper() and len(part) <= 4 else max(1, len(part) // 3)
    return found
