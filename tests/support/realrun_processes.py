"""What the tests of realrun share: command lines as a user starts them, what /proc says of their
processes, ranks of our own.

Every process started here carries a mark in its environment, which children inherit: so one that
outlives its run is found.
"""

import ctypes
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import uuid
from contextlib import contextmanager, suppress
from pathlib import Path

import realrun
from realrun.launch.pool import Pool
from simlab.program import Op, Program
from tests.support.patience import PATIENCE_S, eventually

ROOT = Path(realrun.__file__).parents[1]
MARK = "REALRUN_TEST_MARK"
PRCTL = ctypes.CDLL(None).prctl if sys.platform == "linux" else None


class CommandLine:
    """A started `python -m realrun ...` (or another command) in a session of its own, marked. Whatever
    is left of it after `PATIENCE_S` is killed.

    temporary: an empty folder that it takes for temporary files.
    """

    def __init__(
        self,
        *arguments,
        cwd,
        temporary,
        command=(sys.executable, "-m", "realrun"),
        environment=None,
    ):
        self.mark = uuid.uuid4().hex
        self.temporary = Path(temporary)
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        clean = {
            name: value
            for name, value in os.environ.items()
            if name not in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
        }
        self.process = subprocess.Popen(
            [*command, *map(str, arguments)], cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=clean | {MARK: self.mark, "PYTHONPATH": path, "TMPDIR": str(temporary)} | (environment or {}), start_new_session=True,
            preexec_fn=_as_started,
        )  # fmt: skip
        self.said, self.late = "", False
        self._limit = threading.Timer(PATIENCE_S, self._end_late)
        self._limit.daemon = True
        self._limit.start()

    def wait_until(self, condition):
        """Wait until `condition()`, which must come while the command still runs."""
        ended = False
        while not condition():
            assert not ended, f"exit status {self.process.poll()}"
            ended = self.process.poll() is not None  # whatever it did before counts
            time.sleep(0.05)

    def say_until(self, text):
        """Read stderr up to the line that has `text` in it."""
        for line in self.process.stderr:
            self.said += line
            if text in line:
                return
        raise AssertionError(f"never said {text!r}, but:\n{self.said}")

    def end(self):
        """(exit status, stdout, stderr), once it has ended."""
        out, err = self.process.communicate()
        self._limit.cancel()
        assert not self.late, f"killed after {PATIENCE_S:g} s:\n{self.said + err}"
        return self.process.returncode, out, self.said + err

    def facts(self):
        """What `--json` says of the first run, once all have ended well."""
        status, out, err = self.end()
        assert status == 0, err
        return one_object(out)["runs"][0]

    def processes(self):
        """{pid: parent's pid} of everything that this command has started and that still runs."""
        return descended(self.process.pid, self.mark)

    def workers(self):
        """pids of the ranks: the processes whose parent is multiprocessing's fork server."""
        everything = self.processes()
        return sorted(
            pid
            for pid, parent in everything.items()
            if parent in everything and parent != self.process.pid
        )

    def fork_server(self):
        """pid of the process that starts the ranks; None: there is none yet."""
        for pid, parent in self.processes().items():
            try:
                text = Path(f"/proc/{pid}/cmdline").read_bytes()
            except OSError:
                continue  # it has just ended
            if parent == self.process.pid and b"forkserver" in text:
                return pid
        return None

    def gone(self, within_s=PATIENCE_S):
        """Whether all its processes end within so many seconds. A fork server that imports torch does
        so first."""
        return eventually(lambda: not self.processes(), within_s)

    def temporary_files(self):
        """[names] in its folder for temporary files, but for the one that importing torch makes."""
        return [
            path.name
            for path in self.temporary.iterdir()
            if not path.name.startswith("torchinductor_")
        ]

    def kill(self):
        """End whatever is left of it."""
        self._limit.cancel()
        self._kill()
        _, err = self.process.communicate()
        print(self.said + (err or ""))  # pytest shows it where a test failed

    def _end_late(self):
        self.late = True
        self._kill()

    def _kill(self):
        while left := self.processes():  # some may be starting others
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass


def _as_started():
    """In the new process: hear SIGHUP, which tests under nohup ignore; on Linux, end with the process of
    the tests, which may be killed."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    if sys.platform == "linux":
        PRCTL(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def descended(session, mark):
    """{pid: parent's pid} of the living processes in a session, or with `mark` in their environment.

    Both, since neither is enough: a process may start a session of its own, and has no environment
    to read while it becomes another program.
    """
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                marked = f"{MARK}={mark}".encode() in (folder / "environ").read_bytes()
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has just ended
            state, parent, _, its_session = fields[:4]
            if state != "Z" and (marked or int(its_session) == session):
                found[int(folder.name)] = int(parent)
    return found


def one_object(text):
    """The only JSON object in `text`, which is one line; NaN and Infinity, which JSON does not
    know, are refused."""
    assert text.endswith("\n") and len(text.splitlines()) == 1, text
    return json.loads(
        text,
        parse_constant=lambda constant: exec(f'raise AssertionError("{constant} is not JSON")'),
    )


# programs
# ---------------------------------------------------------------------------------------------------


def random_program(placement, microbatches, seed, name="random", in_order=False):
    """A valid program in a random order: time and again one of the ops whose inputs are there, put
    on its stage's rank.

    placement: [rank of each stage].
    in_order:  each stage takes the microbatches one after the other.
    """
    stages, choice = len(placement), random.Random(seed)
    next_microbatch = dict.fromkeys([(stage, kind) for stage in range(stages) for kind in "FB"], 0)
    ranks = [[] for _ in range(max(placement) + 1)]
    ready = [(0, "F", microbatch) for microbatch in range(microbatches)]
    while ready:
        able = [op for op in ready if not in_order or next_microbatch[op[:2]] == op[2]]
        stage, kind, microbatch = op = choice.choice(able)
        ready.remove(op)
        next_microbatch[stage, kind] += 1
        ranks[placement[stage]].append(Op(stage, kind, microbatch))
        if kind == "F":
            ready.append(
                (stage + 1, "F", microbatch) if stage + 1 < stages else (stage, "B", microbatch)
            )
        elif stage > 0:
            ready.append((stage - 1, "B", microbatch))
    return Program(ranks, name)


# ranks of our own
# -------------------------------------------------------------------------------------------


class RestingPool(Pool):
    """A `Pool` whose processes use no processor between its jobs: each of gloo's threads would wake up
    a hundred times a second, and those of a few warm pools together take a core."""

    def __init__(self, ranks, **options):
        super().__init__(ranks, **options)
        rest(self._processes.started)

    def run_held(self, job):
        with awake(self._processes.started):
            return super().run_held(job)

    def _ask(self, *arguments):
        with awake(self._processes.started):
            return super()._ask(*arguments)

    def close(self, at_once=False):
        go_on(self._processes.started)
        super().close(at_once)


def rest(processes):
    """Stop them, until they are to `go_on`."""
    _signal(processes, signal.SIGSTOP)


def go_on(processes):
    """After a `rest`."""
    _signal(processes, signal.SIGCONT)


@contextmanager
def awake(processes):
    """They go on, and `rest` afterwards, where they are still there."""
    go_on(processes)
    try:
        yield
    finally:
        rest(processes)


def _signal(processes, number):
    for process in processes:
        with suppress(ProcessLookupError):  # a test may just have killed it
            if process.is_alive():
                os.kill(process.pid, number)


def both_directions():
    """The two groups that `realrun.comm.channels.Channels` wants; called by all ranks."""
    import torch.distributed as dist

    return {direction: dist.new_group(backend="gloo") for direction in (1, -1)}


def made_by(script, folder):
    """`folder`, with what the program in the file `script` writes there."""
    command = CommandLine(folder, cwd=folder, temporary=folder, command=(sys.executable, script))
    try:
        status, _, error = command.end()
    finally:
        command.kill()
    assert status == 0, error
    return folder
