"""python tests/support/clean_notebooks.py NOTEBOOK ...: bring executed notebooks into the form in
which they are committed.

Dropped is what differs from run to run or from machine to machine: widget state, execution
timestamps, versions. Cell ids follow from the cells' text. Exit status 1 if a notebook is too large
or holds a path of this machine.
"""

import hashlib
import json
import re
import sys
from pathlib import Path

LARGEST_BYTES = 1_000_000
KEPT_CELL_METADATA = {"tags"}
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
LOCAL_PATH = re.compile(
    r"(?<![\w./])(?:/(?:home|root|Users|tmp|work|opt|usr|var|private|mnt|srv)/[\w.-]+|[A-Za-z]:\\+Users\\+\w+)"
)
ADDRESS = re.compile(r"\b0x[0-9a-fA-F]{6,}\b")


def main(paths):
    """Clean each notebook in place; the exit status."""
    complaints = []
    for path in paths:
        text = as_text(clean(json.loads(path.read_text(encoding="utf-8"))))
        path.write_text(text, encoding="utf-8")
        complaints += [f"{path}: {problem}" for problem in problems(text)]
    print("\n".join(complaints), file=sys.stderr, end="\n" if complaints else "")
    return 1 if complaints else 0


def as_text(notebook):
    """The file's text, as nbformat writes it."""
    return json.dumps(notebook, ensure_ascii=False, indent=1, sort_keys=True) + "\n"


def clean(notebook):
    """`notebook` (nbformat 4 JSON) without what differs between two runs of the same cells."""
    notebook["metadata"] = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    notebook["nbformat"], notebook["nbformat_minor"] = 4, 5
    ids, count = set(), 0
    for cell in notebook["cells"]:
        cell["metadata"] = {
            key: value for key, value in cell["metadata"].items() if key in KEPT_CELL_METADATA
        }
        cell["id"] = _id(cell, ids)
        if cell["cell_type"] == "code":
            count += cell["execution_count"] is not None
            cell["execution_count"] = count if cell["execution_count"] is not None else None
            cell["outputs"] = [_clean_output(output, count) for output in _joined(cell["outputs"])]
    return notebook


def _id(cell, taken):
    """A name that follows from the cell's kind and text, and not from its place: an insertion
    changes no other id."""
    text = cell["cell_type"] + "".join(cell["source"])
    for repeat in range(1000):
        name = hashlib.sha256(f"{text}{repeat or ''}".encode()).hexdigest()[:8]
        if name not in taken:
            taken.add(name)
            return name
    raise ValueError("a thousand equal cells")


def _joined(outputs):
    """`outputs` with what was printed in several pieces as one: where a print is cut is a matter of
    timing."""
    result = []
    for output in outputs:
        if output["output_type"] == "stream":
            output["text"] = "".join(output["text"]).splitlines(keepends=True)
            if (
                result
                and result[-1]["output_type"] == "stream"
                and result[-1]["name"] == output["name"]
            ):
                result[-1]["text"] = "".join(result[-1]["text"] + output["text"]).splitlines(
                    keepends=True
                )
                continue
        result.append(output)
    return result


def _clean_output(output, count):
    """Without the reference to a live widget where a still picture stands beside it: the widget's
    state is not in the file."""
    if output["output_type"] == "execute_result":
        output["execution_count"] = count
    if "data" in output:
        output["metadata"] = {}
        if "image/png" in output["data"]:
            output["data"].pop(WIDGET_VIEW, None)
    return output


def problems(text):
    """What must not be in the text of a committed notebook, as messages."""
    if len(text.encode()) > LARGEST_BYTES:
        yield f"{len(text.encode()):,} bytes, more than {LARGEST_BYTES:,}: fewer or smaller pictures"
    words = re.sub(r'"image/[a-z.+]+": "[^"]*"', "", text)
    for found in sorted(
        {match[0] for pattern in (LOCAL_PATH, ADDRESS) for match in pattern.finditer(words)}
    ):
        yield f"holds {found}, which is of this machine or this run only"


if __name__ == "__main__":
    sys.exit(main([Path(name) for name in sys.argv[1:]]))
