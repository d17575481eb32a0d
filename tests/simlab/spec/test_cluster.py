"""Clusters: the catalogue's facts and sources, names as people spell them, files, mixed ones; the
network that rounds are executed on."""

import csv
import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simlab.collectives import Transfer, closed_form_s, hierarchical_all_reduce, ring_all_reduce
from simlab.engine.fabric import network_of
from simlab.engine.network import run_rounds
from simlab.errors import InputError
from simlab.spec.cluster import Cluster, cluster_of_gpu, clusters, gpus, load_cluster
from simlab.spec.fabric import Fabric
from simlab.spec.hardware import Gpu

RUNS = Path(__file__).parents[2] / "published" / "runs.csv"
A100 = load_cluster("dgx-a100")


# the catalogue
# --------------------------------------------------------------------------------------------


def test_the_catalogue_has_the_machines_of_the_published_runs_and_each_figure_its_source():
    assert {
        "dgx-v100", "dgx-a100", "dgx-a100-40gb", "a100-pcie", "dgx-h100", "dgx-h200", "dgx-b200", "h100-96gb-500w", "laptop"
    } <= set(clusters())  # fmt: skip
    for cluster in clusters().values():
        assert (
            cluster.source and cluster.gpu.source and cluster.intra.source and cluster.inter.source
        )
    assert all(gpu.source for gpu in gpus().values())


def test_facts_that_everybody_knows():
    gpu = load_cluster("dgx-h100").gpu
    assert (gpu.peak("bf16"), gpu.sms, gpu.memory_bandwidth_bytes_per_s) == (
        pytest.approx(989e12, rel=1e-3),
        132,
        3.35e12,
    )
    assert A100.gpu.peak("bf16") == A100.gpu.peak("fp16") == 2 * A100.gpu.peak("tf32") == 312e12
    assert (
        2 * A100.intra.bandwidth_bytes_per_s == 600e9
        and A100.nics_per_node * A100.inter.bandwidth_bytes_per_s * 8 == 1600e9
    )
    assert load_cluster("dgx-a100-40gb").gpu.memory_bytes * 2 == A100.gpu.memory_bytes == 80 * 2**30
    assert load_cluster("dgx-a100", nodes=16).gpus == 128


def test_no_peak_counts_sparsity_and_no_efficiency_is_above_1():
    for gpu in gpus().values():
        if "fp8" in gpu.peak_flops:
            assert gpu.peak("fp8") == pytest.approx(2 * gpu.peak("bf16"), rel=1e-3)
        if "tf32" in gpu.peak_flops:
            assert gpu.peak("bf16") == pytest.approx(2 * gpu.peak("tf32"), rel=1e-3)


DGX_1 = (  # nvidia-smi topo -m: NVLinks between GPUs 0 to 7
    (0, 1, 1, 2, 2, 0, 0, 0), (1, 0, 2, 1, 0, 2, 0, 0), (1, 2, 0, 2, 0, 0, 1, 0), (2, 1, 2, 0, 0, 0, 0, 1),
    (2, 0, 0, 0, 0, 1, 1, 2), (0, 2, 0, 0, 1, 0, 2, 1), (0, 0, 1, 0, 1, 2, 0, 2), (0, 0, 0, 1, 2, 1, 2, 0),
)  # fmt: skip


@pytest.mark.parametrize("ranks", [2, 3, 4, 6, 7, 8])
def test_the_rings_of_a_v100_node_are_those_its_wiring_has_links_for(ranks):
    """Through a GPU go as many as it has links, each of which goes both ways; where it has two
    neighbours, twice the smaller number."""
    links = [[count for count in row[:ranks] if count] for row in DGX_1[:ranks]]
    through = [2 * min(its) if len(its) == 2 else sum(its) for its in links]
    assert load_cluster("dgx-v100").intra.rings[ranks] == min(through)


def test_clusters_can_be_keys():
    assert len({load_cluster(name): name for name in clusters()}) == len(clusters())


def test_every_gpu_of_the_published_runs_is_known():
    with open(RUNS, encoding="utf-8", newline="") as file:
        spelled = {row["gpu"]: cluster_of_gpu(row["gpu"]) for row in csv.DictReader(file)}
    names = {
        "A100-SXM-80GB": "dgx-a100", "a100_80gb": "dgx-a100", "A100-SXM-80GB (paper: Ampere)": "dgx-a100", "H100-SXM-80GB": "dgx-h100",
        "B200-SXM": "dgx-b200", "H100-SXM-96GB HBM2e 500W": "h100-96gb-500w",
    }  # fmt: skip
    assert {text: name for text, name in spelled.items() if text in names} == names
    assert None not in spelled.values()


@pytest.mark.parametrize(("text", "name"), [
    ("H100", "dgx-h100"), ("NVIDIA H100 80GB HBM3", "dgx-h100"), ("A100-PCIE-40GB", "a100-pcie"), ("NVIDIA A100 80GB PCIe", "a100-pcie"),
    ("V100-SXM2-32GB", "dgx-v100"), ("Tesla V100", "dgx-v100"), ("H200-SXM", "dgx-h200"), ("NVIDIA A100-SXM4-40GB", "dgx-a100-40gb"),
    ("B300", "dgx-b300"), ("GB300", "gb300-nvl72"),
    ("GB200", "gb200-nvl72"), ("NVIDIA GB200 NVL72", "gb200-nvl72"), ("GB200 NVL4", None), ("A800-SXM-80GB", "a800"),
    ("A800 PCIe", None), ("NVIDIA H20", "h20"), ("GH200", None), ("NVIDIA H200 NVL", "h200-nvl"), ("AMD Instinct MI300X", "mi300x"),
    ("NVIDIA GeForce RTX 4090", "rtx-4090"), ("NVIDIA A10G", "aws-g5"), ("Tesla T4", "aws-g4dn"), ("NVIDIA GB10", "dgx-spark"),
    ("A100 40 GB", "dgx-a100-40gb"), ("H100 96 GB", "h100-96gb-500w"), ("TPU v4", None), ("H100 PCIe", None), ("", None),
])  # fmt: skip
def test_gpus_as_people_spell_them(text, name):
    assert cluster_of_gpu(text) == name
    assert name is None or name in clusters()


@pytest.mark.parametrize(("name", "says"), [
    ("dgx-h10", "unknown cluster 'dgx-h10', did you mean 'dgx-h100'?"), ("DGX-A100", "did you mean 'dgx-a100'"),
    ("abacus", "there is dgx-v100, dgx-a100"), ("nowhere/x.json", "cannot read 'nowhere/x.json'"),
])  # fmt: skip
def test_an_unknown_cluster_is_refused_with_what_there_is(name, says):
    with pytest.raises(InputError) as caught:
        load_cluster(name)
    assert says in str(caught.value)


def test_a_cluster_of_a_file_is_the_catalogues(tmp_path):
    facts = asdict(A100)
    del facts["more"]
    for level in ("intra", "inter"):
        facts[level] = {key: value for key, value in facts[level].items() if value != float("inf")}
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(facts | {"nodes": 3}), encoding="utf-8")
    assert (
        load_cluster(path) == replace(A100, nodes=3) and load_cluster(str(path), nodes=5).gpus == 40
    )
    path.write_text(json.dumps(facts | {"gpu": "h100-sxm-80gb"}), encoding="utf-8")
    assert load_cluster(path).gpu == gpus()["h100-sxm-80gb"]


@pytest.mark.parametrize(("change", "says"), [
    ({"gpu": "h1000"}, "gpu 'h1000', did you mean .*give one of"),
    ({"nodes": 0}, "nodes = 0: give a whole number"), ({"colour": 1}, "unknown colour"),
    ({"intra": {"kind": "nvlink"}}, "bandwidth_bytes_per_s"),
    ({"intra": {"kind": "string"}}, "intra: there is no bandwidth_bytes_per_s and no source, which"), ({"pcie_bytes_per_s": -1}, "pcie"),
    ({"source": ""}, "no source"), ({"nics_per_node": 1.5}, "nics_per_node = 1.5"), ({"source": 7}, "no source .it is 7"),
    ({"pcie_bytes_per_s": "64e9"}, "pcie_bytes_per_s = '64e9': give a number above 0"),
    ({"pcie_bytes_per_s": None}, "pcie_bytes_per_s = None"), ({"nvme_bytes_per_s": float("nan")}, "nvme_bytes_per_s = nan"),
    ({"host_op_s": "1e-6"}, "host_op_s = '1e-6': give a finite number of seconds"), ({"host_op_s": True}, "host_op_s = True"),
    ({"more": [1]}, r"more = \[1\]: give clusters"), ({"more": "dgx-h100"}, "more = 'dgx-h100': give clusters"),
    ({"intra": "nvlink"}, "intra = 'nvlink': give an object with its figures"), ({"inter": None}, "inter = None: give an object"),
    ({"gpu": ["a100"]}, r"gpu \['a100'\]: give one of"), ({"name": 5}, "name = 5: give a text"),
])  # fmt: skip
def test_a_file_that_makes_no_sense_is_refused(change, says, tmp_path):
    facts = asdict(A100)
    del facts["more"]
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(facts | change), encoding="utf-8")
    with pytest.raises(InputError, match=f"mine.json: .*{says}"):
        load_cluster(path)


@pytest.mark.parametrize("change", [
    {"rings": {"8": 0}}, {"rings": {"8": "6"}}, {"rings": {"many": 6}}, {"rings": {"0": 6}}, {"rings": [8, 6]}, {"islands": "4"},
    {"islands": -1}, {"islands": 1.5}, {"hop_s": "1e-6"}, {"base_s": None}, {"message_s": True}, {"efficiency": "0.9"},
    {"message_efficiency": [0.9]}, {"multicast_efficiency": "0.5"}, {"oversubscription": "2"}, {"protocols": "Simple"},
    {"protocols": [["LL"]]}, {"protocols": None}, {"copy_bytes_per_s": "5e9"},
], ids=str)  # fmt: skip
def test_a_files_fabric_whose_figure_makes_no_sense_is_refused_with_the_figure(change, tmp_path):
    facts = {"gpu": "a100-sxm-80gb", "intra": FABRIC | change, "inter": FABRIC, "source": "here"}
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(facts), encoding="utf-8")
    (name, value), *_ = change.items()
    with pytest.raises(InputError) as why:
        load_cluster(path)
    assert str(why.value).startswith(f"{path}: network fabric: {name} = {value!r}: give ")


@pytest.mark.parametrize(("change", "says"), [
    ({"peak_flops": [1e12]}, r"peak_flops of \[1000000000000.0\]: give"), ({"peak_flops": "1e12"}, "peak_flops of '1e12'"),
    ({"peak_flops": {"fp32": "1e12"}}, "peak_flops of fp32 = '1e12'"), ({"memory_bytes": "80e9"}, "memory_bytes = '80e9'"),
    ({"efficiency": "high"}, "efficiency = 'high'; there is volta"), ({"efficiency": {"kernel_s": "1e-6"}}, "kernel_s = '1e-6'"),
    ({"efficiency": {"attention_tail": {"forward": "1", "backward": 1}}}, "attention_tail of forward = '1'"),
    ({"efficiency": {"tiles": 128}}, "tiles = 128"), ({"efficiency": {"matmul": [1]}}, r"matmul = \[1\]"),
])  # fmt: skip
def test_a_files_gpu_whose_figure_makes_no_sense_is_refused_with_the_figure(change, says, tmp_path):
    if isinstance(change.get("efficiency"), dict):
        change = {"efficiency": EFFICIENCY | change["efficiency"]}
    facts = {"gpu": GPU | change, "intra": FABRIC, "inter": FABRIC, "source": "here"}
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(facts), encoding="utf-8")
    with pytest.raises(InputError, match=says):
        load_cluster(path)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "not a cluster's JSON"),
        ("[1]", "not a cluster's JSON"),
        ("{}", "gpu None: give one of"),
    ],
)
def test_a_file_that_is_no_cluster_is_refused(text, says, tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=says):
        load_cluster(path)


FABRIC = {"kind": "network", "bandwidth_bytes_per_s": 1e9, "source": "here"}
EFFICIENCY = {
    "matmul": {"forward": 0.8, "input": 0.8, "weight": 0.8}, "tiles": [[128, 128, 1.0]], "kernel_s": 1e-6, "memory": 0.9,
    "attention": {"flash": [0.5, 0.4]}, "attention_tail": {"forward": 1.0, "backward": 1.0}, "source": "here",
}  # fmt: skip
GPU = {
    "name": "g",
    "peak_flops": {"fp32": 1.0},
    "memory_bytes": 1,
    "memory_bandwidth_bytes_per_s": 1,
    "sms": 1,
    "source": "here",
}


@pytest.mark.parametrize(("kind", "facts", "says"), [
    (Fabric, {"kind": "string"}, "fabric kind 'string': give one of nvlink"), (Fabric, {"efficiency": 1.2}, "efficiency = 1.2"),
    (Fabric, {"hop_s": -1.0}, "hop_s = -1.0"), (Fabric, {"oversubscription": 0.5}, "oversubscription = 0.5"),
    (Fabric, {"protocols": ["TCP"]}, "protocols"), (Fabric, {"multicast_efficiency": 2}, "multicast_efficiency = 2"),
    (Fabric, {"bandwidth_bytes_per_s": 0}, "bandwidth_bytes_per_s = 0"), (Gpu, {"peak_flops": {"fp64": 1.0}}, "peak_flops of fp64"),
    (Fabric, {"source": ""}, "source"), (Gpu, {"peak_flops": {"fp32": 0.0}}, "peak_flops of fp32 = 0.0"),
    (Gpu, {"sms": "many"}, "sms = 'many'"), (Gpu, {"sms": 1.5}, "sms = 1.5: give a whole number"),
    (Gpu, {"name": 5}, "name = 5: give a text"), (Gpu, {"sms": float("inf")}, "sms = inf"), (Gpu, {"source": ""}, "source"),
])  # fmt: skip
def test_figures_that_make_no_sense_are_refused(kind, facts, says):
    with pytest.raises(InputError, match=says):
        kind(**({Fabric: FABRIC, Gpu: GPU}[kind] | facts))


def test_a_precision_that_a_gpu_does_not_have_is_refused():
    with pytest.raises(InputError, match="v100-sxm2-32gb has no bf16; it has fp32, fp16"):
        load_cluster("dgx-v100").gpu.peak("bf16")


def test_a_mixed_clusters_ranks_are_the_firsts_then_the_seconds():
    cluster = Cluster.mixed(load_cluster("dgx-a100", nodes=2), load_cluster("dgx-h100", nodes=1))
    assert (cluster.gpus, cluster.name) == (24, "dgx-a100+dgx-h100")
    assert [cluster.gpu_of(rank).name for rank in (0, 15, 16, 23)] == ["a100-sxm-80gb"] * 2 + [
        "h100-sxm-80gb"
    ] * 2
    assert [cluster.node_of(rank) for rank in (0, 7, 8, 16, 23)] == [0, 0, 1, 2, 2]
    for rank in (-1, 24):
        with pytest.raises(InputError, match="ranks 0 to 23"):
            cluster.gpu_of(rank)
    with pytest.raises(InputError, match="GPUs per node"):
        Cluster.mixed(A100, load_cluster("laptop"))


# the network
# ----------------------------------------------------------------------------------------------

SIZE = 1e8
bandwidths, latencies, sizes = st.floats(1e9, 1e12), st.floats(0, 1e-4), st.floats(1e3, 1e9)


def machine(
    intra_bandwidth=300e9,
    intra_s=3e-6,
    inter_bandwidth=25e9,
    inter_s=1e-5,
    *,
    nodes=4,
    nics=8,
    oversubscription=1.0,
):
    intra = Fabric(
        kind="nvlink", bandwidth_bytes_per_s=intra_bandwidth, hop_s=intra_s, source="here"
    )
    inter = Fabric(
        kind="network", bandwidth_bytes_per_s=inter_bandwidth, hop_s=inter_s, oversubscription=oversubscription, source="here"
    )  # fmt: skip
    return replace(A100, intra=intra, inter=inter, nodes=nodes, nics_per_node=nics)


def executed_s(cluster, *collectives):
    return run_rounds(collectives, network_of(cluster))


@given(st.integers(2, 8), sizes, bandwidths, latencies)
def test_a_ring_within_a_node_takes_its_closed_form(n, size_bytes, bandwidth, latency_s):
    took = executed_s(machine(bandwidth, latency_s, nodes=1), ring_all_reduce(range(n), size_bytes))
    assert took == pytest.approx(
        [closed_form_s("ring", n, size_bytes, latency_s, bandwidth)], rel=1e-9
    )


@given(st.integers(2, 6), sizes, bandwidths, latencies)
def test_a_ring_of_one_rank_per_node_takes_its_closed_form_over_a_nic_each(
    nodes, size_bytes, bandwidth, latency_s
):
    cluster = machine(inter_bandwidth=bandwidth, inter_s=latency_s, nodes=nodes)
    took = executed_s(cluster, ring_all_reduce([8 * node + 3 for node in range(nodes)], size_bytes))
    assert took == pytest.approx(
        [closed_form_s("ring", nodes, size_bytes, latency_s, bandwidth)], rel=1e-9
    )


@settings(max_examples=20)
@given(st.integers(2, 3), sizes, bandwidths, latencies, bandwidths, latencies)
def test_a_ring_through_nodes_goes_at_the_pace_of_its_slowest_step(
    nodes, size_bytes, fast, fast_s, slow, slow_s
):
    took = executed_s(
        machine(fast, fast_s, slow, slow_s, nodes=nodes),
        ring_all_reduce(range(8 * nodes), size_bytes),
    )
    n = 8 * nodes
    both = [
        closed_form_s("ring", n, size_bytes, *link) for link in ((fast_s, fast), (slow_s, slow))
    ]
    assert took == pytest.approx([max(both)], rel=1e-9)


@settings(max_examples=15)
@given(st.integers(2, 3), sizes, bandwidths, latencies, bandwidths, latencies)
def test_a_hierarchical_all_reduce_takes_what_its_levels_take(
    nodes, size_bytes, inside, inside_s, between, between_s
):
    ranks = [list(range(8 * node, 8 * node + 8)) for node in range(nodes)]
    took = executed_s(
        machine(inside, inside_s, between, between_s, nodes=nodes),
        hierarchical_all_reduce(ranks, size_bytes),
    )
    levels = 14 * (inside_s + size_bytes / 8 / inside) + 2 * (nodes - 1) * (
        between_s + size_bytes / (8 * nodes) / between
    )
    assert took == pytest.approx([levels], rel=1e-9)


def test_two_rings_through_the_same_ports_take_twice_the_bytes_but_not_twice_the_latency():
    ring = ring_all_reduce(range(8), SIZE)
    cluster = machine(nodes=1)
    fabric = cluster.intra
    twice_the_bytes = closed_form_s("ring", 8, 2 * SIZE, fabric.hop_s, fabric.bandwidth_bytes_per_s)
    assert executed_s(cluster, ring, ring) == pytest.approx([twice_the_bytes] * 2, rel=1e-9)


def test_rings_of_several_gpus_over_one_nic_share_it_and_over_a_nic_each_do_not():
    rings = [ring_all_reduce([at, 8 + at, 16 + at], SIZE) for at in range(4)]
    bytes_s = 4 / 3 * SIZE / 25e9
    assert executed_s(machine(inter_s=0.0, nodes=3), *rings) == pytest.approx(
        [bytes_s] * 4, rel=1e-9
    )
    assert executed_s(machine(inter_s=0.0, nodes=3, nics=2), *rings) == pytest.approx(
        [4 * bytes_s] * 4, rel=1e-9
    )


@pytest.mark.parametrize("factor", [1.5, 2.0, 4.0])
def test_oversubscription_slows_traffic_between_nodes_by_its_factor_once_all_nics_are_busy(factor):
    rings = [ring_all_reduce([at, 8 + at], SIZE) for at in range(8)]
    full = executed_s(machine(inter_s=0.0, nodes=2), *rings)
    assert executed_s(
        machine(inter_s=0.0, nodes=2, oversubscription=factor), *rings
    ) == pytest.approx([factor * s for s in full], rel=1e-9)
    alone = [
        executed_s(machine(inter_s=0.0, nodes=2, oversubscription=f), rings[0])[0]
        for f in (1.0, factor)
    ]
    assert alone[0] == pytest.approx(alone[1]), "one NIC of eight has room above"


def test_a_mixed_clusters_message_between_kinds_goes_at_the_slower_nic():
    network = network_of(Cluster.mixed(load_cluster("dgx-a100"), load_cluster("dgx-h100")))
    a100, h100 = (load_cluster(name).inter for name in ("dgx-a100", "dgx-h100"))
    took = run_rounds([[[Transfer(0, 8, SIZE)]], [[Transfer(9, 1, SIZE)]]], network)
    bytes_s = SIZE / (a100.bandwidth_bytes_per_s * a100.efficiency)
    assert took == pytest.approx([a100.hop_s + bytes_s, h100.hop_s + bytes_s], rel=1e-9)
