"""A cluster of one's own: what its file may leave out, what is refused with the unit that is meant, and the
command that writes one from a few facts and checks one beside the catalogue."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

import simlab as sl
from simlab.cli.main import main
from simlab.cost.own_cluster import doubtful, nearest_cluster
from simlab.cost.roofline import assumptions
from simlab.spec.cluster import clusters, gpus
from tests.support.simlab_commands import answer, refused

GPT = sl.load_model("gpt2")
NEW = "cluster new own.json --gpu a100-pcie-80gb --gpus-per-node 4 --nics-per-node 1 --nic-gbit 100"


@pytest.fixture
def own(tmp_path, monkeypatch, capsys):
    """The facts of a file that the command wrote, and a function that writes it with changes."""
    monkeypatch.chdir(tmp_path)
    assert main(NEW.split()) == 0
    capsys.readouterr()
    facts = json.loads((tmp_path / "own.json").read_text(encoding="utf-8"))

    def written(**changes):
        kept = {name: value for name, value in {**facts, **changes}.items() if value is not None}
        (tmp_path / "own.json").write_text(json.dumps(kept), encoding="utf-8")
        return "own.json"

    return facts, written


def test_a_new_file_has_what_was_given_and_says_where_the_rest_is_from(own):
    facts, written = own
    cluster = sl.load_cluster(written())
    base = sl.load_cluster("a100-pcie")
    assert cluster == replace(
        base,
        name="own",
        gpus_per_node=4,
        nics_per_node=1,
        intra=replace(base.intra, source=cluster.intra.source),
        inter=replace(base.inter, bandwidth_bytes_per_s=12.5e9, source=cluster.inter.source),
        source=cluster.source,
    )
    assert all(
        "as a100-pcie, to be corrected" in facts[part]["source"] for part in ("intra", "inter")
    )
    assert sl.predict(GPT, sl.Plan(dp=4), cluster).step_s > 0


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"host_memory_bytes": 512}, "host_memory_bytes = 512: no machine has that; give bytes (80 GB are 80e9)"),
        ({"pcie_bytes_per_s": 64}, "pcie_bytes_per_s = 64: no machine has that; give bytes per second"),
        ({"inter": {"bandwidth_bytes_per_s": 1e18}}, "inter: bandwidth_bytes_per_s = 1e+18: no machine has that; give bytes per"),
        ({"intra": {"hop_s": 4.3}}, "intra: hop_s = 4.3: no machine has that; give seconds (20 µs are 20e-6)"),
        ({"gpu": {"memory_bytes": 80}}, "gpu: memory_bytes = 80: no machine has that; give bytes (80 GB are 80e9)"),
        ({"gpu": {"peak_flops": {"bf16": 312}}}, "gpu: peak_flops of bf16 = 312: no machine has that; give operations per second"),
    ],
)  # fmt: skip
def test_a_figure_of_another_unit_is_refused_with_the_one_that_is_meant(own, capsys, changes, said):
    facts, written = own
    gpu = sl.load_cluster("a100-pcie").to_dict()["gpu"]
    both = {"gpu": gpu | changes.pop("gpu", {})} if "gpu" in changes else {}
    for name, value in changes.items():
        both[name] = facts[name] | value if isinstance(value, dict) else value
    assert said in refused(capsys, ["cluster", "check", written(**both)])


@pytest.mark.parametrize(
    ("plan", "missing"),
    [
        ({"offload": "optimizer"}, "pcie_bytes_per_s"),
        ({"offload": "optimizer", "offload_to": "nvme"}, "nvme_bytes_per_s"),
    ],
)
def test_what_no_plan_uses_may_be_left_out_and_a_plan_that_does_asks_for_it(own, plan, missing):
    _, written = own
    names = ("pcie_bytes_per_s", "nvme_bytes_per_s", "host_memory_bytes")
    bare = sl.load_cluster(written(**dict.fromkeys(names)))
    whole = sl.load_cluster(written())
    plain = sl.Plan(dp=4, zero=1)
    assert sl.predict(GPT, plain, bare).step_s == sl.predict(GPT, plain, whole).step_s
    asked = [name for name in names if name == missing]
    lacking = sl.load_cluster(written(**dict.fromkeys(asked)))
    with pytest.raises(sl.InputError, match=f"own: {missing} is not known, and this plan uses it"):
        sl.predict(GPT, sl.Plan(dp=4, zero=1, **plan), lacking)


def test_a_check_names_what_is_far_from_the_nearest_of_the_catalogue(own, capsys):
    facts, written = own
    told = answer(capsys, ["cluster", "check", written()])
    assert {*told.pop("copied")} == {"", "intra", "inter"}
    assert told == {"cluster": "own", "nearest": "a100-pcie", "nodes": None, "far": [], "assumptions": []}  # fmt: skip
    slow = facts["inter"] | {"bandwidth_bytes_per_s": 100e6}
    assert main(["cluster", "check", written(inter=slow)]) == 1
    said = capsys.readouterr().out
    far = "doubtful beside a100-pcie: inter: bandwidth_bytes_per_s = 1e+08 is 0.004 times 2.5e+10"
    assert far in " ".join(said.split())
    assert main(["cluster", "new", "x.json", "--gpu", "a100"]) == 2
    assert (
        "did you mean 'a100-sxm-40gb', 'a100-sxm-80gb' or 'a100-pcie-80gb'?"
        in capsys.readouterr().err
    )


def test_a_check_says_what_is_left_out_and_taken_as_ideal(own, capsys):
    facts, written = own
    names = {
        "intra": ("efficiency", "base_s", "hop_s", "islands"),
        "inter": ("efficiency", "base_s", "hop_s", "oversubscription"),
    }
    bare = {
        level: {name: value for name, value in facts[level].items() if name not in left_out}
        for level, left_out in names.items()
    }
    *said, offload = answer(capsys, ["cluster", "check", written(**bare, nvme_bytes_per_s=None)])[
        "assumptions"
    ]
    asked = [f"{level}: {name} is left out, so " for level in names for name in names[level]]
    assert len(said) == len(asked)
    for line, begin in zip(said, asked):
        assert line.startswith(begin) and ". To measure it: " in line
    assert "so 1, all of the bandwidth; a100-pcie has 0.71. To measure it: busbw" in said[0]
    assert offload.startswith("nvme_bytes_per_s: not known")
    assert main(["cluster", "check", written()]) == 0
    assert "left out" not in capsys.readouterr().out
    border = "island_bandwidth_bytes_per_s"
    bare = {name: its for name, its in facts["intra"].items() if name != border}
    assert main(["cluster", "check", written(intra=bare)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f"{border} is left out, so as much between islands as within" in said


def test_figures_that_are_the_nearest_ones_are_named_until_they_are_corrected(own, capsys):
    facts, written = own
    base = sl.load_cluster("a100-pcie")
    assert main(["cluster", "check", written()]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "the same as a100-pcie's, as a copy is; correct what your cluster has otherwise:" in said
    assert f"inter: hop_s = {base.inter.hop_s:g}" in said or f"hop_s = {base.inter.hop_s:g}" in said
    assert "bandwidth_bytes_per_s = 1.25e+10" not in said, "that of 100 Gb/s is not the catalogue's"

    def copied(**changes):
        main(["cluster", "check", written(**changes), "--json"])
        return json.loads(capsys.readouterr().out)["copied"]

    intra = {**facts["intra"], "base_s": 1.5 * facts["intra"]["base_s"]}
    before, after = copied(), copied(intra=intra)
    (changed,) = {*before["intra"]} - {*after["intra"]}
    assert changed == f"base_s = {facts['intra']['base_s']:g}" and before["inter"] == after["inter"]
    given = "--gpu a100-pcie-80gb --nic-gbit 200 --gpus-per-node 8 --json"
    assert main(["cluster", "new", "given.json", *given.split()]) == 0
    told = json.loads(capsys.readouterr().out)["copied"]
    assert not [it for it in told["inter"] if it.startswith("bandwidth_bytes_per_s")]
    assert not [it for it in told.get("", ()) if it.startswith("gpus_per_node")]


def test_the_nodes_of_a_new_file_are_those_that_were_given(own, capsys):
    assert main(["cluster", "new", "six.json", "--gpu", "a100-pcie-80gb", "--nodes", "6"]) == 0
    assert sl.load_cluster("six.json").nodes == 6
    assert "nodes: 6, with 48 GPUs" in capsys.readouterr().out
    assert main(["cluster", "check", "own.json"]) == 0
    assert "nodes: not said" in capsys.readouterr().out
    assert "a cluster's file ends in .json" in refused(
        capsys, ["cluster", "new", "seven", "--gpu", "a100-pcie-80gb"]
    )


def of_own(name, **changes):
    """A cluster of the catalogue whose GPU has a name of its own."""
    its = sl.load_cluster(name)
    gpu = {"name": "mine"} | changes.pop("gpu", {})
    return replace(its, name="own", gpu=replace(its.gpu, **gpu), **changes)


@pytest.mark.parametrize("name", clusters())
def test_a_sparse_peak_and_both_directions_of_a_link_are_doubted_and_a_right_figure_is_not(name):
    right = of_own(name)
    assert not [*doubtful(right, nearest_cluster(right))]
    peaks = right.gpu.peak_flops
    twice = {kind: flops * (1 if kind == "fp32" else 2) for kind, flops in peaks.items()}
    sparse = of_own(name, gpu={"peak_flops": twice})
    said = [*doubtful(sparse, nearest_cluster(sparse))]
    has_sparsity = bool({"tf32", "fp8"} & {*peaks})
    assert any("is this the sparse figure?" in one for one in said) == has_sparsity
    rest = [one for one in said if "sparse" not in one]
    assert not rest or not has_sparsity
    near = nearest_cluster(right)
    both = replace(right, pcie_bytes_per_s=2 * right.pcie_bytes_per_s)
    added = [one for one in doubtful(both, near) if "are both added? Give one" in one]
    assert len(added) == bool(right.pcie_bytes_per_s)


def test_a_sparse_peak_of_a_smaller_gpu_is_told_beside_its_peak_in_fp32():
    pcie = {"sms": 114, "memory_bandwidth_bytes_per_s": 2e12, "memory_bytes": 80e9}
    for bf16, sparse in ((756e12, False), (1513e12, True)):
        own = of_own("dgx-h100", gpu=pcie | {"peak_flops": {"fp32": 51.2e12, "bf16": bf16}})
        said = [*doubtful(own, nearest_cluster(own))]
        assert (
            any("is, for its size, twice the dense peak of h100" in one for one in said) == sparse
        )


def test_bits_for_bytes_are_doubted_and_one_ring_for_several_is_not(own):
    amd = of_own("mi300x")
    one_ring = replace(amd.intra, bandwidth_bytes_per_s=7 * 64e9, rings={})
    assert not [*doubtful(replace(amd, intra=one_ring), sl.load_cluster("mi300x"))]
    bits = replace(amd.inter, bandwidth_bytes_per_s=400e9)
    (said,) = doubtful(replace(amd, inter=bits), sl.load_cluster("mi300x"))
    assert said == (
        "inter: bandwidth_bytes_per_s = 4e+11 is 8 times 5e+10: are these bits per second? Give bytes"
    )


ASSUMED = {
    "h200-nvl": "hopper", "h20": "hopper", "aws-g6e": "ampere", "rtx-4090": "ampere", "rtx-5090": "ampere", "aws-g5": "ampere",
    "aws-g4dn": "volta", "dgx-spark": "ampere", "mi300x": "cdna-3", "mi355x": "cdna-3",
}  # fmt: skip


@pytest.mark.parametrize("name", clusters())
def test_every_cluster_of_the_catalogue_is_predicted_and_says_which_kernels_were_not_measured(name):
    cluster = sl.load_cluster(name)
    precision = next(p for p in ("bf16", "fp16", "fp32") if p in cluster.gpu.peak_flops)
    plan = sl.Plan(dp=cluster.gpus, precision=precision)
    assert sl.predict(GPT, plan, cluster).step_s > 0
    said = assumptions(cluster)
    assert bool(said) == (name in ASSUMED)
    if said:
        taken = f"no kernels of {cluster.gpu.name} were measured: .* those of {ASSUMED[name]} reach"
        assert len(said) == 1 and re.match(taken, said[0]) and len(said[0]) < 160


def test_a_check_says_in_the_words_of_its_source_why_a_gpu_has_the_fractions_of_another(capsys):
    told = answer(capsys, ["cluster", "check", "aws-g6e"])["assumptions"]
    assert told[1].startswith("l40s is, in the words of its source: 142 SMs x 1,024 operations")


@pytest.mark.parametrize("spelled, name", [
    ("L40S", "l40s"), ("NVIDIA GeForce RTX 4090", "rtx-4090"), ("NVIDIA A100 80GB PCIe", "a100-pcie-80gb"),
    ("NVIDIA A100-SXM4-40GB", "a100-sxm-40gb"), ("Tesla V100-SXM2-32GB", "v100-sxm2-32gb"), ("AMD Instinct MI300X", "mi300x"),
    ("NVIDIA H100 80GB HBM3", "h100-sxm-80gb"), ("NVIDIA A100-SXM4-80GB", "a100-sxm-80gb"), ("NVIDIA H200", "h200-sxm"),
    ("NVIDIA B200", "b200-sxm"), ("NVIDIA H200 NVL", "h200-nvl"), ("NVIDIA H100 96GB HBM3", "h100-sxm-96gb-500w"),
    *((name, name) for name in gpus()),
])  # fmt: skip
def test_a_gpu_may_be_spelled_as_its_data_sheet_or_its_driver_does(tmp_path, spelled, name):
    file = tmp_path / "own.json"
    assert main(["cluster", "new", str(file), "--gpu", spelled]) == 0
    assert json.loads(file.read_text())["gpu"] == name


@pytest.mark.parametrize(
    "spelled",
    [
        "NVIDIA A100-PCIE-40GB",
        "Tesla V100-SXM2-16GB",
        "NVIDIA H100 PCIe",
        "NVIDIA A100",
        "NVIDIA L4",
    ],
)
def test_a_gpu_of_another_memory_or_of_an_unsaid_one_is_not_taken(spelled, capsys):
    assert main(["cluster", "new", "own.json", "--gpu", spelled]) == 2
    assert capsys.readouterr().err.startswith(f"error: --gpu {spelled!r}")


def test_a_file_and_a_cluster_take_a_gpu_as_its_driver_names_it(tmp_path, capsys):
    assert main(["cluster", "new", str(tmp_path / "own.json"), "--gpu", "NVIDIA H800"]) == 0
    facts = json.loads((tmp_path / "own.json").read_text())
    assert (
        facts["intra"]["bandwidth_bytes_per_s"]
        == sl.load_cluster("h800").intra.bandwidth_bytes_per_s
    )
    (tmp_path / "own.json").write_text(json.dumps(facts | {"gpu": "NVIDIA H200"}))
    own = sl.load_cluster(tmp_path / "own.json")
    assert own.gpu == gpus()["h200-sxm"]
    assert replace(own, gpu="Tesla T4").gpu == gpus()["t4"]
    assert main(["cluster", "check", "NVIDIA H200"]) == 2
    assert "a GPU of dgx-h200" in capsys.readouterr().err


def test_a_file_that_was_corrected_is_not_written_over(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(NEW.split()) == 0
    before = Path("own.json").read_text()
    assert (
        main(NEW.split()) == 2 and "cannot write 'own.json': it is there" in capsys.readouterr().err
    )
    assert Path("own.json").read_text() == before
    wrong = "cluster new other.json --gpu a100-pcie-80gb --nic-gbit 12.5e9"
    assert main(wrong.split()) == 2 and "give Gb/s, such as 400" in capsys.readouterr().err
    assert not Path("other.json").exists()


def test_a_gpu_that_is_in_no_cluster_of_the_catalogue_makes_one_after_the_nearest(
    tmp_path, monkeypatch, capsys
):
    others = {name: its for name, its in clusters().items() if its.gpu.name != "t4"}
    monkeypatch.setattr("simlab.cost.own_cluster.clusters", lambda: others)
    path = tmp_path / "own.json"
    assert main(["cluster", "new", str(path), "--gpu", "t4", "--nodes", "2"]) == 0
    near = nearest_cluster(sl.load_cluster(path))
    made = json.loads(path.read_text())
    assert (made["gpu"], near.name in others) == ("t4", True)
    assert f"as {near.name}, to be corrected" in made["source"]
    assert main(["cluster", "check", str(path)]) in (0, 1)
    assert f"the nearest of the catalogue is {near.name}" in " ".join(
        capsys.readouterr().out.split()
    )
