"""The explorers' pages: one for each, with the answer that it shows until Python has started."""

import json
import shutil

from shell import HERE, Shell

from simlab.explorers import NAMES, explorer
from simlab.explorers.challenge import CHALLENGES
from simlab.views import page

FOLDER = "explorers"


def write(shell: Shell) -> None:
    """Write the page of each explorer, and one that lists them."""
    entries = [explorer(name) for name in NAMES]
    index = next(each for each in shell.pages if each["path"] == f"{FOLDER}/index.html")
    questions = json.loads((HERE / "pages" / FOLDER / "questions.json").read_text("utf-8"))
    listed = shell.render("pages/explorers/index.html", entries=entries, questions=questions)
    shell.write(index, listed)
    shutil.copy(HERE / "pages" / FOLDER / "style.css", shell.folder / FOLDER)
    for entry in entries:
        mine = index | {
            "path": f"{FOLDER}/{entry.name}.html",
            "within": index["path"],
            "en": entry.title.en,
            "zh": entry.title.zh,
            "about": " ".join(questions[entry.name].values()),
            "script": f"{FOLDER}/page",
            "preload": [f"{FOLDER}/{entry.name}.json"],
        }
        challenges = CHALLENGES if entry.name == "challenge" else ()
        content = shell.render(
            "pages/explorers/explorer.html", entry=entry, entries=entries, challenges=challenges
        )
        shell.write(mine, content)
        shown = {"about": entry.to_dict(), "answer": entry.reply(entry.start())}
        path = shell.folder / FOLDER / f"{entry.name}.json"
        path.write_text(json.dumps(page.recorded(shown)), encoding="utf-8")
