"""One rank: joins the process group, then runs jobs until told to stop."""

import json
import os
import queue
import signal
import sys
import threading
from datetime import timedelta

# gloo and NCCL pick the interface that the host name resolves to; ours is loopback unless the user says otherwise
LOOPBACK = {"linux": "lo", "darwin": "lo0"}.get(sys.platform)
WAIT_TIMEOUT_S = 600  # a rank that waits this long gives up by itself; a launcher that watches is quicker


def use_loopback():
    """Keep all sockets of this process group on loopback, unless the environment names an interface."""
    if LOOPBACK:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", LOOPBACK)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", LOOPBACK)


class Rank:
    """A member of the process group. gloo carries control messages always, and the program's where there is no CUDA."""

    def __init__(self, rank, world, local_rank, store, device_kind, message_timeout_s=WAIT_TIMEOUT_S):
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        self.rank = rank
        self.device = torch.device("cuda", local_rank) if device_kind == "cuda" else torch.device("cpu")
        if device_kind == "cuda":
            torch.cuda.set_device(self.device)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=WAIT_TIMEOUT_S))
        backend, timeout = "nccl" if device_kind == "cuda" else "gloo", timedelta(seconds=message_timeout_s)
        self.groups = {direction: dist.new_group(backend=backend, timeout=timeout) for direction in (1, -1)}

    def run(self, job, say):
        """Run `job` together with all other ranks; the result on rank 0, None elsewhere."""
        from realrun.plan_session import PlanSession
        from realrun.session import Session

        session = PlanSession if hasattr(job, "plan") else Session
        if getattr(job, "engine", None) == "torch":
            from realrun.torch_engine.session import TorchSession as session
        return session(job, self.rank, self.device, self.groups, say).run()

    def links(self, sizes, budget_s, say):
        """[samples of every collective and of messages] on rank 0, None elsewhere, see `realrun.machine_links`."""
        from realrun.machine_links import link_samples

        say("timing messages and collectives")
        return link_samples(self.rank, self.device, self.groups, sizes, budget_s)

    def demonstrate(self, name, plan, arguments):
        """What the function `name` of `realrun.demonstrations` answers on this rank."""
        from realrun.demonstrations import DEMONSTRATIONS
        from realrun.parallel.mesh import Layout, Mesh
        from simlab.plan import Plan

        mesh = Mesh(Layout(Plan(**plan)), self.rank)
        try:
            return DEMONSTRATIONS[name](mesh, **arguments)
        finally:
            mesh.close()

    def leave(self):
        import torch.distributed as dist

        dist.destroy_process_group()


def serve(rank, world, port, device_kind, pipe):
    """The main function of a local process that `Pool` starts: jobs come in and answers go out through `pipe`.

    Ends when the pipe does, so a launcher that dies, however it dies, leaves no process behind.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ^C is the launcher's to handle, whoever started the fork server
    jobs = queue.SimpleQueue()
    threading.Thread(target=_read, args=(pipe, jobs), daemon=True).start()
    use_loopback()
    try:
        from torch.distributed import TCPStore

        store = TCPStore("127.0.0.1", port, world, is_master=False, timeout=timedelta(seconds=60), wait_for_workers=False)
        member = Rank(rank, world, rank, store, device_kind)
        _answer(pipe, ready=True)
        while (job := jobs.get()) is not None:
            say = (lambda text, now=None: _answer(pipe, say=text, now=now)) if rank == 0 else (lambda *_: None)
            _answer(pipe, result=_result(member, job, say), done=True)
        member.leave()
    except BaseException as error:  # whatever happens here must be told: nobody else sees it
        text = " ".join(str(error).split()) or type(error).__name__
        try:
            _answer(pipe, error=text)
        except OSError:
            pass  # nobody is left to tell
        os._exit(1)


def _result(member, job, say):
    """Of one message that came in."""
    from realrun.job import Job
    from realrun.plan_job import PlanJob

    if "links" in job:
        return member.links(**job["links"], say=say)
    if "demonstrate" in job:
        return member.demonstrate(**job["demonstrate"])
    return member.run((PlanJob if "plan" in job else Job)(**job), say)


def _read(pipe, jobs):
    try:
        while (message := json.loads(pipe.recv_bytes())) is not None:
            jobs.put(message)
        jobs.put(None)
    except (EOFError, OSError):
        os._exit(1)


def _answer(pipe, **message):
    pipe.send_bytes(json.dumps(message).encode())
