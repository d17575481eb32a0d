"""A machine is examined: faults that are put there are named, and nothing is made up."""

import socket
from dataclasses import fields, replace

import pytest

from simlab.display import plain
from simlab.errors import InputError
from simlab.operations.doctor import Machine, differences, examined, findings
from simlab.operations.doctor.interfaces import chosen
from simlab.operations.doctor.machine import NOTEBOOK
from tests.support.simlab_commands import refused

GOOD = Machine(
    host="a", system="Linux", python="3.11.7", cores=16, memory_bytes=128e9, free_memory_bytes=64e9,
    shared_memory_bytes=64e9, open_files=65_536, gpus=("H100",) * 8, driver="550.1",
    versions={"torch": "2.13.0"} | dict.fromkeys(NOTEBOOK, "4"),
    interfaces=("eth0",), disk_bytes_per_s=2e9, disk_free_bytes=1e12, chinese_font=True,
    torch={"gloo": True, "nccl": "2.30.1", "cuda": "13.0", "tf32": False, "deterministic": False},
)  # fmt: skip
FAULTS = {
    "cores": ({"cores": 4}, "silent"),
    "memory": ({"free_memory_bytes": 1e8}, "loud"),
    "shared memory": ({"shared_memory_bytes": 64e6}, "loud"),
    "open files": ({"open_files": 256}, "loud"),
    "GPUs": ({"gpus": ("H100",) * 7}, "loud"),
    "torch": ({"torch": {"gloo": True, "nccl": None, "cuda": "13.0"}}, "loud"),
    "network": ({"environment": {"NCCL_SOCKET_IFNAME": "ib7"}}, "loud"),
    "port": ({"port_free": False}, "loud"),
    "disk": ({"disk_bytes_per_s": 5e7}, "silent"),
    "notebooks": ({"versions": {"torch": "2.13.0", "jupyterlab": "4"}}, "silent"),
    "fonts": ({"chinese_font": False}, "silent"),
}
UNLIKE = {
    "torch": ({"versions": {"torch": "2.12.0"}}, "loud"),
    "NCCL": ({"torch": {"nccl": "2.29.0", "cuda": "13.0", "tf32": False, "deterministic": False}}, "loud"),
    "NCCL_ and GLOO_ variables": ({"environment": {"NCCL_ALGO": "Ring"}}, "loud"),
    "TF32": ({"torch": {"nccl": "2.30.1", "cuda": "13.0", "tf32": True, "deterministic": False}}, "silent"),
    "GPU": ({"gpus": ("A100",) * 8}, "silent"),
    "cores": ({"cores": 8}, "silent"),
    "open files": ({"open_files": 1024}, "loud"),
    "Python": ({"python": "3.12.1"}, "loud"),
    "disks": ({"disk_bytes_per_s": 1e8}, "silent"),
}  # fmt: skip


def test_a_good_machine_is_fine():
    assert {one.level for one in findings(GOOD, ranks=8)} == {"fine"}


@pytest.mark.parametrize("subject", FAULTS)
def test_a_fault_is_named_with_what_to_do_and_nothing_else_is(subject):
    changes, level = FAULTS[subject]
    bad = [one for one in findings(replace(GOOD, **changes), ranks=8) if one.level != "fine"]
    assert [(one.subject, one.level) for one in bad] == [(subject, level)] and bad[0].to_do


def test_ranks_that_are_alike_are_fine():
    found = differences([GOOD] * 4, skews_s=[0, 0.001, 0, 0], bytes_per_s=[1e9, 0.9e9, 1e9, 1e9])
    assert {one.level for one in found} == {"fine"}


@pytest.mark.parametrize("subject", UNLIKE)
def test_the_rank_that_differs_is_named_and_nothing_else_is(subject):
    changes, level = UNLIKE[subject]
    machines = [GOOD, GOOD, replace(GOOD, **changes), GOOD]
    bad = [one for one in differences(machines) if one.level != "fine"]
    assert [(one.subject, one.level) for one in bad] == [(subject, level)]
    assert "rank 2" in bad[0].found and bad[0].to_do


def test_a_clock_that_is_ahead_and_a_link_that_is_slow_are_named():
    found = differences([GOOD] * 4, skews_s=[0, 0, 0, 7.5], bytes_per_s=[1e9, 1e8, 1e9, 1e9])
    bad = {one.subject: one.found for one in found if one.level != "fine"}
    assert set(bad) == {"clocks", "links"}
    assert "rank 3" in bad["clocks"] and "rank 1" in bad["links"]


def test_devices_that_a_launcher_gave_out_are_no_difference():
    machines = [replace(GOOD, environment={"CUDA_VISIBLE_DEVICES": str(at)}) for at in range(4)]
    assert {one.level for one in differences(machines)} == {"fine"}


def test_this_machine_is_examined_and_survives_the_way_between_ranks(tmp_path):
    machine = examined(tmp_path)
    assert machine.cores >= 1 and machine.disk_bytes_per_s > 0 and not list(tmp_path.iterdir())
    assert Machine.of(plain(machine)) == machine
    assert set(plain(machine)) == {one.name for one in fields(Machine)}


def test_a_port_that_is_taken_is_found(tmp_path):
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        one.listen()
        machine = examined(tmp_path, port=one.getsockname()[1], write=False)
    assert not machine.port_free and machine.disk_bytes_per_s is None


def test_variables_with_secrets_are_not_told(tmp_path, monkeypatch):
    monkeypatch.setenv("MY_TOKEN", "secret")
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    assert examined(tmp_path, write=False).environment.keys() & {"MY_TOKEN", "NCCL_DEBUG"} == {
        "NCCL_DEBUG"
    }


@pytest.mark.parametrize(
    ("arguments", "says"),
    [("--folder missing", "'missing': there is no such folder"), ("--port 0", "port 0: give 1"),
     ("--port 70000", "port 70000"), ("--ranks 0", "--ranks = 0")],
)  # fmt: skip
def test_bad_arguments_are_quoted(arguments, says, capsys):
    assert says in refused(capsys, ["doctor", *arguments.split()])
    with pytest.raises(InputError):
        examined("/missing")


NAMES = ("eth0", "eth1", "ib0", "ib10")
CHOSEN = [
    # as in NCCL's user guide, NCCL_SOCKET_IFNAME
    ("NCCL", "eth", ("eth0", "eth1"), ()),
    ("NCCL", "=eth0", ("eth0",), ()),
    ("NCCL", "=eth", (), ("eth",)),
    ("NCCL", "^eth", ("ib0", "ib10", "lo"), ()),
    ("NCCL", "^=ib1", ("eth0", "eth1", "ib0", "ib10", "lo"), ()),
    ("NCCL", "^eth,ib", ("lo",), ()),
    ("NCCL", "^eth,ib,lo", (), ()),
    ("NCCL", "ib1,eth1", ("eth1", "ib10"), ()),
    ("NCCL", "=ib0,eth7", ("ib0",), ("eth7",)),
    ("NCCL", "ib0:1234", ("ib0",), ()),
    ("GLOO", "eth0,ib0", ("eth0", "ib0"), ()),
    ("GLOO", "eth", (), ("eth",)),
    ("GLOO", "^eth0", (), ("^eth0",)),
    ("GLOO", "=eth0", (), ("=eth0",)),
    ("GLOO", "lo", ("lo",), ()),
]  # fmt: skip


@pytest.mark.parametrize(("library", "text", "left", "missing"), CHOSEN)
def test_names_of_interfaces_are_read_as_each_library_reads_them(library, text, left, missing):
    assert chosen(f"{library}_SOCKET_IFNAME", text, NAMES) == (left, missing)


@pytest.mark.parametrize(
    ("variable", "text", "level", "says"),
    [
        ("NCCL_SOCKET_IFNAME", "=eth", "loud", "names eth not here"),
        ("NCCL_SOCKET_IFNAME", "^eth,ib", "loud", "leaves the loopback only"),
        ("NCCL_SOCKET_IFNAME", "^eth,ib,lo", "loud", "leaves no interface"),
        ("NCCL_SOCKET_IFNAME", "eth0,ib7", "silent", "names ib7, not here: eth0 is used alone"),
        ("NCCL_SOCKET_IFNAME", "^docker,lo", "fine", ""),
        ("GLOO_SOCKET_IFNAME", "eth", "loud", "names eth, which takes whole names, not here"),
        ("GLOO_SOCKET_IFNAME", "eth0,ib7", "loud", "names ib7"),
        ("GLOO_SOCKET_IFNAME", "eth0", "fine", ""),
        ("GLOO_SOCKET_IFNAME", "lo", "loud", "leaves the loopback only"),
    ],
)
def test_what_a_variable_leaves_is_said(variable, text, level, says):
    machine = replace(GOOD, interfaces=NAMES, environment={variable: text})
    (found,) = [one for one in findings(machine, ranks=8) if one.subject == "network"]
    assert found.level == level and says in found.to_do


def test_a_rank_without_the_interface_is_named():
    there = replace(GOOD, interfaces=("ib0",), environment={"NCCL_SOCKET_IFNAME": "ib"})
    machines = [there, there, replace(there, interfaces=("eth0",)), there]
    bad = [one for one in differences(machines) if one.level != "fine"]
    assert [one.subject for one in bad] == ["NCCL_SOCKET_IFNAME"]
    assert "rank 2" in bad[0].found and "ib0" in bad[0].found
    assert {one.level for one in differences([there, replace(there, interfaces=("ib3",))])} == {
        "fine"
    }
    here = replace(GOOD, interfaces=("ib0",), environment={"GLOO_SOCKET_IFNAME": "lo"})
    assert {one.level for one in differences([here, here])} == {"fine"}
    bad = [one for one in differences([here, replace(here, host="other")]) if one.level != "fine"]
    assert [one.subject for one in bad] == ["GLOO_SOCKET_IFNAME"]
