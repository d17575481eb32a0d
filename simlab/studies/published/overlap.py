"""It reads which communication of a published run overlaps with computation, dimension by dimension.

A text is read clause by clause. These are its forms:

- "none" or "no" for nothing, and "all" or "yes" for tensor and data parallelism.
- Settings, such as "tp=1 dp=0", "tp: yes, pp: no", "tp_comm_overlap=1" or Megatron-LM's flags. A
  setting without a value says nothing, except "tp=": all of NeMo's recipes that mention it overlap.
- A list of dimensions, such as "tp, pp, dp" or "dp (grads), tp (userbuffers)".
- A sentence that has "overlap" in it, such as "dp all-reduce overlapped" or "no DP overlap".

What else a text says, such as the schedule or the precision, has no meaning here.
"""

import re
from typing import Literal

from simlab.studies.published.words import ASYNC_TP, NO, YES, said

State = Literal["overlaps", "off", "denied"]
"""What is said of a dimension: that it overlaps, that its setting is off, or that it does not. The
second leaves what a library does without the setting."""

DIMENSIONS = ("tp", "pp", "dp", "cp", "ep")
_NAME = rf"(?<![a-z0-9])(?:{'|'.join(DIMENSIONS)})(?![a-z0-9])"
_FILLER = r"(?<![a-z])(?:overlap\w*|comm(?:s|unication)?|and|with|only|both|is|are|grads?|param(?:eter)?s?)(?![a-z])"
_NOT = r"\b(?:no|not|non|without|nor)\b"
FLAGS = {
    r"tp[_-]comm[_-]overlap": "tp",
    r"overlap[_-]grad[_-]reduce|overlap[_-]param[_-]gather|overlap[_-]comm\b": "dp",
    r"overlap[_-]p2p\w*": "pp",
}
"""{pattern of a flag of Megatron-LM, NeMo or DeepSpeed: what it overlaps}"""
_SETTING = re.compile(
    rf"(?P<name>(?:--)?(?:{'|'.join(FLAGS)})|{_NAME}(?:[ _-](?:comm|overlap)\w*)*)\s*[:=]\s*"
    rf"(?P<value>(?!{_NAME}[\w ]*[:=])[^\s,;:=]*)"
)
NOTHING = ("none", *NO)
ALL = ("all", "full", *YES)
OF_ALL = ("tp", "dp", "cp")
"""What "all" says: messages between stages would need an interleaved pipeline, which it does not
name."""


def overlaps(text: str) -> dict[str, State]:
    """{dimension: what a text says of it}, of those that it speaks of."""
    words = re.sub(r"\([^()]*\)", " ", text.lower()).strip()
    if words in NOTHING or words.startswith("none"):
        return dict.fromkeys(DIMENSIONS, "denied")
    bare = re.sub(_FILLER, "", words).strip()
    if words and (words in ALL or bare in ALL or not bare):
        return dict.fromkeys(OF_ALL, "overlaps")
    found: dict[str, State] = {}
    for setting in _SETTING.finditer(words):
        found |= _of_setting(setting["name"], setting["value"])
    rest = re.sub(rf"({_NAME})\s*,\s*(?={_NAME})", r"\1 ", _SETTING.sub(";", words))
    clauses = [clause for clause in re.split("[,;.]", rest) if clause.strip()]
    lists_count = all(_is_understood(clause) for clause in clauses)
    for clause in clauses:
        found |= _of_clause(clause, lists_count)
    return found


def _of_setting(name: str, value: str) -> dict[str, State]:
    dimension = [*_of_flags(name), *re.findall(_NAME, name)][0]
    if not value and dimension != "tp":
        return {}
    return {dimension: "off" if value in NOTHING else "overlaps"}


def _of_flags(words: str) -> list[str]:
    """[the dimensions that the flags in a text overlap]"""
    return [its for flag, its in FLAGS.items() if re.search(flag, words)]


def _is_understood(clause: str) -> bool:
    """Whether a clause is a list of dimensions, or speaks of overlap. Beside others, such as
    "FSDP, TP, compile", a list names what was used, and not what overlaps."""
    denied = re.search(_NOT, clause) and re.search(_NAME, clause)
    return _is_list(clause) or bool(denied) or "overlap" in clause


def _is_list(clause: str) -> bool:
    return not re.sub(rf"{_NAME}|{_FILLER}|[\s+&/|:=]", "", clause)


def _of_clause(clause: str, lists_count: bool) -> dict[str, State]:
    """What a clause without settings says."""
    flags = _of_flags(clause)
    named = flags or re.findall(_NAME, clause)
    found: dict[str, State] = {}
    if flags or "overlap" in clause or (lists_count and _is_list(clause)):
        found |= dict.fromkeys(named, "overlaps")
    if denial := re.search(_NOT, clause):
        after = re.findall(_NAME, clause[denial.end() :])
        everything = DIMENSIONS if "overlap" in clause else ()
        found |= dict.fromkeys(after or named or everything, "denied")
    return found


def overlapping(text: str) -> set[str]:
    """The dimensions of which a text says that they overlap."""
    return {name for name, state in overlaps(text).items() if state == "overlaps"}


def overlaps_dp(text: str, zero: int) -> bool:
    """Whether data parallelism overlaps its communication, from what the column `overlap` says;
    where it says nothing, it does so if anything is sharded."""
    state = overlaps(text).get("dp")
    return zero > 0 if state is None else state == "overlaps"


def tp_overlap_of(text: str) -> str:
    """How tensor parallelism overlaps its communication, from what the column `overlap` says."""
    if re.search(r"\btp bwd", text.lower()):
        return "weight-grad"
    state = overlaps(text).get("tp")
    if state == "overlaps" or re.search(ASYNC_TP, said(text)):
        return "pipelined"
    return "weight-grad" if state == "off" else "none"
