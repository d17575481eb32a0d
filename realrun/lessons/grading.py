"""It judges functions that learners have handed in, on processes that are confined: `simlab class grade` starts
it, with a line of JSON for each function, {"question": …, "text": its source, "tongue": "en" or "zh"}, and reads
a line for each, [solved, key, text] as a `Verdict` has it."""

import json
import sys
from collections.abc import Mapping
from typing import Any

from realrun.launch.pool import Pool
from realrun.lessons.tasks import PRACTICES, practice
from simlab.errors import SimlabError
from simlab.lessons.exercise import Verdict
from simlab.lessons.words import set_language, word
from simlab.spec.plan import Plan

TIMEOUT_S = 20.0
"""What a function may take on one case."""


class Confined:
    """Processes of one function that was handed in."""

    def __init__(self, ranks: int) -> None:
        self.pool: Pool | None = Pool(ranks)

    def practice(
        self, name: str, plan: Plan, text: str, given: Mapping[str, Any]
    ) -> list[dict[str, Any]]:
        """See `LessonPool.practice`; the processes are confined."""
        assert self.pool is not None
        place = "realrun.lessons.practice:CONFINED"
        return self.pool.call(place, name, plan, timeout_s=TIMEOUT_S, text=text, **given)


def serve() -> None:
    """Answer until there are no more lines. Each function has new processes."""
    for line in sys.stdin:
        asked = json.loads(line)
        set_language(asked["tongue"])
        verdict = _verdict(asked["question"], asked["text"])
        print(json.dumps([verdict.solved, verdict.key, verdict.text]), flush=True)


def _verdict(question: str, text: str) -> Verdict:
    try:
        processes = Confined(PRACTICES[question].plan.gpus)
    except SimlabError as error:  # such as too little memory
        return Verdict(False, "form.needs_processes", word("form.needs_processes", why=error))
    assert processes.pool is not None
    with processes.pool:
        return practice(question, processes).judge(text)
