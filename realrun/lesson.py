"""What a lesson executes: on processes where torch is installed, else from a recording, and it says which."""

import ast
import json
import time
from dataclasses import fields
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path

from realrun.execute import PlanRun, execute_plan
from realrun.plan_job import plan_fields
from realrun.pool import Pool, RunError
from simlab.errors import InputError
from simlab.trace import Trace


class LessonPool:
    """`ranks` processes, or, where there is no torch, what was recorded of them.

    recorded: the folder of the recordings, a file for each thing that is asked.
    record:   whether to write them anew; see assets/record_lessons.py.
    say:      called with one line of progress at a time.
    show:     see `Pool`; called with what was recorded, too.

    Without torch, only what was recorded can be asked: `InputError` for anything else.
    """

    def __init__(self, ranks, recorded, *, record=False, say=lambda text: None, show=None):
        self.recorded, self.record, self.show = Path(recorded), record, show
        self.pool = Pool(ranks, say=say, show=show) if find_spec("torch") else None
        if self.pool:
            import torch

            torch.set_num_threads(1)  # as in the processes: `alone` gives the same figures everywhere, and leaves them their cores
            print(f"{ranks} processes are started: what follows is executed here.")
        else:
            print("torch is not installed here: these results were recorded earlier, on another machine.")

    def execute_plan(self, plan, **given):
        """See `realrun.execute_plan`."""
        asked = {"plan": _unlike_default(plan)} | given
        kept = self._kept("plan", asked, lambda: _written(execute_plan(self.pool, plan, **given)))
        predicted, measured = (None if kept[name] is None else Trace.from_json(kept[name]) for name in ("predicted", "measured"))
        for now in (kept["facts"]["progress"] or []) if self.show and not self.pool else []:
            self.show(now)
        return PlanRun(predicted, measured, kept["facts"])

    def broken(self, plan, **given):
        """{"said": what ends `execute_plan`'s run, in a line, or None, "after_s": its seconds}. New processes take the places of those that
        were ended with it."""
        return self._kept("broken", {"plan": _unlike_default(plan)} | given, lambda: self._broken(plan, given))

    def _broken(self, plan, given):
        started_s, said = time.monotonic(), None
        try:
            execute_plan(self.pool, plan, **given)
        except RunError as error:
            said = str(error)
        after_s = time.monotonic() - started_s
        if said:
            self.pool = Pool(self.pool.ranks, say=self.pool.say, show=self.show)
        return {"said": said, "after_s": after_s}

    def demonstrate(self, name, plan, **arguments):
        """See `Pool.demonstrate`."""
        asked = {"plan": _unlike_default(plan)} | arguments
        return self._kept(name, asked, lambda: self.pool.demonstrate(name, plan, **arguments))

    def alone(self, function, *arguments):
        """function(*arguments), in this process: a function of the lesson that needs torch. It takes and gives plain JSON values."""
        return self._kept(function.__name__, {"arguments": arguments}, lambda: function(*arguments))

    def close(self):
        """End the processes."""
        if self.pool:
            self.pool.close()

    def _kept(self, name, asked, answer):
        text = json.dumps(asked, sort_keys=True)
        path = self.recorded / f"{name}-{sha256(text.encode()).hexdigest()[:8]}.json"
        if self.pool is None:
            if not path.exists():
                raise InputError(f"{name} with {text} was not recorded: install torch to execute it")
            return json.loads(path.read_text(encoding="utf-8"))["answer"]
        result = json.loads(json.dumps(answer()))  # as it would be read
        if self.record:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps({"asked": asked, "answer": result}) + "\n", encoding="utf-8")
        return result


def source(name):
    """The text of the demonstration `name`, to be shown beside what it answers; needs no torch."""
    text = Path(find_spec("realrun.demonstrations").origin).read_text(encoding="utf-8")
    found = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef) and node.name == name]
    if not found:
        raise InputError(f"there is no demonstration {name!r}")
    return ast.get_source_segment(text, found[0])


def _unlike_default(plan):
    """{field: value} of those that are not as `simlab.Plan` has them."""
    default = {field.name: field.default for field in fields(plan)}
    return {name: value for name, value in (plan_fields(plan) | {"seq": plan.seq}).items() if value != default[name]}


def _written(run):
    facts = {name: value for name, value in run.facts.items() if name != "folder"}
    predicted = None if run.predicted is None else _short(run.predicted)
    return {"predicted": predicted, "measured": _short(run.measured), "facts": facts}


def _short(trace):
    """Its JSON, to the microsecond."""
    return json.dumps(json.loads(trace.to_json(), parse_float=lambda text: round(float(text), 6)))
