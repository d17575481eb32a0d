"""The map of the lessons: which question is in which, how long it takes, and what the learner has
done."""

import html
from collections.abc import Iterator
from typing import Any

from simlab.apps.lesson_cells import as_html
from simlab.apps.screen import show
from simlab.lessons import book, progress
from simlab.lessons.course import Lesson, Question, lessons
from simlab.lessons.words import language, rendered, word

POINTS = 5


def lesson_map() -> None:
    """Show the lessons with their questions, in the learner's language. In a copy that is made for
    reading, nobody's progress is shown."""
    course = lessons()
    show(lambda: map_html(course))


def map_html(course: list[Lesson]) -> str:
    """The map as HTML: a table with a row for each lesson and each question."""
    done: dict[str, Any] = {} if rendered() else progress.load()
    rows = [[word(f"map.{name}") for name in ("lesson", "level", "predicted", "solved", "aloud")]]
    for lesson in course:
        rows.append([_lesson(lesson), "", "", "", ""])
        rows += [_row(question, done) for question in lesson.questions]
    lines = (rows[0], ["---", *[":-:"] * 4], *rows[1:])
    table = as_html("\n".join("| " + " | ".join(line) + " |" for line in lines))
    minutes = sum(sum(lesson.minutes) for lesson in course)
    names = [question.id for lesson in course for question in lesson.questions]
    solved = sum(_solved(done, name) for name in names)
    said = word("map.total", lessons=len(course), hours=f"{minutes / 60:.0f}")
    mine = "" if rendered() else " " + word("map.mine", solved=solved, questions=len(names))
    return f"<p>{html.escape(said + mine)}</p>{table}"


def _lesson(lesson: Lesson) -> str:
    """Its title, file, minutes and needs, as Markdown."""
    count = " + ".join(map(str, lesson.minutes))
    return " · ".join(
        (
            f"**{lesson.number} {_title(lesson)}**",
            f"`{lesson.file}`",
            word("map.minutes", count=count),
            *_needs(lesson),
        )
    )


def _needs(lesson: Lesson) -> Iterator[str]:
    if lesson.processes:
        yield word("map.processes", count=lesson.processes)
    if lesson.numpy:
        yield word("map.numpy")
    if not lesson.processes and not lesson.numpy:
        yield word("map.nothing")


def _row(question: Question, done: dict[str, Any]) -> list[str]:
    points = done.get("points", {}).get(question.id)
    said = f"{len(points)}/{POINTS}" if isinstance(points, list) and points else ""
    return [
        f"{question.id} · {_title(question)}",
        "●" * question.level or "–",
        "✓" if question.id in done.get("predictions", {}) else "",
        "✓" if _solved(done, question.id) else "",
        said,
    ]


def _solved(done: dict[str, Any], name: str) -> bool:
    kept = done.get("exercises", {}).get(name)
    return progress.is_of(kept, book.version(name)) and bool(kept.get("solved"))


def _title(of: Lesson | Question) -> str:
    titles = {"en": of.en, "zh": of.zh}
    text = " · ".join(titles.values()) if rendered() else titles[language()]
    return text.replace("|", "\\|")
