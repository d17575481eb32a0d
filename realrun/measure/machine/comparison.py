"""The simulator's times of samples, beside those that no fit has seen."""

from collections.abc import Iterable
from dataclasses import replace
from statistics import median
from typing import Any

from realrun.measure.machine.sample import Sample
from simlab.cost import GroupShape, collective_s, p2p_s
from simlab.cost.roofline import kernel_s
from simlab.cost.stage_times import StageCost
from simlab.lowering.kernels import Attention, Matmul, Memory
from simlab.lowering.kernels.kernel import Role
from simlab.spec.cluster import Cluster
from simlab.spec.model import Model
from simlab.spec.plan import Plan

Kernel = Matmul | Attention | Memory

ROLES: dict[str, Role] = {"forward": "forward", "input": "input", "weight": "weight"}
"""{variant of a matmul sample: role of its matrix product}."""


def kernel_of(sample: Sample, precision: str) -> Kernel:
    """simlab's kernel of a matmul, attention or memory sample that was taken in `precision`. Weight
    gradients of 16 bits are added to nothing, see `realrun.measure.machine.kernels.matmuls`."""
    sizes: dict[str, Any] = dict(sample.sizes)
    if sample.kind == "matmul":
        fresh = sample.variant == "weight" and precision != "fp32"
        return Matmul(sample.label, **sizes, role=ROLES[sample.variant], fresh=fresh)
    if sample.kind == "attention":
        return Attention(sample.label, **sizes, backward=sample.variant == "backward")
    return Memory(sample.label, sample.sizes["size_bytes"])


def predicted_s(sample: Sample, cluster: Cluster, precision: str) -> float:
    """The seconds that the simulator gives for `sample` on `cluster`."""
    if "ranks" in sample.sizes:
        return node_s(sample, cluster)
    if sample.kind == "host":
        return sample.sizes["ops"] * (cluster.host_op_s or 0.0)
    if sample.kind == "layer":
        times = _layer(sample, cluster, precision)
        return times.forward.total if sample.variant == "forward" else times.backward.total
    return kernel_s(kernel_of(sample, precision), cluster.gpu, precision)


def node_s(sample: Sample, cluster: Cluster) -> float:
    """The seconds that the simulator gives for a message or a collective within a node."""
    size, ranks = sample.sizes["size_bytes"], sample.sizes["ranks"]
    return (
        p2p_s(size, cluster)
        if sample.kind == "p2p"
        else collective_s(sample.kind, size, GroupShape(ranks, ranks), cluster)
    )


def _layer(sample: Sample, cluster: Cluster, precision: str) -> Any:
    batch, seq, hidden, heads = (sample.sizes[name] for name in ("batch", "seq", "hidden", "heads"))
    model = Model(
        name="a block", layers=1, hidden=hidden, heads=heads, vocab=256, positions=seq, seq=seq
    )
    # with ZeRO-3 in torch a backward adds its gradients to nothing, as here; one rank copies nothing
    plan = Plan(precision=precision, microbatch_size=batch, library="torch", zero=3, dropout=False)
    return StageCost(model, plan, replace(cluster, nodes=1), slower=1.0).layer


def comparison(
    samples: Iterable[Sample], cluster: Cluster, precision: str
) -> dict[str, dict[str, Any]]:
    """{label: {"median_error", "rows": [{"sizes", "predicted_s", "measured_s", "error"}]}} of the
    samples that no fit has seen. Errors are relative."""
    labels: dict[str, list[dict[str, Any]]] = {}
    for sample in samples:
        if not sample.fitted:
            predicted = predicted_s(sample, cluster, precision)
            row = {
                "sizes": sample.sizes,
                "predicted_s": predicted,
                "measured_s": sample.seconds,
                "error": predicted / sample.seconds - 1,
            }
            labels.setdefault(sample.label, []).append(row)
    return {
        label: {"median_error": median(abs(row["error"]) for row in rows), "rows": rows}
        for label, rows in labels.items()
    }
