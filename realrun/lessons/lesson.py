"""What a lesson executes: it runs on processes where torch is installed, is read from a recording
elsewhere, and says which."""

import ast
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import fields
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from realrun.launch.pool import Pool, RunError
from realrun.lessons.execute import PlanRun, demonstrate, execute_plan
from realrun.run.job import plan_fields
from simlab.errors import InputError
from simlab.lessons import RECORDED
from simlab.lessons.phrases import phrase
from simlab.spec.plan import Plan
from simlab.trace import Trace

NOT_HERE = "torch is not installed here: these results were recorded earlier, on another machine."
"""What a lesson says where it can execute nothing."""


class LessonPool:
    """`ranks` processes or, where there is no torch, what was recorded of them.

    recorded: the folder of the recordings, such as "lesson-7" in `simlab.lessons.RECORDED`, with a
              file for each thing that is asked.
    record:   whether to write them anew; see assets/record_lessons.py.
    say:      called with one line of progress at a time.
    show:     see `Pool`; called with what was recorded, too.

    Without torch, only what was recorded can be asked: `InputError` for anything else.
    """

    def __init__(
        self,
        ranks: int,
        recorded: str | Path,
        *,
        record: bool = False,
        say: Callable[[str], None] = lambda text: None,
        show: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        self.recorded, self.record, self.show = RECORDED / recorded, record, show
        self.pool: Pool | None = None
        if find_spec("torch"):
            import torch

            self.pool = Pool(ranks, say=say, show=show)

            # as in the processes: `alone` gives the same figures everywhere, and leaves them their
            # cores
            torch.set_num_threads(1)
            print(phrase(f"{ranks} processes are started: what follows is executed here."))
        else:
            print(phrase(NOT_HERE))

    def execute_plan(self, plan: Plan, **given: Any) -> PlanRun:
        """See `realrun.execute_plan`."""
        asked = {"plan": _unlike_default(plan)} | given
        kept = self._kept(
            "plan", asked, lambda: _written(execute_plan(self._processes(), plan, **given))
        )
        predicted = None if kept["predicted"] is None else Trace.from_json(kept["predicted"])
        measured = Trace.from_json(kept["measured"])
        if self.show is not None and self.pool is None:
            for now in kept["facts"]["progress"] or []:
                self.show(now)
        return PlanRun(predicted, measured, kept["facts"])

    def broken(self, plan: Plan, **given: Any) -> dict[str, Any]:
        """{"said": the line in which `execute_plan`'s run ends, or None, "after_s": its seconds}.
        New processes take the places of those that were ended with it."""
        return self._kept(
            "broken", {"plan": _unlike_default(plan)} | given, lambda: self._broken(plan, given)
        )

    def _broken(self, plan: Plan, given: dict[str, Any]) -> dict[str, Any]:
        started_s, pool = time.monotonic(), self._processes()
        said: str | None = None
        try:
            execute_plan(pool, plan, **given)
        except RunError as error:
            said = str(error)
        after_s = time.monotonic() - started_s
        if said:
            self._begin_anew(pool)
        return {"said": said, "after_s": after_s}

    def demonstrate(self, name: str, plan: Plan, **arguments: Any) -> list[Any]:
        """See `realrun.lessons.execute.demonstrate`."""
        asked = {"plan": _unlike_default(plan)} | arguments
        return self._kept(
            name, asked, lambda: demonstrate(self._processes(), name, plan, **arguments)
        )

    def practice(
        self, name: str, plan: Plan, text: str, given: Mapping[str, Any], timeout_s: float = 20
    ) -> list[dict[str, Any]]:
        """[per rank] the facts that `realrun.lessons.practice`'s function `name` finds with the
        function that `text` defines. Where that raises or hangs, the `RunError` says on which rank
        and where, and new processes take the places of those that were ended."""
        pool = self._processes()
        place = "realrun.lessons.practice:PRACTICE"
        try:
            return pool.call(place, name, plan, timeout_s=timeout_s, text=text, **given)
        except RunError:
            self._begin_anew(pool)
            raise

    def alone(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """`function(*arguments)`, in this process. It is a function of the lesson that needs torch,
        and takes and gives plain JSON values."""
        return self._kept(function.__name__, {"arguments": arguments}, lambda: function(*arguments))

    def close(self) -> None:
        """End the processes."""
        if self.pool:
            self.pool.close()

    def _processes(self) -> Pool:
        """The pool; a new one after `close`, for a learner may run an earlier cell again. Without
        torch, what is asked is read before this is called."""
        assert self.pool is not None
        return self._begin_anew(self.pool) if self.pool.closed else self.pool

    def _begin_anew(self, ended: Pool) -> Pool:
        """New processes in the places of those of `ended`."""
        self.pool = Pool(ended.ranks, say=ended.say, show=self.show)
        return self.pool

    def _kept(self, name: str, asked: dict[str, Any], answer: Callable[[], Any]) -> Any:
        text = json.dumps(asked, sort_keys=True)
        path = self.recorded / f"{name}-{sha256(text.encode()).hexdigest()[:8]}.json"
        if self.pool is None:
            if not path.exists():
                raise InputError(
                    f"{name} with {text} was not recorded: install torch to execute it"
                )
            return json.loads(path.read_text(encoding="utf-8"))["answer"]
        result = json.loads(json.dumps(answer()))  # as it would be read
        if self.record:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps({"asked": asked, "answer": result}) + "\n", encoding="utf-8")
        return result


def source(name: str, folder_name: str = "demonstrations") -> str:
    """The text of the function `name` of a folder beside this file, to be shown beside what it
    answers. It needs no torch. `InputError` where there is no such function."""
    folder = Path(__file__).with_name(folder_name)
    for path in sorted(folder.glob("*.py")):
        text = path.read_text(encoding="utf-8")
        for node in ast.parse(text).body:
            if isinstance(node, ast.FunctionDef) and node.name == name:
                return ast.get_source_segment(text, node) or ""
    raise InputError(f"there is no function {name!r} in {folder_name}")


def _unlike_default(plan: Plan) -> dict[str, Any]:
    """{field: value} of the fields that are not as `simlab.Plan` has them."""
    default = {field.name: field.default for field in fields(plan)}
    return {
        name: value
        for name, value in (plan_fields(plan) | {"seq": plan.seq}).items()
        if value != default[name] and not (name == "etp" and not plan.spreads_experts)
    }


def _written(run: PlanRun) -> dict[str, Any]:
    facts = {name: value for name, value in run.facts.items() if name != "folder"}
    predicted = None if run.predicted is None else _short(run.predicted)
    return {"predicted": predicted, "measured": _short(run.measured), "facts": facts}


def _short(trace: Trace) -> str:
    """The trace as JSON, with times to the microsecond."""
    return json.dumps(json.loads(trace.to_json(), parse_float=lambda text: round(float(text), 6)))
