"""The pages: what they compute is current, their links lead somewhere, and their code runs."""

import gzip
import os
import re
import runpy
import shlex
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
import yaml

from docs import generate
from realrun.cli import main as realrun_main
from simlab.cli.main import main as simlab_main
from simlab.explorers import NAMES
from simlab.spec.cluster import load_cluster
from simlab.spec.plan import Plan
from simlab.training import fit
from tests.support.patience import PATIENCE_S

ROOT = Path(__file__).parents[2]
PAGES = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for path in [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "CHANGELOG.md",
        *sorted((ROOT / "docs").glob("*.md")),
    ]
}
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
CHINESE = re.compile(r"[\u4e00-\u9fff]")


def blocks(kind):
    """[(page, number, text)] of the fenced blocks of a kind."""
    return [
        (name, number, text)
        for name, page in PAGES.items()
        for number, (its, text) in enumerate(BLOCK.findall(page))
        if its == kind
    ]


def commands(name, package):
    """[[argument]] of the command lines of `package` in a page's blocks, in their order."""
    text = "\n".join(text for page, _, text in blocks("") if page == name).replace("\\\n", " ")
    lines = re.findall(rf"-m {package}\b(.*)", text)
    return [shlex.split(line, comments=True) for line in lines]


def ids(rows):
    return [f"{name}-{number}" for name, number, _ in rows]


@pytest.mark.parametrize("name", [*generate.PARTS, *generate.WHOLE])
def test_what_is_computed_is_current(name):
    text = (ROOT / "docs" / name).read_text(encoding="utf-8")
    assert generate.current(name) == text, "run `python -m docs.generate`"


QUESTIONS = re.findall(
    r"^\| ([^|]+\?) \| `([^`]+)` \| `([^`]+)` \|$", PAGES["docs/architecture.md"], re.M
)


@pytest.mark.parametrize(("question", "path", "name"), QUESTIONS)
def test_what_is_decided_somewhere_is_there(question, path, name):
    text = (ROOT / path).read_text(encoding="utf-8")
    assert re.search(
        rf"^ *(?:def|class) {re.escape(name)}\b|^(?:\w+, )*{re.escape(name)}(?:, \w+)*(?:: .+)? = |\"{re.escape(name)}\": ",
        text,
        re.M,
    )


def test_no_question_is_asked_twice():
    places = [(path, name) for _, path, name in QUESTIONS]
    assert len(set(places)) == len(places) and len(
        {question for question, _, _ in QUESTIONS}
    ) == len(places)


def test_every_row_of_the_tables_of_decisions_is_read():
    page = PAGES["docs/architecture.md"]
    tables = page[page.index("## Where is it decided?") : page.index("## Rooms and their order")]
    rows = [line for line in tables.splitlines() if re.match(r"\| [^-q]", line)]
    assert len(rows) == len(QUESTIONS) >= 50


def anchors(page):
    """The anchors that GitHub gives the headings of a page."""
    titles = re.findall(r"^#+ (.+)$", page, re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_to_files_and_headings_that_exist(name):
    for target in re.findall(r"\]\(([^)\s]+)\)", PAGES[name]):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        there = (ROOT / name).parent / path if path else ROOT / name
        assert there.exists(), target
        if anchor:
            assert anchor in anchors(there.read_text(encoding="utf-8")), target


@pytest.mark.parametrize("name", PAGES)
def test_paths_in_backquotes_exist(name):
    rooms = "simlab|realrun|tests|assets|benchmarks|notebooks|docs"
    for path in re.findall(rf"`((?:{rooms})/[\w./-]*)`", PAGES[name]):
        assert (ROOT / path).exists(), path


def test_no_page_names_a_path_of_this_machine():
    assert not [name for name, page in PAGES.items() if str(ROOT) in page]


def test_make_targets_that_pages_name_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    named = {target for page in PAGES.values() for target in re.findall(r"`make ([a-z-]+)`", page)}
    assert named <= targets and {"demo", "test", "lab", "docs"} <= named


def test_the_readme_is_short_and_names_every_page_and_every_lesson():
    readme = PAGES["README.md"]
    assert len(readme.splitlines()) <= 150
    for name in PAGES:
        assert name == "README.md" or f"]({name})" in readme
    for lesson in sorted((ROOT / "notebooks").glob("*.ipynb")):
        assert f"](notebooks/{lesson.name})" in readme


def test_the_chinese_readme_has_the_same_links_pictures_and_commands():
    english, chinese = (
        (ROOT / name).read_text(encoding="utf-8").replace(f"]({other})", "]")
        for name, other in (("README.md", "README.zh.md"), ("README.zh.md", "README.md"))
    )
    assert re.findall(r"\]\(([^)\s]+)\)", chinese) == re.findall(r"\]\(([^)\s]+)\)", english)
    code = [re.sub(r" *# .*", "", str(BLOCK.findall(page))) for page in (english, chinese)]
    assert code[0] == code[1]


WORDS = ["no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
WORDS += ["eleven", "twelve", "thirteen", "fourteen"]


def test_the_readme_counts_the_lessons_and_the_questions_that_there_are():
    text = " ".join(PAGES["README.md"].split())
    lessons, ready = re.search(r"(\w+) lessons answer (\d+) interview questions", text).groups()
    more = re.search(r"; (\w+) more (?:is|are) planned", text)
    planned = more[1] if more else WORDS[0]
    listed = yaml.safe_load((ROOT / "notebooks" / "questions.yml").read_text(encoding="utf-8"))
    status = [question["status"] for question in listed]
    answering = {question["notebook"] for question in listed if question["status"] == "ready"}
    assert (int(ready), planned) == (status.count("ready"), WORDS[status.count("planned")])
    assert lessons.lower() == WORDS[len(answering)]


def test_the_page_of_the_site_counts_the_explorers_that_there_are():
    (said,) = re.findall(r"each of the (\w+) explorers", PAGES["docs/web.md"])
    assert said == WORDS[len(NAMES)]


def test_the_places_that_rely_on_the_system_have_the_calls_and_files_that_the_page_names():
    """Each in one of the files of its row; a command of a shell is no call."""
    rows = re.findall(r"^\| ([^|]+\.) \| ([^|]+) \|", PAGES["docs/platforms.md"], re.M)
    assert len(rows) >= 12
    for what, where in rows:
        texts = [
            (ROOT / path).read_text(encoding="utf-8")
            for path in re.findall(r"`([^`]+)`", where)
            if (ROOT / path).is_file()
        ]
        for name in re.findall(r"`([^` ]+)`", what):
            assert any(name in text for text in texts), (name, where)


def test_the_bundles_are_as_large_as_the_page_says():
    text = " ".join(PAGES["docs/web.md"].split())
    timeline = re.search(r"`timeline\.js` \(the timeline alone, (\d+) KB\)", text)
    explorer = re.search(r"`explorer\.js` \(everything, (\d+) KB, (\d+) KB compressed\)", text)
    bundle = ROOT / "simlab" / "views" / "bundle"
    files = [(bundle / name).read_bytes() for name in ("timeline.js", "explorer.js")]
    sizes = [*map(len, files), len(gzip.compress(files[1]))]
    said = [int(size) for size in (timeline[1], explorer[1], explorer[2])]
    assert said == pytest.approx([size / 1e3 for size in sizes], abs=1)


def test_the_page_on_searches_has_the_reserve_that_is_counted():
    text = " ".join(PAGES["docs/simulating.md"].split())
    for said in (
        f"the CUDA context ({fit.CONTEXT_BYTES / 1e9:.2f} GB)",
        f"({fit.COMMUNICATOR_BYTES / 1e9:.2f} GB for each dimension that is split, "
        f"{fit.PAIR_BYTES / 1e9:.2f} GB if into two",
        f"activations and buffers ({fit.FRAGMENTATION:.0%} of it)",
        f"when it wastes {fit.MOST_FRAGMENTATION:.0%}",
    ):
        assert said in text


def test_every_entry_of_the_glossary_is_in_both_languages():
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", PAGES["docs/glossary.md"], re.M)
    entries = [row for row in rows if row[0] not in ("English",)]
    assert len(entries) >= 80
    assert len({english for english, _, _ in entries}) == len(entries)
    for english, chinese, meaning in entries:
        assert meaning.endswith(".") and not CHINESE.search(english + meaning)
        assert CHINESE.search(chinese) or chinese.split("（")[0].split("、")[0].isascii()


PYTHON = blocks("python")
IN_PROCESS = [row for row in PYTHON if "realrun" not in row[2]]
STARTED = [row for row in PYTHON if "realrun" in row[2]]


@pytest.mark.parametrize(("name", "number", "text"), IN_PROCESS, ids=ids(IN_PROCESS))
def test_python_blocks_run(tmp_path, monkeypatch, name, number, text):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    Path("block.py").write_text(text, encoding="utf-8")
    runpy.run_path("block.py", run_name="__main__")


@pytest.mark.parametrize(("name", "number", "text"), STARTED, ids=ids(STARTED))
def test_python_blocks_that_start_processes_run(tmp_path, name, number, text):
    (tmp_path / "block.py").write_text(text, encoding="utf-8")
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "block.py"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": paths, "MPLBACKEND": "Agg"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.parametrize("name", PAGES)
def test_commands_of_simlab_run(tmp_path, monkeypatch, capsys, name):
    """All of a page in one folder, for a command may read what one before it wrote."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    write_machine(tmp_path / "machine.json")
    monkeypatch.setenv("MPLBACKEND", "Agg")
    for arguments in commands(name, "simlab"):
        if name == "docs/executing.md" and "--csv" in arguments:
            continue
        assert simlab_main(arguments) == 0, arguments
        assert capsys.readouterr().out.strip(), arguments


def write_machine(path):
    """What `realrun measure` writes on a CPU, with the catalogue's figures of a laptop."""
    import json
    from dataclasses import asdict

    facts = asdict(load_cluster("laptop"))
    path.write_text(
        json.dumps({key: value for key, value in facts.items() if key not in ("more", "measured")}),
        encoding="utf-8",
    )


@pytest.mark.parametrize("name", PAGES)
def test_commands_of_realrun_are_understood(name):
    """Parsed, not run: tests/realrun run such commands."""
    for arguments in commands(name, "realrun"):
        parse_realrun(arguments)


def parse_realrun(arguments):
    return realrun_main.parser().parse_args(arguments)


def test_plan_files_have_names_that_there_are():
    (text,) = [text for _, _, text in blocks("yaml")]
    names = yaml.safe_load(text)
    plan = {field.name for field in fields(Plan)}
    Plan(**{name: value for name, value in names.items() if name in plan})
    flags = " ".join(f"--{name} {value}" for name, value in names.items() if name not in plan)
    parse_realrun(["--dp", "2", *flags.split()])


def test_commands_are_found():
    assert len(commands("docs/executing.md", "realrun")) >= 14
    assert len(commands("docs/simulating.md", "simlab")) >= 7
