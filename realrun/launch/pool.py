"""Local processes, one per rank: started once, kept warm between jobs, watched, and never left
behind."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Container, Iterable
from contextlib import nullcontext
from pathlib import Path
from types import TracebackType
from typing import Any

from realrun.backends.choice import watch_of
from realrun.checkpoint.resuming import look
from realrun.launch.folder import kept_from_others, prepare
from realrun.launch.lock import held
from realrun.launch.processes import Processes
from realrun.launch.silence import Silence
from realrun.launch.start import fork_server_text, listening
from realrun.launch.worker import ANSWERS_S, SILENCE_S, listed_functions
from realrun.measure.local_memory import check_memory
from realrun.run.job import Job, plan_fields
from realrun.run.life import PHASE_LIMIT_S, Ended, OwnTime, Stop, signal_name
from realrun.run.watch import OUTSIDE, Watch, exit_text, is_consequence
from simlab.errors import InputError, SimlabError, did_you_mean
from simlab.spec.plan import Plan

LOST = 255
"""multiprocessing's exit code of a process of whose end its fork server did not tell."""
START_SILENCE_S = 2 * SILENCE_S
"""Of a rank while others have begun: all are forks of one process, made in the same moment."""
ASIDE_S = 30.0
"""Of silence of a rank that has answered before, beside a job: when it looks for the others, or runs
a function."""
LINKS_TIMEOUT_S = 900
CALL_TIMEOUT_S = 120
# from the first sign of trouble to the verdict: the rank to blame is often not the first to
# complain
GRACE_S = 1.0


def _end_at_once(number: int) -> None:
    """At a second signal nobody waits for the step and the save."""
    raise Ended(
        f"ended at once by a second signal ({signal_name(number)}): nothing more was saved", number
    )


class RunError(SimlabError):
    """The run ended before its time. `partial` lists the files with what was recorded until
    then."""

    def __init__(self, reason: str, partial: Iterable[Path] = ()) -> None:
        super().__init__(reason)
        self.partial = list(partial)


class Pool:
    """`ranks` local processes in one process group on loopback, ready for one job after another.

    device: 'cpu' (gloo) or 'cuda' (NCCL; ranks beyond the devices share them).
    port:   of the rendezvous store on 127.0.0.1; 0 takes a free one.
    say:    called with one line of progress at a time. When it raises, a warning says so, it is not
            called any more, and the run goes on; so for show.
    show:   called instead with the figures of such a line (`realrun.run.progress.TrainingProgress.said`),
            where it has some; None: `say` is.

    Use it as a context manager, or call `close`. A pool whose run failed is closed. Raises
    `InputError` if the port is taken or the machine has not enough memory, or if a fork of the
    process that started it uses it; `RunError` if a process fails, `Ended` if a signal asked a run
    that writes checkpoints to end.
    """

    def __init__(
        self,
        ranks: int,
        *,
        device: str = "cpu",
        port: int = 0,
        say: Callable[[str], Any] = lambda text: None,
        show: Callable[[Any], Any] | None = None,
    ) -> None:
        if ranks < 1:
            raise InputError(f"{ranks} ranks: give at least 1")
        check_memory(ranks, 0)
        self.ranks, self.device = ranks, device
        self.say, self.show = say, show
        self._owner, self._heard = os.getpid(), True
        self._processes = Processes(self._pass_on)
        listener = listening(port)
        say(f"starting {ranks} process{'es' if ranks > 1 else ''}")
        try:
            try:
                self._processes.start(ranks, listener, device)
            except ChildProcessError as error:
                raise RunError(str(error)) from error
            self._collect("ready", watch=None, silence_s=START_SILENCE_S)
        except BaseException:
            self.close(at_once=True)
            raise

    def run(self, job: Job) -> dict[str, Any]:
        """Run `job` and return rank 0's result, see `Session.run`. `RunError` says which rank
        failed, at what, and why. `InputError` if another run writes into the same folder."""
        with held([job]):
            return self.run_held(job)

    def run_held(self, job: Job) -> dict[str, Any]:
        """`run` for a caller that holds the job's folders, see `realrun.launch.lock`."""
        job.validate()
        if job.ranks != self.ranks:
            raise InputError(f"the job needs {job.ranks} ranks, this pool has {self.ranks}")
        self._check_usable()
        check_memory(self.ranks, job.model_bytes())
        look(job, self.say)
        prepare(job)
        watch, stop = watch_of(job), Stop()
        # a run that writes no checkpoint has nothing to save: what ends its process ends it
        listening = stop.listening(_end_at_once) if job.checkpoint_every else nullcontext()
        try:
            with listening:
                self._processes.tell({"run": job.to_json(), "folder": os.getcwd()})
                result = self._collect("done", watch, stop=stop)[0]["result"]
        except BaseException as error:  # an interrupt too: what was recorded is kept
            self.close(at_once=True)
            with kept_from_others():
                error.partial = watch.save_partial()  # type: ignore[attr-defined]
            raise
        if "ended" in result:
            raise Ended(result["ended"], result["number"])
        return result

    def _check_usable(self) -> None:
        if os.getpid() != self._owner:
            raise InputError(
                f"this pool belongs to process {self._owner}, and this is a fork of it, process "
                f"{os.getpid()}: start a pool here"
            )
        if self.closed:
            raise RunError("this pool is closed: start a new one")

    @property
    def closed(self) -> bool:
        """Whether its processes were ended."""
        return not self._processes.started

    def call(
        self,
        functions: str,
        name: str,
        plan: Plan,
        timeout_s: float = CALL_TIMEOUT_S,
        **arguments: Any,
    ) -> list[Any]:
        """[per rank] what a function answers that each rank calls with its `Mesh` of `plan` and
        `arguments`.

        functions: where a mapping {name: function} is found, such as 'package.module:MAPPING'.
        timeout_s: after so many seconds the processes are ended, and the `RunError` says where each
                   of them was. Names and plain JSON values cross to the processes; only functions
                   that a module lists can be called.
        """
        known = listed_functions(functions)
        if name not in known:
            raise InputError(
                f"function {name!r}{did_you_mean(name, known)}: there is {', '.join(known)}"
            )
        if plan.gpus != self.ranks:
            raise InputError(f"the plan takes {plan.gpus} ranks, this pool has {self.ranks}")
        request = {"functions": functions, "name": name, "plan": plan_fields(plan)}
        message = {"call": request | {"arguments": arguments}}
        return self._ask(message, timeout_s, f"did not end {name!r}")

    def links(self, sizes: Iterable[int], budget_s: float) -> list[dict[str, Any]]:
        """[{"kind", "size_bytes", "seconds"}]: messages and collectives among this pool's
        processes, see `realrun.measure.links`."""
        message = {"links": {"sizes": list(sizes), "budget_s": budget_s}}
        return self._ask(message, LINKS_TIMEOUT_S, "did not end their messages and collectives")[0]

    def _ask(self, message: dict[str, Any], timeout_s: float, late: str) -> list[Any]:
        """[per rank] its result."""
        self._check_usable()
        try:
            self._processes.tell(message)
            answers = self._collect("done", watch=None, timeout_s=timeout_s, late=late)
            return [answers[rank]["result"] for rank in range(self.ranks)]
        except BaseException:
            self.close(at_once=True)
            raise

    def _collect(
        self,
        key: str,
        watch: Watch | None,
        timeout_s: float = PHASE_LIMIT_S,
        silence_s: float = ASIDE_S,
        late: str = "did not find each other",
        stop: Stop | None = None,
    ) -> dict[int, dict[str, Any]]:
        """[per rank] the message that has `key`; `RunError` at the first sign that one will not
        come."""
        answers: dict[int, dict[str, Any]] = {}
        own, asked = OwnTime(), False
        silence = (
            Silence(range(self.ranks), watch.timeout_s)
            if watch
            else Silence(range(self.ranks), silence_s, timeout_s)
        )
        while len(answers) < self.ranks:
            self._processes.wait()
            messages = self._processes.read()
            answers |= {rank: message for rank, message in messages if key in message}
            dead = any(process.exitcode is not None for process in self._processes.started)
            if dead or any("error" in message for _, message in messages):
                raise RunError(self._verdict(messages, silence, watch))
            if watch is None and own.now_s() > timeout_s:
                raise RunError(
                    f"the {self.ranks} processes {late} within {timeout_s:g} s: {self._places(answers)}"
                )
            if watch is not None and (stuck := watch.stuck()):
                raise RunError(self._silent_first(stuck, silence, watch))
            if over := next((m for m in messages if m[1].get("over")), None):
                over_text = self._over_text(*over, answers)
                raise RunError(self._silent_first(over_text, silence, watch))
            if stop is not None and stop.number and not asked:
                asked = True
                self._pass_on(
                    {
                        "say": f"{signal_name(stop.number)}: ending after this step; once more ends at once"
                    }
                )
                self._processes.tell({"stop": stop.number})
            if silence.asks_now():
                self._processes.tell({"where": True})
            if (silent := silence.longest(messages, answers)) is not None:
                who = self._silent_text(silence, silent, watch, silence.limit_s)
                raise RunError(f"{who}; the others were ended")
        return answers

    def _silent_text(self, silence: Silence, rank: int, watch: Watch | None, limit_s: float) -> str:
        process, where = self._processes.started[rank], self._place(silence, rank, watch)
        return (
            f"rank {rank} (process {process.pid}) has not answered for {limit_s:g} s while {where}"
        )

    @staticmethod
    def _place(silence: Silence, rank: int, watch: Watch | None) -> str:
        """Where `rank` was in its list or, outside the steps, what it said that it does."""
        place = watch.place_of(rank) if watch else OUTSIDE
        return silence.doing[rank] if place == OUTSIDE else place

    def _silent_first(self, text: str, silence: Silence, watch: Watch | None) -> str:
        """`text` of ranks that wait for too long, after who does not answer: they may wait for it."""
        silent = sorted(set(range(self.ranks)) - self._processes.where(ANSWERS_S).keys())
        named = [self._silent_text(silence, rank, watch, ANSWERS_S) for rank in silent]
        return "; ".join([*named, text])

    def _over_text(self, rank: int, message: dict[str, Any], answers: Container[int]) -> str:
        return (
            f"rank {rank} has been {message['doing']} for {message['over']:g} s, which is too long: "
            f"{self._places(answers)}"
        )

    def _places(self, answers: Container[int]) -> str:
        """Where each rank is that has not answered."""
        said = self._processes.where(GRACE_S)
        places: dict[str, list[int]] = {}
        for rank in range(self.ranks):
            place = "is done" if rank in answers else f"is at {said.get(rank, 'an unknown place')}"
            places.setdefault(place, []).append(rank)
        return "; ".join(
            f"rank {', '.join(map(str, ranks))} {place}" for place, ranks in places.items()
        )

    def _pass_on(self, message: dict[str, Any]) -> None:
        """A line of progress, or its figures, to who wants them. What is wrong there is not the
        training's fault."""
        if not self._heard:
            return
        try:
            if self.show and message.get("now"):
                self.show(message["now"])
            else:
                self.say(message["say"])
        except Exception as error:
            self._heard = False
            warnings.warn(
                f"progress is not shown any more, the run goes on: the pool's callback raised "
                f"{type(error).__name__}: {error}",
                stacklevel=2,
            )

    def _verdict(
        self, messages: list[tuple[int, dict[str, Any]]], silence: Silence, watch: Watch | None
    ) -> str:
        """One line: a rank killed from outside first, then an error of a rank's own, then what
        follows from those."""
        time.sleep(GRACE_S)
        messages += self._processes.read()
        silence.longest(messages, ())  # it notes what each rank says that it does
        for rank, process in enumerate(self._processes.started):
            if process.exitcode is not None and process.exitcode < 0:
                place = f" while {self._place(silence, rank, watch)}" if watch else " at start"
                return f"rank {rank} (process {process.pid}) {exit_text(process.exitcode)}{place}; the others were ended"
        errors = [(rank, message) for rank, message in messages if "error" in message]
        errors.sort(key=lambda item: is_consequence(item[1]["error"]))
        if errors:
            rank, message = errors[0]
            return (
                message["error"]
                if message["error"].startswith("rank ")
                else f"rank {rank}: {message['error']}"
            )
        if all(process.exitcode == LOST for process in self._processes.started):
            return f"{fork_server_text()} has ended, and the ranks with it"
        ended = [
            f"rank {rank} (process {process.pid}) {exit_text(process.exitcode)}"
            for rank, process in enumerate(self._processes.started)
            if process.exitcode is not None
        ]
        hint = "; a script that starts a Pool does so under `if __name__ == '__main__':`"
        return "; ".join(ended) + ("" if watch else hint)

    def close(self, at_once: bool = False) -> None:
        """End all processes: asked first unless `at_once`, then killed. Nothing in a fork, whose
        processes they are not."""
        if os.getpid() == self._owner:
            self._processes.end(at_once)

    def __enter__(self) -> Pool:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
