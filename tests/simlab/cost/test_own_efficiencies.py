"""A cluster's file that brings its own kernel efficiencies and host time, as `python -m realrun
measure` writes one."""

import json

import pytest

import simlab as sl
from simlab.cost.roofline import kernel_s
from simlab.lowering.kernels import Matmul, Memory

REACHED = {
    "matmul": {"forward": 0.8, "input": 0.4, "weight": 0.2}, "tiles": [[64, 64, 1.0]], "kernel_s": 3e-6, "attention": {"flash": [0.4, 0.3]},
    "attention_tail": {"forward": 0.0, "backward": 0.0}, "memory": 0.5, "source": "made up",
}  # fmt: skip
LINK = {"kind": "loopback", "bandwidth_bytes_per_s": 1e9, "source": "made up"}


def file(tmp_path, **changes):
    """The path of a cluster's file with `REACHED` in it, and `changes` to that; `host_op_s` goes to
    the cluster."""
    facts = {
        "gpus_per_node": 2, "nics_per_node": 1, "intra": LINK, "inter": LINK, "pcie_bytes_per_s": 1e9, "nvme_bytes_per_s": 1e9,
        "host_memory_bytes": 8e9, "source": "made up",
    }  # fmt: skip
    if "host_op_s" in changes:
        facts["host_op_s"] = changes.pop("host_op_s")
    facts["gpu"] = {
        "peak_flops": {"fp32": 1e11}, "memory_bytes": 4e9, "memory_bandwidth_bytes_per_s": 1e10, "sms": 1, "source": "made up",
        "efficiency": REACHED | changes,
    }  # fmt: skip
    path = tmp_path / "file.json"
    path.write_text(json.dumps(facts))
    return path


def test_a_files_own_efficiencies_are_what_its_kernels_reach(tmp_path):
    gpu = sl.load_cluster(file(tmp_path)).gpu
    assert kernel_s(Memory("norm", 1e9), gpu, "fp32") == pytest.approx(1e9 / (1e10 * 0.5) + 3e-6)
    size, written_s = 6400, 4 * 6400**2 / (1e10 * 0.5)
    # a weight's is read, too
    for role, part, twice in (("forward", 0.8, 1), ("input", 0.4, 1), ("weight", 0.2, 2)):
        product_s = kernel_s(Matmul("x", size, size, size, role=role), gpu, "fp32")
        assert product_s == pytest.approx(2 * size**3 / (1e11 * part) + twice * written_s + 3e-6)


def test_a_files_host_time_is_what_a_layer_of_no_size_takes(tmp_path):
    model, plan = (
        sl.Model(layers=1, hidden=8, heads=2, vocab=16, positions=8, seq=8),
        sl.Plan(precision="fp32", dp=2),
    )
    slow, fast = (
        sl.predict(model, plan, sl.load_cluster(file(tmp_path, host_op_s=seconds))).step_s
        for seconds in (1e-3, 1e-9)
    )
    assert slow > 80 * 1e-3 and fast < 0.01  # 30 ops forward, 50 backward


def test_the_catalogue_keeps_its_efficiencies_and_host_time():
    for cluster in sl.clusters().values():
        of_the_catalogue = cluster.gpu.efficiency is None or isinstance(cluster.gpu.efficiency, str)
        assert of_the_catalogue and cluster.host_op_s is None and cluster.measured == {}


BROKEN = {
    "an unknown figure": ({"speed": 1}, "unknown speed; there is"),
    "roles left out": (
        {"matmul": {"forward": 1.0}},
        r"matmul = \{'forward': 1.0\}: give an object with forward, input, weight",
    ),
    "one number for two": (
        {"attention": {"flash": [1]}},
        r"attention of flash = \[1\]: give two numbers",
    ),
    "no number": ({"memory": "fast"}, "memory = 'fast': give a number above 0"),
    "no tiles": ({"tiles": []}, r"tiles = \[\]: give some of"),
    "a time before none": ({"kernel_s": -1}, "kernel_s = -1: give a finite number, 0 or more"),
    "no source": ({"source": ""}, "no source"),
    "a host back in time": (
        {"host_op_s": -1},
        "host_op_s = -1: give a finite number of seconds, 0 or more",
    ),
}


@pytest.mark.parametrize("wrong", BROKEN)
def test_figures_that_cannot_be_are_refused_with_file_and_value(tmp_path, wrong):
    change, message = BROKEN[wrong]
    with pytest.raises(sl.InputError, match=message) as caught:
        sl.load_cluster(file(tmp_path, **change))
    assert "file.json" in str(caught.value)
