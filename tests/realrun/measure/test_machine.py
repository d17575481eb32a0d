"""`python -m realrun measure`: what is timed is what its name says, the fit finds what samples were
made from, the file is a cluster."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from realrun_schemas import schema

import simlab as sl
from realrun.cli import measure as measure_command
from realrun.cli.main import main
from realrun.cli.main import parser as realrun_parser
from realrun.measure.links import COLLECTIVES
from realrun.measure.machine import kernels
from realrun.measure.machine.cluster import machine_cluster
from realrun.measure.machine.comparison import comparison, kernel_of, predicted_s
from realrun.measure.machine.fabric import fitted_fabric
from realrun.measure.machine.gpu import fitted_gpu
from realrun.measure.machine.kernels import Grid, dispatched_ops
from realrun.measure.machine.regression import nonnegative_fit
from realrun.measure.machine.sample import Sample
from realrun.measure.stopwatch import Stopwatch, lower_quartile
from simlab.cost.roofline import kernel_s
from simlab.cost.stage_times import StageCost
from simlab.spec.hardware import Efficiency
from tests.support.simlab_commands import answer

CPU = torch.device("cpu")
SMALL = {
    True: Grid(((32, 64), (64, 64)), ((1, 2, 32, 16), (1, 2, 64, 16)), (2**18, 2**19), ()),
    False: Grid(((48, 64),), ((1, 2, 48, 16),), (2**20,), ((1, 16, 32, 2),)),
}
ABOUT = {"device": "a made-up core", "ranks": 4, "precision": "fp32", "threads": 1, "torch": "2", "backend": "gloo", "sms": 1,
         "measured_at": "today"}  # fmt: skip
NODE = {
    "pcie_bytes_per_s": 5e9,
    "nvme_bytes_per_s": 1e9,
    "memory_bytes": 4e9,
    "host_memory_bytes": 16e9,
}


# what is timed
# ----------------------------------------------------------------------------------------------


def test_each_product_has_the_shape_that_its_sizes_say_and_each_role_its_layout():
    kinds = [
        (kind, variant, sizes, run())
        for kind, variant, sizes, run in kernels.matmuls(SMALL[True], CPU, torch.float32)
    ]
    roles = ("forward", "input", "weight")
    assert [work[:2] for work in kinds[:3]] == [("matmul", role) for role in roles]
    for _, _, sizes, result in kinds:
        assert tuple(result.shape) == (sizes["m"], sizes["n"])
    for forward, grad_input, grad_weight in zip(kinds[::3], kinds[1::3], kinds[2::3]):
        (m, n, k), flops = (
            (forward[2][name] for name in "mnk"),
            {i["m"] * i["n"] * i["k"] for _, _, i, _ in (forward, grad_input, grad_weight)},
        )
        assert flops == {m * n * k}  # all three compute as much
        assert (grad_input[2], grad_weight[2]) == (
            {"m": m, "n": k, "k": n},
            {"m": n, "n": k, "k": m},
        )


def test_the_memory_kernels_count_what_they_read_and_what_they_write():
    size = SMALL[True].memory_bytes[0]
    counted = {
        variant: sizes["size_bytes"]
        for _, variant, sizes, _ in list(kernels.memory_kernels(SMALL[True], CPU, torch.float32))[
            :5
        ]
    }
    one = 2 * size  # a tensor read, another one written
    assert counted == {
        "copy": one,
        "add": size + one,
        "norm": one,
        "gelu": one,
        "softmax": one,
    }


def test_ops_are_counted_as_the_dispatcher_sees_them():
    x = torch.ones(2, 2, requires_grad=True)
    # two detaches, a product, a sum
    assert dispatched_ops(lambda: x.detach() @ x.detach() + 1) == 4
    assert dispatched_ops(lambda: torch.autograd.grad(x.mul(3).sum(), x)) >= 4  # the backward's too


def test_a_core_that_another_process_has_is_not_the_works_time():
    """The thread's own clock stands still in a sleep, as it does when somebody else computes; and
    that is said."""
    import time

    watch = Stopwatch(CPU, 0.05)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        assert watch.seconds(lambda: time.sleep(0.01)) < 0.005
    finally:
        torch.set_num_threads(threads)
    assert watch.waited > 0.5


@pytest.mark.parametrize("samples, quartile", [([3.0], 3.0), ([9, 1], 1), ([5, 4, 3, 2, 1], 2)])
def test_the_lower_quartile(samples, quartile):
    assert lower_quartile(samples) == quartile


def test_every_collective_and_the_message_is_timed_between_processes(pools):
    sizes = [1024, 65536]
    found = pools(2).links(sizes, 0.01)
    assert [(one["kind"], one["size_bytes"]) for one in found] == [
        (kind, size) for kind in ("p2p", *COLLECTIVES) for size in sizes
    ]
    assert all(one["seconds"] > 0 for one in found)


# the fit
# ----------------------------------------------------------------------------------------------------


def test_a_nonnegative_fit_finds_exact_coefficients_and_no_negative_one():
    rows = [[1, size, size**2] for size in (1, 2, 5, 10, 30)]
    assert nonnegative_fit(rows, [3 + 0.5 * row[1] for row in rows]) == pytest.approx(
        [3, 0.5, 0], abs=1e-3
    )
    assert all(value >= 0 for value in nonnegative_fit(rows, [10 / row[1] for row in rows]))


def test_one_odd_sample_of_ten_changes_little_in_the_fit():
    rows = [[1, size] for size in range(1, 11)]
    seconds = [2 + 3 * row[1] for row in rows]
    seconds[4] *= 20
    assert nonnegative_fit(rows, seconds) == pytest.approx([2, 3], rel=0.05)


def made_up():
    """A cluster with figures of its own."""
    reached = Efficiency(
        matmul={"forward": 0.8, "input": 0.7, "weight": 0.6}, tiles=((64, 64, 1.0),), kernel_s=3e-6, attention={"flash": [0.4, 0.3]},
        attention_tail={"forward": 0.0, "backward": 0.0}, memory=0.5, source="made up",
    )  # fmt: skip
    gpu = sl.Gpu(
        name="x",
        peak_flops={"fp32": 1e11},
        memory_bytes=4e9,
        memory_bandwidth_bytes_per_s=1e10,
        sms=1,
        efficiency=reached,
        source="x",
    )
    intra = sl.Fabric(
        kind="loopback", bandwidth_bytes_per_s=3e9, efficiency=0.5, message_efficiency=1.0, base_s=4e-5, hop_s=7e-5, message_s=2e-5,
        copy_bytes_per_s=6e9, protocols=("Simple",), source="made up",
    )  # fmt: skip
    return replace(sl.load_cluster("laptop"), gpu=gpu, intra=intra, host_op_s=2e-5)


def samples_of(cluster):
    """What a machine that is exactly `cluster` would be measured as, at the real grid's sizes and
    at those kept apart."""
    samples = [
        Sample("launch", "", {}, 3e-6, True),
        Sample("peak", "fp32", {"m": 1000, "n": 1000, "k": 500}, 1e9 / 1e11, True),
    ]
    samples += [Sample("host", "", {"ops": ops}, 2e-5 * ops, ops == 70) for ops in (70, 210)]
    for fitted, grid in kernels.GRIDS["cpu"].items():
        products = [
            {"m": t, "n": n, "k": k} for t, h in grid.products for k, n in ((h, 3 * h), (4 * h, h))
        ]
        sizes = [
            ("matmul", role, size) for role in ("forward", "input", "weight") for size in products
        ]
        shapes = [
            {"batch": b, "heads": h, "queries": s, "keys": s, "head_size": d}
            for b, h, s, d in grid.attentions
        ]
        sizes += [("attention", way, shape) for way in ("forward", "backward") for shape in shapes]
        sizes += [("memory", "norm", {"size_bytes": size}) for size in grid.memory_bytes]
        for work in sizes:
            seconds = kernel_s(kernel_of(Sample(*work, 0, True), "fp32"), cluster.gpu, "fp32")
            samples.append(Sample(*work, seconds, fitted))
        samples.append(Sample("memory", "copy", {"size_bytes": 2**24}, 2**24 / 1e10, fitted))
    for number, size in enumerate(measure_command.SIZES[False]):
        for kind in ("p2p", *COLLECTIVES):
            sample = Sample(kind, "", {"size_bytes": size, "ranks": 4}, 0.0, number % 2 == 0)
            samples.append(sample._replace(seconds=predicted_s(sample, cluster, "fp32")))
    return samples


def test_the_fit_finds_the_machine_that_the_samples_were_made_from():
    samples = [
        sample for sample in samples_of(made_up()) if sample.variant != "copy" or sample.fitted
    ]
    truth, facts = made_up(), machine_cluster(samples, NODE, ABOUT)
    reached = facts["gpu"]["efficiency"]
    assert facts["gpu"]["peak_flops"] == pytest.approx({"fp32": 1e11})
    assert facts["gpu"]["memory_bandwidth_bytes_per_s"] == pytest.approx(1e10) and facts[
        "host_op_s"
    ] == pytest.approx(2e-5)
    assert reached["memory"] == pytest.approx(0.5, rel=1e-6) and reached["kernel_s"] == 3e-6
    assert reached["matmul"] == pytest.approx(truth.gpu.efficiency.matmul, rel=1e-6)
    assert reached["attention"]["flash"] == pytest.approx([0.4, 0.3], rel=1e-3)
    intra = facts["intra"]
    assert intra["bandwidth_bytes_per_s"] * intra["efficiency"] == pytest.approx(1.5e9, rel=0.02)
    assert intra["bandwidth_bytes_per_s"] * intra["message_efficiency"] == pytest.approx(
        3e9, rel=0.02
    )
    for name in ("base_s", "hop_s", "message_s", "copy_bytes_per_s"):
        assert intra[name] == pytest.approx(getattr(truth.intra, name), rel=0.05)


def test_where_larger_messages_take_less_time_they_are_as_fast_as_the_ring():
    """So it comes out where noise is larger than what bytes take; a bandwidth without end would be
    none of this machine."""
    samples = [
        sample for sample in samples_of(made_up()) if "ranks" in sample.sizes and sample.fitted
    ]
    flat = [
        sample._replace(seconds=1e-3 / (1 + sample.sizes["size_bytes"] / 2**20))
        if sample.kind in ("p2p", "all_to_all")
        else sample
        for sample in samples
    ]
    intra = fitted_fabric(flat, ABOUT, "measured")
    assert (
        intra["efficiency"] == intra["message_efficiency"] == 1
        and intra["bandwidth_bytes_per_s"] < 1e10
    )


def test_a_machine_that_follows_the_model_is_predicted_at_sizes_that_no_fit_has_seen(tmp_path):
    """Reduce-scatter too: it is left out of gloo's fit, but here it is a ring's, as the others
    are."""
    samples = [
        sample for sample in samples_of(made_up()) if sample.variant != "copy" or sample.fitted
    ]
    path = tmp_path / "machine.json"
    path.write_text(json.dumps(machine_cluster(samples, NODE, ABOUT)))
    kinds = comparison(samples, sl.load_cluster(path), "fp32")
    assert set(kinds) >= {
        "matmul weight",
        "attention backward",
        "memory norm",
        "host",
        "p2p",
        *COLLECTIVES,
    }
    assert max(its["median_error"] for its in kinds.values()) < 0.02


def test_a_gpus_attention_has_a_tail_and_its_tiles_are_the_catalogues():
    truth = sl.load_cluster("dgx-a100").gpu
    about = ABOUT | {"device": "NVIDIA A100-SXM4-80GB", "sms": truth.sms, "precision": "bf16"}
    samples = [
        Sample("launch", "", {}, 2e-6, True),
        Sample("peak", "bf16", {"m": 8192, "n": 8192, "k": 8192}, 2 * 8192**3 / 312e12, True),
    ]
    samples.append(
        Sample(
            "memory",
            "copy",
            {"size_bytes": 2**30},
            2**30 / truth.memory_bandwidth_bytes_per_s,
            True,
        )
    )
    grid = kernels.GRIDS["cuda"][True]
    sizes = [
        ("memory", "add", {"size_bytes": size}) for size in grid.memory_bytes for _ in range(3)
    ]
    for b, h, s, d in grid.attentions:
        sizes += [
            ("attention", way, {"batch": b, "heads": h, "queries": s, "keys": s, "head_size": d})
            for way in ("forward", "backward")
        ]
    for work in sizes:
        seconds = kernel_s(kernel_of(Sample(*work, 0, True), "bf16"), truth, "bf16")
        samples.append(Sample(*work, seconds, True))
    gpu = fitted_gpu(samples, 80e9, about, "measured")
    assert gpu.efficiency.tiles == [[256, 128, 1.0], [128, 128, 0.95], [128, 64, 0.8]]
    assert gpu.efficiency.attention["flash"] == pytest.approx([0.65, 0.45], rel=0.02)
    assert gpu.efficiency.attention_tail == pytest.approx(
        {"forward": 1.3, "backward": 0.5}, rel=0.1
    )


@pytest.mark.parametrize("variant, precision, fresh", [
    ("weight", "bf16", True), ("weight", "fp32", False), ("forward", "bf16", False), ("input", "bf16", False),
])  # fmt: skip
def test_a_weight_gradient_of_16_bits_is_added_to_nothing_as_it_is_timed(variant, precision, fresh):
    sample = Sample("matmul", variant, {"m": 8, "n": 8, "k": 8}, 1.0, True)
    assert kernel_of(sample, precision).fresh == fresh


def test_a_layer_is_timed_without_sums_of_gradients_and_predicted_so():
    """`torch.autograd.grad` adds to nothing: the products of a backward write 2 bytes and not 8."""
    cluster = sl.load_cluster("dgx-h100")
    sizes = {"batch": 1, "seq": 1024, "hidden": 4096, "heads": 32}
    backward_s = predicted_s(Sample("layer", "backward", sizes, 1.0, False), cluster, "bf16")
    model = sl.Model(layers=1, hidden=4096, heads=32, vocab=256, positions=1024, seq=1024)
    added = StageCost(model, sl.Plan(dropout=False), cluster, slower=1.0).layer.backward.total
    moved = 0.8 * cluster.gpu.memory_bandwidth_bytes_per_s
    assert added - backward_s == pytest.approx((8 - 2) * 12 * 4096**2 / moved, rel=1e-6)


@pytest.mark.parametrize("role", ["forward", "input", "weight"])
def test_no_product_computes_faster_than_the_peak_whatever_role_is_the_fastest(role):
    def faster(sample):
        same = (sample.kind, sample.variant) == ("matmul", role)
        return sample._replace(seconds=sample.seconds / 4) if same else sample

    samples = [faster(sample) for sample in samples_of(made_up()) if sample.fitted]
    gpu = fitted_gpu(samples, 4e9, ABOUT, "measured")
    assert gpu.peak_flops["fp32"] > 2e11 and max(gpu.efficiency.matmul.values()) <= 1


# the command
# ------------------------------------------------------------------------------------------------


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(kernels, "GRIDS", {"cpu": SMALL})
    monkeypatch.setattr(measure_command, "BUDGET_S", {True: 0.005})
    monkeypatch.setattr(measure_command, "SIZES", {True: [1024, 4096, 16384, 65536]})


def test_what_measure_writes_is_a_cluster_on_which_gpt2_is_simulated(small, tmp_path, capsys):
    path = str(tmp_path / "here.json")
    threads = torch.get_num_threads()
    line = "measure --quick --compare --json --device cpu --ranks 2 --out"
    assert main([*line.split(), path]) == 0
    out, err = capsys.readouterr()
    told = json.loads(out)
    schema("measure").validate(told)
    assert (
        told["ok"] and told["file"] == path and len(out.splitlines()) == 1 and "Warning" not in err
    )
    assert torch.get_num_threads() == threads
    about = told["measured"]
    assert (about["torch"], about["threads"], about["ranks"], about["backend"]) == (
        torch.__version__,
        1,
        2,
        "gloo",
    ) and about["device"]
    kinds = told["comparison"]
    layers = {"layer forward", "layer backward", "host", "p2p", *COLLECTIVES}
    assert set(kinds) >= layers | {
        "matmul forward",
        "matmul input",
        "matmul weight",
        "attention forward",
        "memory softmax",
    }
    for its in kinds.values():
        assert its["median_error"] >= 0 and all(
            row["error"] == row["predicted_s"] / row["measured_s"] - 1 for row in its["rows"]
        )
    cluster = sl.load_cluster(path, nodes=2)
    assert (cluster.gpus_per_node, cluster.gpus, cluster.gpu.name) == (2, 4, about["device"])
    kept = [sample for sample in cluster.measured["samples"] if not sample["fitted"]]
    assert {f"{sample['kind']} {sample['variant']}".rstrip() for sample in kept} == set(
        kinds
    ) and all(sample["seconds"] > 0 for sample in cluster.measured["samples"])
    assert "not measured" in cluster.inter.source and about["device"] in cluster.intra.source

    simulate = ["simulate", "--model", "gpt2", "--cluster", path]
    step = answer(capsys, [*simulate, "--precision", "fp32", "--microbatches", "2"])
    assert step["gpus"] == 2 and step["plan"]["dp"] == 2 and step["step_s"] > 0
    flops = 6 * 124e6 * 1024 * 2  # a rank's two microbatches, at least
    assert step["step_s"] > flops / cluster.gpu.peak_flops["fp32"]
    answer(capsys, [*simulate, "--pp", "4", "--microbatches", "4"])  # two nodes


def test_one_rank_has_no_links_and_the_report_says_so(small, tmp_path, capsys):
    path = tmp_path / "alone.json"
    assert main(["measure", "--quick", "--device", "cpu", "--ranks", "1", "--out", str(path)]) == 0
    out = capsys.readouterr().out
    assert "links         not measured: one rank" in out and "GFLOP/s" in out and str(path) in out
    assert "not measured" in sl.load_cluster(path).intra.source


def test_the_command_line_knows_measure(command, tmp_path):
    status, out, err = command("measure", "--help").end()
    assert (status, err) == (
        0,
        "",
    ) and "exit status: 0 done, 1 something could not be measured or written, 2 bad" in " ".join(
        out.split()
    )


MISTAKES = {
    "no ranks": (["--ranks", "0"], 2, "error: --ranks 0: give at least 1"),
    "no threads": (["--threads", "0"], 2, "error: --threads 0: give at least 1"),
    "a name that is no file's": (
        ["--out", "laptop"],
        2,
        "error: --out 'laptop': give a name that ends in .json",
    ),
    "no GPU": (
        ["--device", "cuda", "--ranks", "99"],
        2,
        "error: --device cuda: 99 ranks need 99 CUDA devices",
    ),
    "a folder that is not there": (
        ["--device", "cpu", "--out", "/none/x.json"],
        1,
        "failed: cannot write '/none/x.json': No such file",
    ),
    "a folder for a file": (["--device", "cpu", "--out", "FOLDER.json"], 1, "failed: cannot write"),
}


@pytest.mark.parametrize("content", ['{"name": "mine"}', "[1]", "no JSON", '{"measured": 3}'])
def test_a_file_that_measure_did_not_write_is_refused_and_stays(tmp_path, capsys, content):
    path = tmp_path / "package.json"
    path.write_text(content)
    command = ["--quick", "--device", "cpu", "--ranks", "1", "--out", str(path)]
    assert main(["measure", *command]) == 2
    assert capsys.readouterr().err == (
        f"error: {str(path)!r} is in the way, and `measure` did not write it: move it, or name another --out\n"
    )
    assert path.read_text() == content


def test_the_file_of_an_earlier_measurement_is_replaced_and_a_stray_part_stays(
    small, tmp_path, capsys
):
    path, stray = tmp_path / "here.json", tmp_path / "here.json.part"
    stray.write_text("mine")
    command = ["--quick", "--device", "cpu", "--ranks", "1", "--out", str(path)]
    assert main(["measure", *command]) == 0
    first = path.read_text()
    assert main(["measure", *command]) == 0
    assert path.read_text() != first and stray.read_text() == "mine"
    assert sorted(tmp_path.iterdir()) == [path, stray]


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_costs_one_line_before_anything_is_measured(
    mistake, tmp_path, capsys, monkeypatch
):
    arguments, status, message = MISTAKES[mistake]
    monkeypatch.chdir(tmp_path)
    Path("FOLDER.json").mkdir()
    assert main(["measure", *arguments, "--json"]) == status
    out, err = capsys.readouterr()
    assert err.startswith(message) and len(err.splitlines()) == 1
    assert json.loads(out)["ok"] is False


def test_under_torchrun_it_says_that_it_starts_its_own_processes(monkeypatch, capsys):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["measure"]) == 2
    assert "run it without torchrun" in capsys.readouterr().err


# CUDA, where there is a device
# --------------------------------------------------------------------------------


def devices():
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


@pytest.mark.skipif(
    devices() < 1, reason="no CUDA device: torch.cuda.is_available() is False or counts none"
)
def test_one_gpu_is_measured_and_a_block_predicted(tmp_path):
    path = str(tmp_path / "gpu.json")
    result = measure_command.run(
        realrun_parser().parse_args(
            ["measure", "--quick", "--compare", "--ranks", "1", "--device", "cuda", "--out", path]
        )
    )
    gpu = sl.load_cluster(path).gpu
    assert result["measured"]["backend"] == "nccl" and {"bf16", "fp16", "tf32", "fp32"} <= set(
        gpu.peak_flops
    )
    assert gpu.peak_flops["bf16"] > gpu.peak_flops["fp32"]
    assert all(
        0.01 < part <= 1.5
        for part in (
            *gpu.efficiency.matmul.values(),
            *gpu.efficiency.attention["flash"],
            gpu.efficiency.memory,
        )
    )
    errors = {kind: its["median_error"] for kind, its in result["comparison"].items()}
    assert max(errors["matmul forward"], errors["matmul input"], errors["matmul weight"]) < 0.3, (
        errors
    )


@pytest.mark.skipif(devices() < 2, reason="needs 2 CUDA devices: NCCL has one rank per device")
def test_collectives_between_gpus_are_measured_over_nccl(tmp_path):
    from realrun import Pool

    with Pool(2, device="cuda") as pool:
        found = pool.links([1024, 2**20], 0.01)
    assert {one["kind"] for one in found} == {"p2p", *COLLECTIVES} and all(
        one["seconds"] > 0 for one in found
    )
