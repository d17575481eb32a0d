"""Chains: each question presses on the last answer. The first is a question of a lesson, said aloud; then comes
a number, and then follow-up questions, also those of other questions."""

from simlab.lessons.words import entry

Link = tuple[str, int]
"""A follow-up question: of which question, and its number, from 1. 0 is the exercise with numbers."""
CHAINS: dict[str, tuple[Link, ...]] = {
    "b07": (("b07", 0), ("b07", 2), ("t3", 3)),
    "w11": (("w11", 0), ("w11", 3), ("w11", 2)),
    "b08": (("b08", 0), ("d05", 3), ("b08", 3)),
    "t3": (("t3", 0), ("t3", 3), ("t3", 2)),
    "b09": (("b09", 0), ("b09", 1), ("b09", 3)),
    "d07": (("d07", 0), ("d07", 1), ("d07", 2)),
    "w01": (("w01", 0), ("w01", 1), ("w01", 3)),
    "w02": (("w02", 0), ("w02", 1), ("w02", 2)),
    "w04": (("w04", 0), ("w04", 1), ("w04", 3)),
    "w05": (("w05", 0), ("w05", 3), ("t4", 2), ("t4", 3)),
    "t4": (("w05", 0), ("t4", 2), ("b02", 3)),
    "w06": (("w05", 0), ("w06", 3), ("w05", 3)),
    "w07": (("w07", 0), ("w07", 2), ("d11", 3)),
    "w03": (("w03", 0), ("b01", 2), ("b04", 3)),
    "d08": (("d08", 0), ("d08", 2), ("d08", 3)),
    "d10": (("d10", 0), ("d10", 1), ("d10", 3)),
    "b04": (("b04", 0), ("b04", 2), ("b04", 3)),
    "b15": (("b14", 0), ("b15", 3), ("b15", 2)),
    "b14": (("b14", 0), ("b14", 3), ("d18", 1), ("d18", 3)),
    "w13": (("w13", 0), ("w13", 2), ("w13", 1)),
    "d09": (("d09", 0), ("d09", 3), ("d09", 1)),
    "w12": (("w12", 0), ("w12", 1), ("w12", 3)),
    "d19": (("d19", 0), ("d19", 1), ("d19", 2)),
    "w10": (("w10", 1), ("d04", 2), ("w10", 3), ("b04", 2)),
    "d17": (("w08", 1), ("d17", 2), ("d17", 1), ("d17", 3)),
    "e04": (("e04", 1), ("e04", 3), ("e07", 3)),
    "e06": (("e06", 1), ("e06", 2), ("e06", 3)),
    "e08": (("e08", 1), ("e08", 2), ("e08", 3)),
    "w14": (("w14", 1), ("w14", 3), ("b03", 3)),
    "b10": (("b10", 2), ("b11", 3), ("b12", 1)),
    "d11": (("d11", 2), ("b06", 1), ("w06", 1)),
    "d20": (("d20", 2), ("d15", 3), ("d09", 1)),
}
"""{question: what follows it}. The words `chains.QUESTION` have for each of them what the interviewer says
before it."""
NEEDED = 3
"""The points from which on an interviewer presses on an answer, and does not change the subject."""


def lead(name: str, link: int) -> str:
    """What the interviewer says of the last answer, before the question `link`, counted from 0."""
    return str(entry(f"chains.{name}")[link])


def is_exercise(link: Link) -> bool:
    """Whether a link asks for a number."""
    return link[1] == 0


def follow_up(link: Link) -> tuple[str, str]:
    """(question, answer) of a link that is a follow-up."""
    found = entry(f"{link[0]}.follow_ups.{link[1]}")
    return str(found["question"]), str(found["answer"])
