"""Local processes, one per rank: started once, kept warm between jobs, watched, and never left behind."""

import json
import multiprocessing
import os
import signal
import socket
import tempfile
import time
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import wait as wait_for_any
from pathlib import Path

from realrun.folder import prepare
from realrun.plan_job import plan_fields
from realrun.watch import exit_text
from realrun.worker import serve
from simlab.errors import InputError, SimlabError, did_you_mean
from simlab.units import GIB

PROCESS_BYTES = 0.15 * GIB  # measured: proportional set size of one worker with torch 2.13 on CPU, rounded up
START_TIMEOUT_S = 120
LINKS_TIMEOUT_S = 900
DEMONSTRATION_TIMEOUT_S = 120
GRACE_S = 1.0  # from the first sign of trouble to the verdict: the rank to blame is often not the first to complain
POLL_S = 0.2
# what a rank says when it lost another one: a consequence, not a cause
CONSEQUENCES = ("connection closed", "connection reset", "connection refused", "broken pipe", "timed out", "socket")


class RunError(SimlabError):
    """The run ended before its time. `partial` lists the files with what was recorded until then."""

    def __init__(self, reason, partial=()):
        super().__init__(reason)
        self.partial = list(partial)


class Pool:
    """`ranks` local processes in one process group on loopback, ready for one job after another.

    device: 'cpu' (gloo) or 'cuda' (NCCL, one device per rank).
    port:   of the rendezvous store on 127.0.0.1; 0 takes a free one.
    say:    called with one line of progress at a time.
    show:   called instead with the figures of such a line (`realrun.progress.Progress.said`), where it has some; None: `say` is.

    Use it as a context manager, or call `close`. A pool whose run failed is closed. Raises `InputError` if the port
    is taken or the machine has not enough memory, `RunError` if a process fails.
    """

    def __init__(self, ranks, *, device="cpu", port=0, say=lambda text: None, show=None):
        if ranks < 1:
            raise InputError(f"{ranks} ranks: give at least 1")
        check_memory(ranks, 0)
        self.ranks, self.device = ranks, device
        self.say, self.show = say, show
        self._processes, self._pipes = [], []
        listener = _listen(port)
        say(f"starting {ranks} process{'es' if ranks > 1 else ''}")
        try:
            self._start(listener, device)
        except BaseException:
            self.close(at_once=True)
            raise

    def _start(self, listener, device):
        context = _process_context()
        port = listener.getsockname()[1]
        for rank in range(self.ranks):
            ours, theirs = context.Pipe()
            process = context.Process(target=serve, args=(rank, self.ranks, port, device, theirs), daemon=True)
            process.start()
            theirs.close()
            self._processes.append(process)
            self._pipes.append(ours)
        from torch.distributed import TCPStore  # here, while the processes import theirs

        self._store = TCPStore("127.0.0.1", port, self.ranks, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())
        self._collect("ready", watch=None)

    def run(self, job):
        """Run `job` and return rank 0's result, see `Session.run`. `RunError` says which rank failed, at what, and why."""
        job.validate()
        if job.ranks != self.ranks:
            raise InputError(f"the job needs {job.ranks} ranks, this pool has {self.ranks}")
        if not self._processes:
            raise RunError("this pool is closed: start a new one")
        check_memory(self.ranks, job.model_bytes())
        prepare(job)
        watch = job.watch()
        try:
            self._tell(job.to_json())
            return self._collect("done", watch)[0]["result"]
        except BaseException as error:  # an interrupt too: what was recorded is kept
            self.close(at_once=True)
            error.partial = watch.save_partial()
            raise

    def demonstrate(self, name, plan, **arguments):
        """[per rank] what `realrun.demonstrations`' function `name` answers, called by each rank with its `Mesh` of `plan` and `arguments`.

        A name and plain JSON values cross to the processes: no code does, so only what is listed there can be called.
        """
        from realrun.demonstrations import DEMONSTRATIONS

        if name not in DEMONSTRATIONS:
            raise InputError(f"demonstration {name!r}{did_you_mean(name, DEMONSTRATIONS)}: there is {', '.join(DEMONSTRATIONS)}")
        if plan.gpus != self.ranks:
            raise InputError(f"the plan takes {plan.gpus} ranks, this pool has {self.ranks}")
        request = {"name": name, "plan": plan_fields(plan), "arguments": arguments}
        return self._ask({"demonstrate": request}, DEMONSTRATION_TIMEOUT_S, f"did not end {name!r}")

    def links(self, sizes, budget_s):
        """[{"kind", "size_bytes", "seconds"}]: messages and collectives among this pool's processes, see `realrun.machine_links`."""
        message = {"links": {"sizes": list(sizes), "budget_s": budget_s}}
        return self._ask(message, LINKS_TIMEOUT_S, "did not end their messages and collectives")[0]

    def _ask(self, message, timeout_s, late):
        """[per rank] its result."""
        if not self._processes:
            raise RunError("this pool is closed: start a new one")
        try:
            self._tell(message)
            answers = self._collect("done", watch=None, timeout_s=timeout_s, late=late)
            return [answers[rank]["result"] for rank in range(self.ranks)]
        except BaseException:
            self.close(at_once=True)
            raise

    def _tell(self, message):
        for pipe in self._pipes:
            try:
                pipe.send_bytes(json.dumps(message).encode())
            except OSError:
                pass  # its process died while the pool was idle: `_collect` will say so

    def _collect(self, key, watch, timeout_s=START_TIMEOUT_S, late="did not find each other"):
        """[per rank] the message that has `key`; `RunError` at the first sign that one will not come."""
        answers, started_s = {}, time.monotonic()
        while len(answers) < self.ranks:
            wait_for_any([*self._pipes, *(process.sentinel for process in self._processes)], POLL_S)
            messages = self._read_messages()
            answers |= {rank: message for rank, message in messages if key in message}
            dead = any(process.exitcode is not None for process in self._processes)
            if dead or any("error" in message for _, message in messages):
                raise RunError(self._verdict(messages, watch))
            if watch is None and time.monotonic() - started_s > timeout_s:
                raise RunError(f"the {self.ranks} processes {late} within {timeout_s} s")
            if watch is not None and (stuck := watch.stuck()):
                raise RunError(stuck)
        return answers

    def _read_messages(self):
        """[(rank, message)] that have come in; progress lines are passed on at once."""
        messages = []
        for rank, pipe in enumerate(self._pipes):
            try:
                while pipe.poll():
                    message = json.loads(pipe.recv_bytes())
                    if "say" in message:
                        if self.show and message.get("now"):
                            self.show(message["now"])
                        else:
                            self.say(message["say"])
                    else:
                        messages.append((rank, message))
            except (EOFError, OSError):
                pass  # its process is dead or dying: the exit code will tell
        return messages

    def _verdict(self, messages, watch):
        """One line: a rank killed from outside first, then an error of a rank's own, then what follows from those."""
        time.sleep(GRACE_S)
        messages += self._read_messages()
        for rank, process in enumerate(self._processes):
            if process.exitcode is not None and process.exitcode < 0:
                place = f" while {watch.place_of(rank)}" if watch else " at start"
                return f"rank {rank} (process {process.pid}) {exit_text(process.exitcode)}{place}; the others were ended"
        errors = [(rank, message) for rank, message in messages if "error" in message]
        errors.sort(key=lambda item: any(word in item[1]["error"].lower() for word in CONSEQUENCES))
        if errors:
            rank, message = errors[0]
            return message["error"] if message["error"].startswith("rank ") else f"rank {rank}: {message['error']}"
        ended = [(rank, process) for rank, process in enumerate(self._processes) if process.exitcode is not None]
        hint = "" if watch else "; a script that starts a Pool does so under `if __name__ == '__main__':`"
        return "; ".join(f"rank {rank} (process {process.pid}) {exit_text(process.exitcode)}" for rank, process in ended) + hint

    def close(self, at_once=False):
        """End all processes: asked first unless `at_once`, then killed."""
        for pipe in self._pipes:
            try:
                pipe.send_bytes(b"null")
            except OSError:
                pass
        deadline_s = time.monotonic() + (0 if at_once else 3)
        for process in self._processes:
            process.join(max(0.0, deadline_s - time.monotonic()))
        for process in self._processes:
            if process.is_alive():
                process.kill()
        for process in self._processes:
            process.join()
        for pipe in self._pipes:
            pipe.close()
        self._pipes, self._processes, self._store = [], [], None

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()


def _process_context():
    """forkserver where there is one: torch is imported once and then forked. spawn elsewhere (Windows)."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["realrun.session", "torch._dynamo"])  # any torch optimizer imports the latter: 2 s
    resource_tracker.ensure_running()  # here, since it unblocks SIGINT when it starts
    try:
        with _interrupts_blocked():  # ^C is the launcher's to handle; its processes end when its pipes do
            forkserver.ensure_running()
    except OSError as error:  # its socket is a file whose path may have about 100 characters
        raise InputError(f"cannot start processes: {error}; TMPDIR is {tempfile.gettempdir()!r}: try a short one, such as /tmp") from error
    return context


@contextmanager
def _interrupts_blocked():
    """Processes started inside never see SIGINT."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _listen(port):
    """A socket that listens on 127.0.0.1 only; `InputError` if the port cannot be had."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen(4096)
    except (OSError, OverflowError) as error:
        listener.close()
        reason = error.strerror if isinstance(error, OSError) else "there are ports 0 to 65535"
        raise InputError(f"port {port} on 127.0.0.1: {reason}; give another one, or 0 for a free one") from error
    return listener


def check_memory(ranks, model_bytes):
    """`InputError` if `ranks` processes with `model_bytes` in them together do not fit into what is free now."""
    available_bytes, needed_bytes = available_memory(), ranks * PROCESS_BYTES + model_bytes
    if available_bytes is not None and needed_bytes > 0.9 * available_bytes:
        raise InputError(
            f"{ranks} processes need about {needed_bytes / GIB:.1f} GiB of memory, {available_bytes / GIB:.1f} GiB is free: "
            "use fewer pipeline stages (--pp), fewer microbatches or a smaller model"
        )


def available_memory():
    """Bytes that new processes can have without swapping, or None where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else None
