"""The lessons as pages to read: text, code and recorded outputs by nbconvert, formulas by KaTeX, and
each picture as a file of its own. No script of another machine, and none but the site's own."""

import base64
import json
import re
import shutil
import struct
import subprocess
from collections.abc import Collection, Mapping
from html import escape, unescape
from pathlib import Path
from typing import Any, NamedTuple

import nbformat
import yaml
from nbconvert.exporters import HTMLExporter
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from outputs import in_both_languages
from pygments.formatters import HtmlFormatter
from python_files import ROOT, WEB
from shell import HERE, Shell
from tongues import in_two_tongues

from simlab.views.language import CHINESE_PNG

KATEX = WEB / "node_modules" / "katex" / "dist"
FORMULA = re.compile(r'<tex-math mode="(\w+)">(.*?)</tex-math>', re.DOTALL)
LIVE = HERE / "pages" / "questions" / "live.json"
HEADING = re.compile(r'(<h([12]) id="([^"]+)">)(.*?)(<a class="anchor-link")', re.DOTALL)
WHOLE_HEADING = re.compile(HEADING.pattern + r".*?</h\2>", re.DOTALL)
PICTURE = re.compile(r'<img [^>]*alt="Picture: (?P<name>[^"]*)"[^>]*src="(?P<source>[^"]+)"[^>]*>')
TAG = re.compile(r"<[^>]+>")
SWITCH = re.compile(r"(from simlab\.apps\S* import [^\n]*\s+)?tongue\(\)\s*")
INDEX = "lessons/index.html"
LIGHT, DARK = "default", "github-dark"  # styles of pygments


class Lesson(NamedTuple):
    """A notebook: its number, its titles, the questions it answers, and where its page lies."""

    number: int
    notebook: Path
    en: str
    zh: str
    questions: list[dict[str, str]]
    path: str
    pictures: list[str]
    body: str

    @property
    def runs(self) -> bool:
        """Whether it runs in the browser; neither npm nor PyPI has numpy for Pyodide."""
        return "import numpy" not in self.notebook.read_text(encoding="utf-8")

    @property
    def about(self) -> str:
        """The questions that it answers, in both languages."""
        return " ".join(each[tongue] for tongue in ("en", "zh") for each in self.questions)

    @property
    def thumbnails(self) -> dict[str, str]:
        """The picture that stands for it, in each language."""
        return {"en": self.pictures[0], "zh": chinese_name(self.pictures[0])}

    @property
    def lab(self) -> str:
        """Where it runs in the browser."""
        return f"jupyterlite/lab/index.html?path=notebooks/{self.notebook.name}"


class Formulas(IPythonRenderer):
    """Leaves each formula as <tex-math>, for KaTeX to set all at once."""

    def block_math(self, body: str) -> str:
        return f'<tex-math mode="display">{self.escape_html(body)}</tex-math>'

    multiline_math = block_math

    def inline_math(self, body: str) -> str:
        return f'<tex-math mode="inline">{self.escape_html(body)}</tex-math>'


class Exporter(HTMLExporter):
    """Plain HTML of a notebook: its cells and outputs, without a page, a style or a script."""

    template_name = "basic"
    exclude_input_prompt = exclude_output_prompt = True

    def default_filters(self) -> Any:
        yield from super().default_filters()
        yield "markdown2html", lambda text: MarkdownWithMath(Formulas(escape=False)).render(text)


def write(shell: Shell) -> list[Lesson]:
    """Write the index of the lessons and a page for each of them; returns them."""
    questions = yaml.safe_load((ROOT / "notebooks" / "questions.yml").read_text(encoding="utf-8"))
    lessons = [
        read(path, number, shell.folder, questions)
        for number, path in enumerate(sorted((ROOT / "notebooks").glob("*.ipynb")), 1)
    ]
    live = json.loads(LIVE.read_text(encoding="utf-8"))
    _copy_styles(shell.folder)
    shell.write(shell.page(INDEX), shell.render("pages/lessons/index.html", lessons=lessons))
    for lesson, body in zip(lessons, set_formulas([lesson.body for lesson in lessons])):
        before, after = (lessons[at] if 0 <= at < len(lessons) else None
                         for at in (lesson.number - 2, lesson.number))  # fmt: skip
        titles = {each["id"]: each["zh"] for each in lesson.questions}
        parts = [
            (name, *map(escape, both_titles(text, titles)))
            for _, level, name, text, _ in HEADING.findall(body)
            if level == "2"
        ]
        shown = in_both(_with_leads(shell, body, titles, live), titles)
        content = shell.render(
            "pages/lessons/lesson.html",
            lesson=lesson, body=shown, parts=parts, before=before, after=after,
        )  # fmt: skip
        styles = ["lessons/style.css", "lessons/katex/katex.min.css", "lessons/code.css"]
        page = {"path": lesson.path, "within": INDEX, "en": lesson.en, "zh": lesson.zh}
        page |= {"about": lesson.about, "image": f"lessons/{lesson.pictures[0]}"}
        shell.write(page | {"styles": styles}, content)
    return lessons


def both_titles(heading: str, titles: dict[str, str]) -> tuple[str, str]:
    """A heading's text in English and in Chinese: "English · 中文", or "id · question", whose Chinese
    is in `titles`; else it is the same in both."""
    text = unescape(TAG.sub("", heading))
    first, dot, rest = text.partition(" · ")
    if first in titles:
        return text, f"{first} · {titles[first]}"
    return (first, rest) if dot else (text, text)


def in_both(body: str, titles: dict[str, str]) -> str:
    """`body`, whose headings are shown in the page's language."""

    def marked(found: re.Match[str]) -> str:
        start, _, _, heading, end = found.groups()
        if TAG.search(heading):  # a formula, or code: it stays as it is
            return found[0]
        english, chinese = (escape(text) for text in both_titles(heading, titles))
        return f'{start}<span data-en="{english}" data-zh="{chinese}">{heading}</span>{end}'

    return HEADING.sub(marked, body)


def _with_leads(shell: Shell, body: str, titles: Collection[str], live: Mapping[str, str]) -> str:
    """`body` with links below the heading of each question, one of `titles`: to its page, which asks for a
    prediction before it shows anything, and to the explorer in which its picture moves."""

    def led(found: re.Match[str]) -> str:
        name = unescape(TAG.sub("", found[4])).partition(" · ")[0]
        if name not in titles:
            return found[0]
        links = shell.render("pages/lessons/leads.html", question=name, live=live.get(name))
        return found[0] + links

    return WHOLE_HEADING.sub(led, body)


def read(path: Path, number: int, folder: Path, questions: list[dict[str, str]]) -> Lesson:
    """The lesson of the notebook `path`; its pictures are written below `folder`."""
    notebook = nbformat.read(path, as_version=4)
    notebook.cells = [cell for cell in notebook.cells if not _is_set_up(cell)]
    en, zh = notebook.cells[0].source.split("\n")[0].lstrip("# ").split(" · ")
    pictures = f"lessons/{path.stem}"
    (folder / pictures).mkdir(parents=True)
    _describe_pictures(notebook)
    in_both_languages(notebook)
    exporter = Exporter(preprocessors=["nbconvert.preprocessors.ExtractOutputPreprocessor"])
    names = {"unique_key": "picture", "output_files_dir": path.stem}
    body, resources = exporter.from_notebook_node(notebook, resources=names)
    for name, data in resources["outputs"].items():
        (folder / "lessons" / name).write_bytes(data)
    mine = [
        {"id": each["id"], "en": each["title_en"], "zh": each["title_zh"]}
        for each in questions
        if each["notebook"] == path.name
    ]
    titles = {each["id"]: each["zh"] for each in mine}
    body = in_two_tongues(body.replace("<img ", '<img loading="lazy" '), titles.values())
    shown = re.findall(r'<img [^>]*src="([^"]+)"', body)
    body = _pictures_in_both(body, titles, _chinese_pictures(notebook), folder / "lessons")
    return Lesson(number, path, en, zh, mine, f"{pictures}.html", shown, body)


def _is_set_up(cell: Any) -> bool:
    """Whether `cell` does nothing but install, or show the switch of the language, which a page has
    above."""
    switches = cell.cell_type == "code" and SWITCH.fullmatch(cell.source) is not None
    return switches or "install" in cell.metadata.get("tags", ())


def _describe_pictures(notebook: Any) -> None:
    """Give each picture its size, so that a page does not jump, and the heading above it as text."""
    heading = ""
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            found = re.findall(r"^#+ (.+)$", cell.source, re.MULTILINE)
            heading = found[-1] if found else heading
            continue
        for output in cell.outputs:
            if png := output.get("data", {}).get("image/png"):
                width, height = struct.unpack(">II", base64.b64decode(png)[16:24])
                about = {"alt": f"Picture: {heading}", "width": width, "height": height}
                output.metadata["image/png"] = nbformat.from_dict(about)


def chinese_name(picture: str) -> str:
    """The file of the picture with Chinese texts beside `picture`."""
    return picture.replace(".png", ".zh.png")


def _chinese_pictures(notebook: Any) -> list[str]:
    """[of each picture that is shown: the one with Chinese texts, in base64]."""
    outputs = (output for cell in notebook.cells for output in cell.get("outputs", ()))
    shown = (output.get("data", {}) for output in outputs)
    return [data[CHINESE_PNG] for data in shown if "image/png" in data]


def _pictures_in_both(body: str, titles: dict[str, str], chinese: list[str], folder: Path) -> str:
    """`body` with the Chinese picture beside each; these are written below `folder`."""
    left = iter(chinese)

    def both(found: re.Match[str]) -> str:
        image, source, name = found[0], found["source"], found["name"]
        other = chinese_name(source)
        (folder / other).write_bytes(base64.b64decode(next(left)))
        _, title = both_titles(name, titles)
        image_zh = image.replace(source, other).replace(f"Picture: {name}", f"图：{escape(title)}")
        # each leads to its file, where a phone can enlarge it
        pair = {"en": (source, image), "zh": (other, image_zh)}
        return "".join(
            f'<a class="only-{tongue}" href="{name}">{each}</a>'
            for tongue, (name, each) in pair.items()
        )

    return PICTURE.sub(both, body)


def set_formulas(bodies: list[str]) -> list[str]:
    """`bodies` with each <tex-math> set by KaTeX."""
    found = [match for body in bodies for match in FORMULA.findall(body)]
    asked = [{"tex": unescape(tex), "display": mode == "display"} for mode, tex in found]
    command = ["node", HERE / "mathematics.mjs"]
    done = subprocess.run(
        command, input=json.dumps(asked), capture_output=True, text=True, check=True
    )
    made = iter(json.loads(done.stdout))
    return [FORMULA.sub(lambda match: next(made), body) for body in bodies]


def _copy_styles(folder: Path) -> None:
    """The lessons' own style, KaTeX's with its fonts, and the colours of code in both themes."""
    shutil.copy(HERE / "pages" / "lessons" / "style.css", folder / "lessons")
    katex = folder / "lessons" / "katex"
    (katex / "fonts").mkdir(parents=True)
    shutil.copy(KATEX / "katex.min.css", katex)
    for font in KATEX.glob("fonts/*.woff2"):
        shutil.copy(font, katex / "fonts")
    light = HtmlFormatter(style=LIGHT).get_style_defs(".highlight")
    dark, chosen = (
        HtmlFormatter(style=DARK).get_style_defs(f"{root} .highlight")
        for root in (':root:not([data-theme="light"])', ':root[data-theme="dark"]')
    )
    system = f"@media (prefers-color-scheme: dark) {{\n{dark}\n}}"
    (folder / "lessons" / "code.css").write_text(f"{light}\n{system}\n{chosen}\n")
