"""notebooks/questions.yml against the notebooks: every question is there, and every ready one is
answered where it says."""

import re
from collections import Counter
from pathlib import Path

import nbformat
import pytest
import yaml

from simlab.lessons import book, words

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
OPTIONAL = {"executed", "facts"}
KEYS = {"id", "source", "title_en", "title_zh", "notebook", "kind", "verdict", "status", "takeaway"}
SOURCES = {
    "w": ("000_6622838ef4576f92.txt", 14, "{:02d}"),
    "t": ("001_c22a9b6049847404.txt", 5, "{}"),
    "b": ("002_5d9405a29fe3fd50.txt", 15, "{:02d}"),
    "d": ("003_3f4c2515149b9c9d.txt", 23, "{:02d}"),
}
IDS = [
    letter + form.format(number)
    for letter, (_, count, form) in SOURCES.items()
    for number in range(1, count + 1)
]
OWN = [f"e{number:02d}" for number in range(1, 9)]
"""Questions that lesson 13 asks beside those that were given."""
KINDS, VERDICTS, STATUSES = (
    {"sim", "real", "both"},
    {"ok", "nuance", "wrong", "open"},
    {"ready", "planned"},
)
LONGEST_CELL, WIDEST_LINE = 20, 112  # lines, characters

QUESTIONS = yaml.safe_load((NOTEBOOKS / "questions.yml").read_text(encoding="utf-8"))
READY = [question for question in QUESTIONS if question["status"] == "ready"]
CELLS = {
    path.name: nbformat.read(path, as_version=4).cells for path in sorted(NOTEBOOKS.glob("*.ipynb"))
}


def tags(kind):
    """Counter of (notebook, id) over the cells' tags of a kind: 'q:' answers the question, 'x:'
    executes what another lesson simulates."""
    return Counter(
        (name, tag.removeprefix(kind))
        for name, cells in CELLS.items()
        for cell in cells
        for tag in cell.metadata.get("tags", ())
        if tag.startswith(kind)
    )


def test_all_57_questions_are_listed_once_in_order():
    assert len(IDS) == 57
    assert [question["id"] for question in QUESTIONS] == IDS + OWN


@pytest.mark.parametrize("question", QUESTIONS, ids=IDS + OWN)
def test_entry_is_complete_and_takes_its_values_from_the_allowed_sets(question):
    assert set(question) - OPTIONAL == KEYS
    assert all(isinstance(value, str) and value.strip() for value in question.values())
    file, _, _ = SOURCES.get(question["id"][0], ("lesson 13", 0, ""))
    assert question["source"] == f"{file}, {int(question['id'][1:])}"
    assert question["kind"] in KINDS
    assert question["verdict"] in VERDICTS
    assert question["status"] in STATUSES
    assert re.fullmatch(r"\d\d_[a-z0-9_]+\.ipynb", question["notebook"])
    assert re.search(r"[\u4e00-\u9fff]", question["title_zh"])
    assert not re.search(r"[\u4e00-\u9fff]", question["title_en"] + question["takeaway"])


def test_titles_are_not_repeated():
    for key in ("title_en", "title_zh"):
        assert max(Counter(question[key] for question in QUESTIONS).values()) == 1


def test_ready_questions_have_exactly_one_tagged_cell_and_planned_ones_none():
    assert tags("q:") == Counter((question["notebook"], question["id"]) for question in READY)


def test_what_a_later_lesson_executes_has_exactly_one_tagged_cell_there_and_its_id_in_a_header_and_is_of_both_kinds():
    executed = [question for question in READY if "executed" in question]
    assert tags("x:") == Counter((question["executed"], question["id"]) for question in executed)
    for question in executed:
        assert question["kind"] == "both" and question["executed"] > question["notebook"]
        sources = [
            cell.source for cell in CELLS[question["executed"]] if cell.cell_type == "markdown"
        ]
        assert any(
            re.match(rf"## Executed: [^·]*\b{question['id']}\b", source) for source in sources
        ) or any(re.search(rf"\b{question['id']}, executed", source) for source in sources)


def test_only_code_cells_carry_a_question():
    for cells in CELLS.values():
        for cell in cells:
            if any(tag.startswith(("q:", "x:")) for tag in cell.metadata.get("tags", ())):
                assert cell.cell_type == "code"


@pytest.mark.parametrize("name", CELLS)
def test_code_cells_are_short_enough_to_read(name):
    for cell in CELLS[name]:
        if cell.cell_type == "code":
            lines = cell.source.splitlines()
            assert len(lines) <= LONGEST_CELL, cell.source
            assert max(map(len, lines)) <= WIDEST_LINE, cell.source


by_id = {"ids": lambda question: question["id"]}


@pytest.mark.parametrize("question", READY, **by_id)
def test_section_of_a_ready_question_has_its_titles_and_its_cell(question):
    identifier, section = question["id"], section_of(question)
    assert section[0].source.startswith(
        f"## {identifier} · {question['title_en']}\n**{question['title_zh']}**"
    )
    assert any(f"q:{identifier}" in cell.metadata.get("tags", ()) for cell in section)


@pytest.mark.parametrize("question", READY, **by_id)
def test_section_asks_before_it_shows_and_has_an_exercise_and_an_end(question):
    identifier, section = question["id"], section_of(question)
    code = [cell for cell in section if cell.cell_type == "code"]
    place = {
        tag[0]: at
        for at, cell in enumerate(code)
        for tag in cell.metadata.get("tags", ())
        if tag[1:] == f":{identifier}"
    }
    assert {*place} >= {"p", "q", "e", "f"}
    assert place["p"] < place["q"] < place["e"] < place["f"]
    assert f'predict("{identifier}")' in code[place["p"]].source
    assert code[place["q"]].source.startswith(f'after("{identifier}")')
    assert any(".compare(" in cell.source for cell in code[place["q"] :])
    assert ".check(" in code[place["e"]].source
    assert f'closing("{identifier}")' in code[place["f"]].source
    assert not any("In 60 seconds" in cell.source for cell in section)


@pytest.mark.parametrize("question", READY, **by_id)
def test_words_of_a_question_are_complete_in_both_languages(question):
    identifier = question["id"]
    for tongue in words.LANGUAGES:
        table = words.entry(identifier, tongue=tongue)
        assert len(table["points"]) == 5 and len(table["follow_ups"]) == 3
        assert table["wrong"] and table["refuted"]
        assert table["title"] == question[f"title_{tongue}"]
    english = words.entry(identifier, tongue="en")
    assert plain(english["takeaway"]) == plain(question["takeaway"])


@pytest.mark.parametrize("question", READY, **by_id)
def test_figures_of_a_question_are_held_by_its_cells(question):
    figures = book.figures().get(question["id"])
    assert figures, "a question stands on at least one figure"
    sources = "\n".join(cell.source for cell in section_of(question))
    assert f'figures("{question["id"]}"' in sources.replace("\n    ", "")
    assert all(f"{name}=" in sources or f'"{name}"' in sources for name in figures)


def where(name):
    """[(place, text)] of all that a lesson says: its cells of text, or a file of words."""
    if name in CELLS:
        cells = enumerate(CELLS[name])
        return [(f"[{at}]", cell.source) for at, cell in cells if cell.cell_type == "markdown"]
    return [(key, words.word(key, tongue=name)) for key in words.keys(name)]


@pytest.mark.parametrize("name", [*CELLS, *words.LANGUAGES])
def test_a_lesson_that_is_named_for_a_question_has_that_question(name):
    """As "lesson 4 (d08, w03)" and "lesson 9, d17" in both languages."""
    homes = {question["id"]: {question["notebook"][:2]} for question in QUESTIONS}
    for question in QUESTIONS:
        homes[question["id"]].add(question.get("executed", question["notebook"])[:2])
    of_lesson = r"(?:[Ll]esson |第 ?)(\d+)(?: ?课的?)?(?:,| \(|（| )"
    for place, text in where(name):
        for lesson, listed in re.findall(of_lesson + r" ?((?:[wtbde]\d\d?(?:, |、)?)+)", text):
            for identifier in re.findall(r"[wtbde]\d\d?", listed):
                assert lesson.zfill(2) in homes[identifier], f"{place}: {identifier} in {lesson}"


@pytest.mark.parametrize("name", CELLS)
def test_a_line_to_change_stands_beside_no_answer(name):
    """A learner's copy has these cells open: an `assert` in one would tell what comes out."""
    for at, cell in enumerate(CELLS[name]):
        if "# <- change this line" in cell.source:
            assert not re.search(r"^\s*assert ", cell.source, re.MULTILINE), f"{name} [{at}]"


@pytest.mark.parametrize("name", CELLS)
def test_markdown_goes_on_in_chinese(name):
    for cell in CELLS[name]:
        if cell.cell_type == "markdown" and len(re.findall(r"[A-Za-z]{2,}", cell.source)) > 30:
            assert len(re.findall(r"[\u4e00-\u9fff]", cell.source)) >= 10, cell.source


def section_of(question):
    """The cells from the question's header to the next header of the same or a higher level."""
    cells = CELLS[question["notebook"]]
    headers = [
        at
        for at, cell in enumerate(cells)
        if cell.cell_type == "markdown" and re.match(r"##? ", cell.source)
    ]
    start = next(at for at in headers if cells[at].source.startswith(f"## {question['id']} · "))
    return cells[start : next((at for at in headers if at > start), len(cells))]


def plain(text):
    """`text` with single blanks between words."""
    return " ".join(text.split())


@pytest.mark.parametrize("question", READY, ids=lambda question: question["id"])
@pytest.mark.parametrize("tongue", words.LANGUAGES)
def test_an_exercise_asks_for_the_function_whose_stub_stands_below_it(question, tongue):
    identifier = question["id"]
    (stub,) = [
        cell.source
        for cell in CELLS[question["notebook"]]
        if f"e:{identifier}" in cell.metadata.get("tags", ())
    ]
    name = re.search(r"\.check\((\w+)", stub)[1]
    text = words.word(f"{identifier}.exercise.text", tongue=tongue)
    assert re.search(rf"`{name}\b", text), f"{identifier} asks for another function than {name}"
