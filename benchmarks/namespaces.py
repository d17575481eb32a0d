"""It makes two hosts of this machine: two network namespaces and a slow cable between them."""

import os
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

ROOT = Path(__file__).parents[1]
BURST_BYTES = 6_000
"""The bytes that pass the cable at once. With more, short messages would not be slowed to the rate of
the link at all."""
SOCKET_BYTES = 65_536
"""The most bytes in flight on a connection. With megabytes queued at the cable, TCP takes waiting for
loss and sends everything again."""


def why_not():
    """The reason why two hosts cannot be made here; '' if they can."""
    if not sys.platform.startswith("linux"):
        return "network namespaces are Linux's"
    if os.geteuid():
        return "needs root"
    if missing := [name for name in ("ip", "tc") if shutil.which(name) is None]:
        return f"needs {' and '.join(missing)}"
    try:
        with Hosts(20):
            return ""
    except subprocess.CalledProcessError as error:
        return f"{' '.join(error.cmd)}: {error.stderr.strip()}"


class Hosts:
    """Two network namespaces and a cable between them.

    mbit: the rate of the cable in each direction, in million bits per second.

    At the end of a `with` block they are removed, with everything that runs in them.
    """

    def __init__(self, mbit):
        self.mbit, self.names = mbit, [f"host{number}-{os.getpid()}" for number in range(2)]
        self.addresses, self.port = [f"10.77.0.{number + 1}" for number in range(2)], 29400

    def __enter__(self):
        with ExitStack() as made:
            for name in self.names:
                _run("ip", "netns", "add", name)
                made.callback(_run, "ip", "netns", "del", name)
            first, second = self.names
            ends = f"cable netns {first} type veth peer name cable netns {second}"
            _run("ip", "link", "add", *ends.split())
            for name, address in zip(self.names, self.addresses):
                _run("ip", "-n", name, "address", "add", f"{address}/24", "dev", "cable")
                for device in ("lo", "cable"):
                    _run("ip", "-n", name, "link", "set", device, "up")
                for end in ("rmem", "wmem"):
                    limit = (
                        f"echo 4096 {SOCKET_BYTES} {SOCKET_BYTES} > /proc/sys/net/ipv4/tcp_{end}"
                    )
                    _run("ip", "netns", "exec", name, "sh", "-c", limit)
                shape = f"tbf rate {self.mbit}mbit burst {BURST_BYTES}b latency 2s"
                shape_cable = f"tc qdisc add dev cable root {shape}"
                _run("ip", "netns", "exec", name, *shape_cable.split())
            self._made = made.pop_all()
        return self

    def __exit__(self, *exception):
        self._made.close()

    def launch(self, *arguments, on=(0, 1), processes=2, timeout_s=300, module="realrun"):
        """What rank 0 of `python -m module arguments` prints.

        assets/launch/nodes.sh starts that many processes on each of the hosts `on`. Raises
        `RuntimeError` with what failing ranks printed.
        """
        self.port += 1
        common = {
            "NODES": len(on),
            "RANKS": processes,
            "FIRST": self.addresses[on[0]],
            "PORT": self.port,
            "INTERFACE": "cable",
            "PYTHON": sys.executable,
            "PYTHONPATH": _search_path(),
            "MODULE": module,
        }
        agents = [
            self._agent(host, {"NODE": rank, **common}, arguments) for rank, host in enumerate(on)
        ]
        try:
            said = [agent.communicate(timeout=timeout_s) for agent in agents]
        finally:
            for agent in agents:
                if agent.poll() is None:
                    os.killpg(agent.pid, 9)
        failed = [err for agent, (_, err) in zip(agents, said) if agent.returncode]
        if failed:
            raise RuntimeError(f"{module} {' '.join(map(str, arguments))}:\n" + "\n".join(failed))
        return said[0][0]

    def _agent(self, host, variables, arguments):
        """The process of nodes.sh on a host, with these variables of its environment."""
        script = ROOT / "assets" / "launch" / "nodes.sh"
        line = ("ip", "netns", "exec", self.names[host], "sh", script, *arguments)
        return subprocess.Popen(
            list(map(str, line)),
            env=os.environ | {name: str(value) for name, value in variables.items()},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )


def _run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _search_path():
    return os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
