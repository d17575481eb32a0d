"""Whether the other ranks of a torchrun are still alive, whatever they do.

A rank that is stopped (SIGSTOP, a frozen host) answers nobody: the others wait in a collective until
its timeout, ten minutes by default, and then blame each other. So a thread of every rank writes into
the store that it lives and what it does, and reads whether the next rank does. Whoever finds that
something is wrong asks who is silent, names them, and leaves this verdict in the store: every rank
that reads it ends, and ends those that are stopped on its own host, for torchrun would wait half a
minute for them.
"""

import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterable
from datetime import timedelta
from typing import Any, NamedTuple, NoReturn

from realrun.launch.error_file import note_error
from realrun.launch.guard import Guard
from realrun.launch.worker import ANSWERS_S, SILENCE_S
from realrun.run.life import Doing, OwnTime
from realrun.run.watch import OUTSIDE, Watch

BEAT_S = 1.0
"""Between two beats of a rank that goes on with what it does."""
BEGINS_S = 60.0
"""A rank may begin so much later than another one, however short its silence may be: it imports torch first,
from a network's drive or on a busy machine."""
LEFT, VERDICT = "left", "why the run ends"
LEAVES_S = 5.0
"""Within this time ranks leave a run that is over."""
POLL_S = 0.1


class Beat(NamedTuple):
    """What a rank wrote last, and when that was first read here, by `OwnTime`. text: '' before its
    first beat."""

    text: str
    heard_s: float

    @property
    def pid(self) -> int:
        """Its process."""
        return int(self.text.split(" ", 3)[1])

    @property
    def host(self) -> str:
        """Its host."""
        return self.text.split(" ", 3)[2]

    @property
    def doing(self) -> str:
        """What it did."""
        return self.text.split(" ", 3)[3]

    @property
    def ended(self) -> bool:
        """Whether its process is known to have ended, because it was one of this host."""
        if not self.text or self.text == LEFT or self.host != socket.gethostname():
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except OSError:
            pass  # it is somebody else's
        return False


class Heartbeat:
    """A thread that beats for `rank` of `world` and listens to the next one, or to all of them where
    it has a `watch`.

    store:   its own client of the rendezvous store, for a thread that waits in one holds it.
    limit_s: of silence, in seconds; at least `SILENCE_S`.
    doing:   what the rank does now; a change is told to the others at once.
    watch:   on rank 0, where it sees what all ranks record: the `Watch` of what runs; else None.
    """

    def __init__(self, store: Any, rank: int, world: int, limit_s: float) -> None:
        self._store, self._rank = store, rank
        self._ended, self.doing = threading.Event(), Doing(self._enters)
        self.watch: Watch | None = None
        self._limit_s, self._next = max(limit_s, SILENCE_S), (rank + 1) % world
        self._others = [other for other in range(world) if other != rank]
        self._time = OwnTime()
        self._heard = dict.fromkeys(self._others, Beat("", self._time.now_s()))
        self._reading, self._beating, self._number = threading.Lock(), threading.Lock(), 0
        self._own = f"{os.getpid()} {socket.gethostname()}"
        store.set_timeout(timedelta(seconds=self._limit_s))
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._guard = Guard(self._time, self._limit_s + LEAVES_S, self._end_without_store)
        if self._others:
            self._thread.start()

    def leave(self) -> None:
        """This rank has done its work, and nobody is to miss it. Wait until the next rank has left,
        too, and rank 0, which may hold the store, until all have: one that is silent is named."""
        if not self._others:
            return
        self._ended.set()
        self._thread.join(self._limit_s)
        awaited = [self._next] if self._rank else self._others
        try:
            with self._guard.asking():
                self._store.set(_key(self._rank), LEFT)
            self._read(awaited)
            while any(self._heard[rank].text != LEFT for rank in awaited):
                self._end_if_told()
                self._end_if_silent(awaited)
                ended = [rank for rank in awaited if self._heard[rank].ended]
                time.sleep(POLL_S)
                self._read(awaited)
                if lost := [rank for rank in ended if self._heard[rank].text != LEFT]:
                    self._end_for(lost)
        except RuntimeError:
            pass  # the store's host has left before

    def blame(self) -> str | None:
        """Why this rank cannot reach another one: the verdict of a rank that has found it, or who
        is silent now; None: all are alive. From now on the thread ends nobody: the caller says it."""
        self._ended.set()
        try:
            if (told := self._told()) is not None:
                return told["text"]
            silent = self._missing()
            return self._tell(self._names(silent), silent) if silent else None
        except RuntimeError:
            return None  # the store has gone, too

    def stop(self) -> None:
        """End the thread: one that is in the store while Python exits aborts the process."""
        self._ended.set()
        if self._others:
            self._thread.join(LEAVES_S)
        self._guard.stop()

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                self._beat(self.doing())
                self._end_if_told()
                self._read(listened := self._others if self.watch else [self._next])
                self._look()
                self._end_if_silent(listened)
            except RuntimeError:
                if not self._ended.wait(LEAVES_S):  # else rank 0 was only quicker to leave
                    self._end_without_store()
                return
            self._ended.wait(BEAT_S)

    def _enters(self, doing: str) -> None:
        """Tell the others at once: a rank that is stopped cannot be asked any more."""
        try:
            if not self._ended.is_set():
                self._beat(doing)
        except RuntimeError:
            pass  # the thread sees it, too

    def _beat(self, doing: str) -> None:
        with self._guard.asking(), self._beating:
            self._number += 1
            self._store.set(_key(self._rank), f"{self._number} {self._own} {doing}")

    def _look(self) -> None:
        """End the run where this rank is over its phase's limit, or where no rank moves."""
        if (limit_s := self.doing.over()) is not None:
            self._end(
                f"rank {self._rank} has been {self.doing()} for {limit_s:g} s, which is too long"
            )
        if self.watch is not None and (stuck := self.watch.stuck()):
            self._end(stuck)

    def _read(self, ranks: Iterable[int]) -> None:
        """Note what each of `ranks` has written last."""
        with self._guard.asking(), self._reading:
            for rank in ranks:
                if self._store.check([_key(rank)]):
                    text = self._store.get(_key(rank)).decode()
                    if text != self._heard[rank].text:
                        self._heard[rank] = Beat(text, self._time.now_s())

    def _end_if_silent(self, ranks: Iterable[int]) -> None:
        """End the run where one of `ranks` says the same for too long."""
        now_s = self._time.now_s()
        for rank in ranks:
            beat, limit_s = self._heard[rank], self._limit_s
            if not beat.text:  # it may start later than this one, and is still named in time
                limit_s = max(BEGINS_S, 2 * limit_s - ANSWERS_S)
            quiet = beat.text != LEFT and now_s - beat.heard_s > limit_s
            if quiet and (silent := self._missing()):
                self._end_for(silent)

    def _end_for(self, silent: list[int]) -> NoReturn:
        """End the run because these ranks are lost."""
        text = f"{self._names(silent)}; rank {self._rank} ends the run"
        self._exit(self._tell(text, silent))

    def _missing(self) -> list[int]:
        """[ranks that are not heard of within `ANSWERS_S`]; who is known to be silent for so long, or
        to have ended, need not be waited for."""
        self._read(self._others)
        asked_s = self._time.now_s()
        while True:
            quiet = [
                rank
                for rank, beat in self._heard.items()
                if beat.heard_s <= asked_s and beat.text != LEFT
            ]
            since_s = self._time.now_s() - ANSWERS_S
            if all(
                self._heard[rank].ended or self._heard[rank].heard_s < since_s for rank in quiet
            ):
                return quiet
            time.sleep(POLL_S)
            self._beat(self.doing())  # others ask, too
            self._read(quiet)

    def _names(self, silent: list[int]) -> str:
        """Who is silent, for how long, and what each of them did."""
        return "; ".join(map(self._name, silent))

    def _name(self, rank: int) -> str:
        beat = self._heard[rank]
        if not beat.text:
            waited_s = self._time.now_s() - beat.heard_s
            return f"rank {rank} has not begun within {waited_s:.0f} s of rank {self._rank}'s start"
        place = self.watch.place_of(rank) if self.watch is not None else OUTSIDE
        where = beat.doing if place == OUTSIDE else place
        who = f"rank {rank} (process {beat.pid} on {beat.host})"
        if beat.ended:
            return f"{who} has ended while {where}"
        silent_s = self._time.now_s() - beat.heard_s
        return f"{who} has not been heard of for {silent_s:.0f} s while {where}"

    def _end_without_store(self) -> NoReturn:
        """End the run because nobody can be asked any more."""
        agents = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        keeper = "torchrun's agent" if agents else "rank 0"
        self._exit(
            f"{keeper}, which holds the rendezvous store, has not been heard of for "
            f"{self._limit_s:g} s; rank {self._rank} ends the run"
        )

    def _tell(self, text: str, silent: Iterable[int] = ()) -> str:
        """Leave `text` in the store as the verdict, or find another one there: the verdict, once
        those that are stopped on this host have been ended."""
        beats = [self._heard[rank] for rank in silent if self._heard[rank].text]
        own = json.dumps({"text": text, "silent": [[beat.pid, beat.host] for beat in beats]})
        try:
            with self._guard.asking():
                verdict = json.loads(self._store.compare_set(VERDICT, "", own))
        except (RuntimeError, ValueError):
            verdict = json.loads(own)
        for pid, host in [*verdict["silent"], *json.loads(own)["silent"]]:
            if host == socket.gethostname() and pid > 1:  # others stand for many processes
                try:
                    os.kill(pid, signal.SIGKILL)  # one that is stopped takes no other signal
                except OSError:
                    pass  # it has gone
        return verdict["text"]

    def _told(self) -> dict[str, Any] | None:
        """The verdict, if there is one."""
        with self._guard.asking():
            return json.loads(self._store.get(VERDICT)) if self._store.check([VERDICT]) else None

    def _end_if_told(self) -> None:
        """End with the others where one of them has found why."""
        if (told := self._told()) is not None:
            text = self._tell(told["text"])
            self._leave_it_to_the_main_thread()
            note_error(text)
            os._exit(1)

    def _end(self, text: str) -> NoReturn:
        """End the run because of `text`, after who is silent: the others may wait for those."""
        silent = self._missing()
        names = [self._names(silent)] if silent else []
        self._exit(self._tell("; ".join([*names, text]), silent))

    def _exit(self, text: str) -> NoReturn:
        """Say `text` and end this process."""
        self._leave_it_to_the_main_thread()
        print(f"error: {text}", file=sys.stderr, flush=True)  # first: torchrun may end us now
        note_error(text)
        os._exit(1)

    def _leave_it_to_the_main_thread(self) -> None:
        """End this thread instead of the process, where the main thread ends the run."""
        if self._ended.is_set() and threading.current_thread() is self._thread:
            raise SystemExit


def _key(rank: int) -> str:
    return f"heartbeat of rank {rank}"
