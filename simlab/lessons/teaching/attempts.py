"""It reads the functions that a notebook has judged, without running the notebook: of each, the
statements that it needs, wherever they stand."""

import ast
import dis
import json
import linecache
import re
import textwrap
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from types import CodeType, MappingProxyType
from typing import Any, NamedTuple

from simlab.errors import InputError, shortened
from simlab.input_files import read_text
from simlab.lessons.teaching.handed_in import own_file

MOST_BYTES = 8_000_000
"""The longest notebook that is read."""
MOST_ATTEMPTS = 300
"""The most functions of one file that are judged."""
MAGIC = re.compile(r"^([ \t]*)[%!?].*$", re.MULTILINE)
"""Lines of a notebook that are no Python."""
ASKED_OR_CHECKED = re.compile(
    r"""(\w{1,60}) *= *(?:[\w.]{0,60}\()+ *["']([\w.-]{1,60})["']|(\w{1,60})\.check\("""
    r"""|exercise\( *["']([\w.-]{1,60})["'] *\)\.check\("""
)
"""What says of a cell that is no Python which exercise it is about."""
READS, WRITES = {"LOAD_NAME", "LOAD_GLOBAL"}, {"STORE_NAME", "STORE_GLOBAL"}
"""Instructions that read and write the names of a module."""
RUN_AT_ONCE = {"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>", "<lambda>"}
"""Names of code that a statement defines and that runs with it, or may."""
BINDINGS = (
    ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign,
)  # fmt: skip
"""Statements that bind each of their names anew, and always do."""
EXERCISES = ("exercise", "practice")
"""Functions that make an exercise of its id."""
COMPILER = (SyntaxError, ValueError, RecursionError, MemoryError)


class Statement(NamedTuple):
    """A statement of a file: what it is, its code, the names that it reads when it runs, those that it
    reads then or when its functions are called, and the names that it writes."""

    node: ast.stmt
    code: CodeType
    reads: frozenset[str]
    reads_later: frozenset[str]
    writes: frozenset[str]

    def begins(self, name: str) -> bool:
        """Whether what `name` was before has no part in what it is from here on."""
        return isinstance(self.node, BINDINGS) and name not in self.reads


class Unread(NamedTuple):
    """What of a file cannot be judged, in a line. question: the exercise whose function is in it; "" where a cell
    that is no Python names none, and None where it is something else."""

    said: str
    question: str | None = None


class Attempt(NamedTuple):
    """A function that is judged as the exercise `question`: `code` gives it, once `needs` have run.

    text: its source, where it is a function with a name. hidden: names that it needs of a cell that defines an
    exercise of one's own, which has its oracle.
    """

    question: str
    code: CodeType
    needs: tuple[CodeType, ...]
    text: str
    hidden: tuple[str, ...] = ()


def attempts(
    path: Path, tasks: Mapping[str, str] = MappingProxyType({})
) -> tuple[list[Attempt], list[Unread], list[str]]:
    """The functions that the cells of a notebook, or the lines of a Python file, give to
    `task.check(…)`, where `task = exercise("ID")` stands before or `task` is one of `tasks`, {name: id of
    the question}; and what of each cell that is no Python, and of what is given to an imported task that is
    not known; and the questions that the file asks. `InputError` for a file that cannot be read."""
    wrong: list[Unread] = []
    statements = [*_statements(path, wrong, tasks)]
    known, imported, questions = {**tasks}, set[str](), dict[str, None]()
    defining = {*map(id, _defining(statements))}
    found: list[Attempt] = []
    for at, statement in enumerate(statements):
        if (asked := asked_in(getattr(statement.node, "value", None))) is not None:
            known |= dict.fromkeys(statement.writes, asked)
            questions[asked] = None
        if isinstance(statement.node, ast.Import | ast.ImportFrom):
            imported |= statement.writes
            questions |= dict.fromkeys(tasks[its] for its in statement.writes if its in tasks)
        if (checked := _checked(statement.node)) is None:
            continue
        task, function = checked
        name = task.id if isinstance(task, ast.Name) else ""
        if (question := known.get(name) or asked_in(task)) is not None:
            code = compile(ast.Expression(function), statement.code.co_filename, "eval")
            before = statements[:at]
            used = [before[its] for its in _used(before, _names(code, READS, READS))]
            names = {its for each in used if id(each) in defining for its in each.writes}
            needs = tuple(each.code for each in used)
            text = _text(function, before)
            found.append(Attempt(question, code, needs, text, tuple(sorted(names))))
        elif name in imported:
            said = (
                f"{name} is imported, and no exercise is known of it: --questions FILE defines it"
            )
            wrong.append(Unread(said))
    if len(found) > MOST_ATTEMPTS:
        raise InputError(f"it has {len(found)} functions to judge: the most are {MOST_ATTEMPTS}")
    return found, wrong, [*questions]


def defined(path: Path, makes: Sequence[str] = EXERCISES) -> Mapping[str, Any]:
    """{name: what a statement such as `task = sl.exercise(…)` makes} of a teacher's own notebook or Python
    file, in its order. It runs these statements, and what they need. `InputError` where there is none.

    makes: the functions whose statements are run."""
    wrong: list[Unread] = []
    statements = [*_statements(path, wrong)]
    if wrong:
        raise InputError(f"cannot read {str(path)!r}: {wrong[0].said}")
    found: dict[str, Any] = {}
    for at, statement in enumerate(statements):
        value = getattr(statement.node, "value", None)
        if asked_in(value, makes) is not None and statement.writes:
            names: dict[str, Any] = {"__name__": "questions"}
            for code in (*needed(statements[:at], statement.reads_later), statement.code):
                exec(code, names)
            found |= {name: names[name] for name in statement.writes}
    if not found:
        raise InputError(f"{str(path)!r} has no line such as task = sl.{makes[0]}(…)")
    return found


def asked_in(call: ast.expr | None, makes: Sequence[str] = EXERCISES) -> str | None:
    """The id in a call such as `exercise("b09")`, `exercise(practice("b01", pool))` or
    `sl.exercise("mine", …)`."""
    while isinstance(call, ast.Call) and call.args:
        if isinstance(first := call.args[0], ast.Constant):
            name = getattr(call.func, "attr", None) or getattr(call.func, "id", "")
            return first.value if name in makes and isinstance(first.value, str) else None
        call = first
    return None


def _defining(statements: Sequence[Statement]) -> list[Statement]:
    """The statements of a notebook's cells up to that which defines an exercise of one's own, but imports."""
    ends: dict[str, int] = {}
    for at, each in enumerate(statements):
        call = getattr(each.node, "value", None)
        if asked_in(call) is not None and any(
            its.arg == "oracle" for its in getattr(call, "keywords", ())
        ):
            ends[each.code.co_filename] = at
    return [
        each
        for at, each in enumerate(statements)
        if at <= ends.get(each.code.co_filename, -1)
        and "code cell" in each.code.co_filename
        and not isinstance(each.node, ast.Import | ast.ImportFrom)
    ]


def _checked(node: ast.stmt) -> tuple[ast.expr, ast.expr] | None:
    """(task, function) of a statement such as `task.check(function)`."""
    call = node.value if isinstance(node, ast.Expr) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return None
    if call.func.attr != "check" or len(call.args) != 1:
        return None
    return call.func.value, call.args[0]


def _text(function: ast.expr, before: Sequence[Statement]) -> str:
    """The source of a function that a statement before defines; "" where none does."""
    name = function.id if isinstance(function, ast.Name) else ""
    found = next((each for each in reversed(before) if name in each.writes), None)
    if found is None or not isinstance(found.node, ast.FunctionDef):
        return ""
    node = found.node
    first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
    lines = linecache.getlines(found.code.co_filename)
    return textwrap.dedent("".join(lines[first - 1 : node.end_lineno]))


def needed(before: list[Statement], wanted: Iterable[str]) -> tuple[CodeType, ...]:
    """The code of what is `_used`."""
    return tuple(before[at].code for at in _used(before, wanted))


def _used(before: list[Statement], wanted: Iterable[str]) -> list[int]:
    """The places of those of the statements `before` that make the names `wanted`, and what these need: of
    each name the last statement that binds it, and what changed it since."""
    used: set[int] = set()
    seen: set[tuple[str, int]] = set()  # from where a name was followed already
    open_names = [(name, len(before)) for name in wanted]
    while open_names:
        name, end = open_names.pop()
        for at in reversed(range(end)):
            statement = before[at]
            if name not in statement.writes:
                continue
            if (name, at) in seen:
                break
            seen.add((name, at))
            if at not in used:
                used.add(at)
                open_names += [(its, at) for its in statement.reads]
                open_names += [(its, len(before)) for its in statement.reads_later]
            if statement.begins(name):
                break
    return sorted(used)


def _statements(
    path: Path, wrong: list[Unread], tasks: Mapping[str, str] = MappingProxyType({})
) -> Iterator[Statement]:
    """The statements of a file; a cell that is no Python is `Unread`, if it has a function."""
    text = read_text(own_file(path), MOST_BYTES)
    plain = path.suffix == ".py"
    cells = [text] if plain else _code_cells(text)
    for number, cell in enumerate(cells, 1):
        where = "line" if plain else f"code cell {number}, line"
        name = f"<{path.name}: {where}>"
        lines = cell.splitlines(keepends=True)
        linecache.cache[name] = len(cell), None, lines, name  # where inspect finds a source
        try:
            with warnings.catch_warnings(action="ignore"):
                nodes = _parsed(cell)
                codes = [compile(ast.Module([node], []), name, "exec") for node in nodes]
        except COMPILER as error:
            if plain or "def " in cell or ".check(" in cell:
                at = getattr(error, "lineno", None) or 1
                line = (getattr(error, "text", None) or "").strip()
                said = f"{getattr(error, 'msg', error)}" + (f": {shortened(line)}" if line else "")
                said = f"{where} {at}: {type(error).__name__}: {said}"
                asked = _checked_in(cells[: number - 1], cell, tasks) or [""]
                wrong += [Unread(said, question) for question in asked]
            continue
        for node, code in zip(nodes, codes):
            now, later = _names(code, READS, READS, RUN_AT_ONCE), _names(code, READS, READS)
            yield Statement(node, code, now, later, _names(code, WRITES, {"STORE_GLOBAL"}))


def _checked_in(before: Iterable[str], cell: str, tasks: Mapping[str, str]) -> list[str]:
    """The questions whose functions a cell that is no Python judges, after the cells `before`."""
    known, found = {**tasks}, dict[str, None]()
    for text in (*before, cell):
        for match in ASKED_OR_CHECKED.finditer(text):
            name, question, checked, at_once = match.groups()
            if question:
                known[name] = question
            elif text is cell and (asked := at_once or known.get(checked)):
                found[asked] = None
    return [*found]


def _parsed(cell: str) -> list[ast.stmt]:
    try:
        return ast.parse(cell).body
    except SyntaxError:
        return ast.parse(MAGIC.sub(r"\1pass", cell)).body


def _code_cells(text: str) -> list[str]:
    try:
        cells = json.loads(text)["cells"]
        sources = [cell["source"] for cell in cells if cell["cell_type"] == "code"]
        return [each if isinstance(each, str) else "".join(each) for each in sources]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError("it is no notebook") from error


def _names(
    code: CodeType, outside: Set[str], inside: Set[str], within: Set[str] | None = None
) -> frozenset[str]:
    """The names that `code` reads or writes with the instructions `outside`, and what it defines with
    those of `inside`. within: which of what it defines is looked at, by name; None: all."""
    found = {each.argval for each in dis.get_instructions(code) if each.opname in outside}
    inner = [each for each in code.co_consts if isinstance(each, CodeType)]
    looked_at = (each for each in inner if within is None or each.co_name in within)
    return frozenset(found).union(*(_names(each, inside, inside, within) for each in looked_at))
