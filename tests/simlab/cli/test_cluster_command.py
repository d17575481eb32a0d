"""A cluster of one's own: what its file may leave out, what is refused with the unit that is meant, and the
command that writes one from a few facts and checks one beside the catalogue."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

import simlab as sl
from simlab.cli.main import main
from simlab.cost.roofline import assumptions
from simlab.spec.cluster import clusters

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
    assert main(["cluster", "check", written(**both)]) == 2
    assert said in capsys.readouterr().err


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
    assert main(["cluster", "check", written(), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == {"cluster": "own", "nearest": "a100-pcie", "far": [], "assumptions": []}
    slow = facts["inter"] | {"bandwidth_bytes_per_s": 100e6}
    assert main(["cluster", "check", written(inter=slow)]) == 1
    said = capsys.readouterr().out
    assert "far from a100-pcie: inter: bandwidth_bytes_per_s = 1e+08 is 0.004 times 2.5e+10" in said
    assert main(["cluster", "new", "x.json", "--gpu", "a100"]) == 2
    assert (
        "did you mean 'a100-sxm-40gb', 'a100-sxm-80gb' or 'a100-pcie-80gb'?"
        in capsys.readouterr().err
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
        assert len(said) == 1 and re.match(taken, said[0])


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
