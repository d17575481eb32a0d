"""What the cells of a lesson show, in both languages: the recorded outputs are in English, and their
tables, sentences and reports are said in Chinese when the site is built. Pictures are recorded in both
languages, see `simlab.views.language.CHINESE_PNG`."""

from html import escape
from typing import Any

from nbformat import NotebookNode, v4

from simlab.lessons.phrases import phrase, report_in

MARKDOWN, HTML = "text/markdown", "text/html"


def in_both_languages(notebook: NotebookNode) -> None:
    """Give each output of `notebook` that Chinese readers read in Chinese both languages."""
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [_in_both(output) for output in cell.outputs]


def _in_both(output: Any) -> Any:
    data = output.get("data", {})
    if MARKDOWN in data and (chinese := in_chinese(data[MARKDOWN])) != data[MARKDOWN]:
        pair = "".join(
            f"{_opened(tongue)}\n\n{text}\n\n</div>\n\n"
            for tongue, text in (("en", data[MARKDOWN]), ("zh", chinese))
        )
        return v4.new_output("display_data", {MARKDOWN: pair})
    if output.output_type == "stream" and (chinese := report_in(output.text, "zh")) != output.text:
        pair = "".join(
            f"{_opened(tongue)}<pre>{escape(text)}</pre></div>"
            for tongue, text in (("en", output.text), ("zh", chinese))
        )
        return v4.new_output("display_data", {HTML: pair})
    return output


def _opened(tongue: str) -> str:
    return f'<div class="said only-{tongue}" lang="{tongue}">'


def in_chinese(markdown: str) -> str:
    """A table, a report or a sentence that a lesson shows in English, in Chinese."""
    if markdown.startswith("| "):
        return "\n".join(map(_row, markdown.split("\n")))
    if markdown.startswith("```text\n"):
        return report_in(markdown, "zh")
    return phrase(markdown, tongue="zh")


def _row(line: str) -> str:
    """A row of a table, as `simlab.apps.table` writes it."""
    cells = line.removeprefix("| ").removesuffix(" |").split(" | ")
    return "| " + " | ".join(phrase(cell, tongue="zh") for cell in cells) + " |"
