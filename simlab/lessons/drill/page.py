"""The drill and the interview on a page: what it asks for and gets, plain dictionaries.

The page runs this file under Pyodide, in a worker, and keeps the learner's progress itself: it goes along
with the first request and comes back with every reply.
"""

import json
from collections.abc import Callable, Mapping
from random import SystemRandom
from typing import Any

from simlab.errors import InputError
from simlab.lessons import book, progress
from simlab.lessons.drill import rounds
from simlab.lessons.drill.advice import advice_text
from simlab.lessons.drill.posed import Item, Posed
from simlab.lessons.drill.session import Session
from simlab.lessons.prediction import Choice
from simlab.lessons.words import set_language, word

COUNTS = {"board": 1, "chain": 3, "artefact": 5}
"""{kind: how many a drill of it has on the page}, where they are long; else `QUESTIONS`."""
QUESTIONS = 10


class Asker:
    """One visitor's drill.

    render: Markdown → HTML.
    """

    def __init__(self, render: Callable[[str], str]) -> None:
        self.render = render
        self.session: Session | None = None

    def reply(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The reply to `request`: {"tongue": "en" or "zh", "do": what to do}, which is

        - "begin", with "kind": "" for a mix, "interview", or a kind of question, and "progress": the text of
          a file of progress;
        - "go_on", with "progress": the session that was left, if there is one;
        - "answer", with "texts": {field: what was entered} and "hints": how many were shown;
        - "ask": the question again, in another language, or the next one; "stop": the end, before it is reached.

        Returns {"head", "text", "rows", "fields", "shown", "show", "hints"} of the question to answer,
        {"said", "right"} after an answer, {"ended", "advice", "missed": ids} at the end, {"wrong"} for an entry that cannot
        be read, and always "progress", the text of the file to keep. "none" says that nothing was left.
        """
        set_language(request["tongue"])
        try:
            answered = self._do(request)
        except InputError as error:
            return {"wrong": str(error), "progress": self._progress()}
        asks = self.session and request["do"] not in ("answer", "stop")
        asked = self.session.question() if self.session and asks else None
        told = self._told(asked) if asked else {}
        return {
            **told,
            **answered,
            **self._end(request["do"] == "stop"),
            "progress": self._progress(),
        }

    def _do(self, request: Mapping[str, Any]) -> dict[str, Any]:
        if "progress" in request:
            file = progress.path()
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(request["progress"], encoding="utf-8")
        if request["do"] == "go_on":
            self.session = Session.kept()
            return {} if self.session else {"none": True}
        if request["do"] == "begin":
            kind, seed = request["kind"], str(SystemRandom().randrange(10**9))
            if kind == "interview":
                self.session = Session.interview(seed)
            else:
                self.session = Session(
                    COUNTS.get(kind, QUESTIONS), seed, kinds=[kind] if kind else None
                )
        if request["do"] != "answer" or not self.session:
            return {}
        right, said = self.session.answer(request["texts"], request["hints"])
        return {"right": right, "said": self.render("\n\n".join(said))}

    def _told(self, asked: Posed) -> dict[str, Any]:
        assert self.session is not None
        show = "show_points" if asked.at_least else "show_answer"
        return {
            "head": self.session.head(),
            "text": self.render(asked.text),
            "rows": asked.rows,
            "about": self.render(asked.about),
            "about_rows": asked.about_rows,
            "fields": [self._field(asked, name) for name in asked.fields],
            "shown": self.render(asked.shown),
            "show": word(f"drill.{show}"),
            "hints": [*map(self.render, asked.hints)],
        }

    def _field(self, asked: Posed, name: str) -> dict[str, Any]:
        taken = asked.fields[name]
        options = taken.options if isinstance(taken, Choice) else ()
        return {
            "name": name,
            "label": asked.labels[name],
            "unit": asked.unit(name),
            "options": [[one, asked.options.get(one, one)] for one in options],
        }

    def _end(self, stopped: bool) -> dict[str, Any]:
        if not self.session or not (self.session.is_over or stopped):
            return {}
        advice = self.session.advice()
        text = advice_text(advice) if advice and self.session.at else ""
        results = self.session.report()["results"]
        missed = {rounds.whole(Item(*one["item"])).name for one in results if not one["right"]}
        return {
            "ended": self.session.ended(),
            "advice": self.render(text),
            "missed": sorted(missed & {*book.questions()}),
        }

    def _progress(self) -> str:
        return json.dumps(progress.load(), ensure_ascii=False)
