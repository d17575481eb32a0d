"""Sums and conditions of a shell script, of texts and whole numbers that are known."""

import re


def calculated(text: str) -> int | None:
    """What a sum of whole numbers comes to; None for anything else."""
    words = re.findall(r"\d+|[-+*/%()]", text)
    if "".join(words) != re.sub(r"\s", "", text) or not words or len(text) > 200:
        return None
    try:
        value, left = _added(words)
        return None if left else value
    except (IndexError, ValueError, ZeroDivisionError):
        return None


def _added(words: list[str]) -> tuple[int, list[str]]:
    value, words = _multiplied(words)
    while words and words[0] in "+-":
        sign = 1 if words[0] == "+" else -1
        more, words = _multiplied(words[1:])
        value += sign * more
    return value, words


def _multiplied(words: list[str]) -> tuple[int, list[str]]:
    value, words = _one(words)
    while words and words[0] in "*/%":
        by, rest = _one(words[1:])
        value = value * by if words[0] == "*" else value // by if words[0] == "/" else value % by
        words = rest
    return value, words


def _one(words: list[str]) -> tuple[int, list[str]]:
    if words[0] == "(":
        value, rest = _added(words[1:])
        return value, rest[1:]
    return int(words[0]), words[1:]


def holds(condition: list[str]) -> bool | None:
    """Whether a condition such as [ a = b ] holds; None where that is not known."""
    words = [word for word in condition if word not in ("[", "]", "[[", "]]")]
    text = " ".join(words)
    if "$" in text or not words:
        return None
    if len(words) == 3 and words[1] in ("=", "==", "!=", "-eq", "-ne", "-gt", "-lt", "-ge", "-le"):
        left, how, right = words
        if how in ("=", "==", "!=", "-eq", "-ne"):
            return (left == right) == (how in ("=", "==", "-eq"))
        if left.lstrip("-").isdecimal() and right.lstrip("-").isdecimal():
            a, b = int(left), int(right)
            return {"-gt": a > b, "-lt": a < b, "-ge": a >= b, "-le": a <= b}[how]
    if len(words) <= 2 and words[0] in ("-z", "-n"):
        return (len(words) == 2 and words[1] != "") == (words[0] == "-n")
    return {"true": True, "false": False}.get(text)
