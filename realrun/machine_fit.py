"""Samples of a machine → the cluster that explains them best, in the simulator's own formulas; and what it predicts of other samples.

No formula of simlab's is written again here: a kernel's part of the peak is what its formula has to be given for it to return the measured
time (bisection), and a fabric's figures are the non-negative combination of the times that its formula has for one second of latency, or
one byte per second of bandwidth, alone. One figure per kind: what the caches hold, and gloo's changes of algorithm by size, are left out,
and show in the error at the sizes kept apart.
"""

from dataclasses import asdict, replace
from math import exp, log
from statistics import median

from simlab.cluster import Cluster, cluster_of_gpu, clusters
from simlab.cost import Group, collective_s, p2p_s
from simlab.cost.kernels import Attention, Matmul, Memory
from simlab.cost.roofline import efficiencies_of, kernel_s
from simlab.cost.stage_times import StageCost
from simlab.hardware import Efficiency, Fabric, Gpu
from simlab.model import Model
from simlab.plan import Plan

ROLES = ("forward", "input", "weight")
CPU_TILES = [[64, 64, 1.0]]
FASTEST_PCIE = 63e9
"""Bytes per second of PCIe 5.0 x16, one direction: what is faster between two GPUs is NVLink."""
MESSAGES = ("p2p", "all_to_all")
"""Those that go at a fabric's `message_efficiency`, not at a ring's."""
NO_LIMIT = 1e30
UNSEEN = 1e15
"""Bytes per second of what larger sizes took no longer for, as far as was seen; a file has no infinity."""


def machine_cluster(samples, node, about):
    """The facts of a cluster of one node, as data/clusters.json has them: a JSON object that `simlab.load_cluster` reads.

    samples: [`realrun.machine.Sample`]; those with `fitted` are used. node: {"pcie_bytes_per_s", "nvme_bytes_per_s", "memory_bytes",
    "host_memory_bytes"}; about: `realrun.machine.description`.
    """
    fitted = [sample for sample in samples if sample.fitted]
    said = f"measured: {about['device']}, {about['threads']} thread(s), torch {about['torch']}, {about['backend']}, {about['measured_at']}"
    gpu = fitted_gpu(fitted, node["memory_bytes"], about, said)
    links = [sample for sample in fitted if "ranks" in sample.sizes]
    host = next(sample for sample in fitted if sample.kind == "host")
    return {
        "gpu": _facts(gpu), "gpus_per_node": about["ranks"], "nics_per_node": 1,
        "intra": fitted_fabric(links, about, said), "inter": _unmeasured_network(),
        "pcie_bytes_per_s": node["pcie_bytes_per_s"], "nvme_bytes_per_s": node["nvme_bytes_per_s"],
        "host_memory_bytes": node["host_memory_bytes"], "host_op_s": host.seconds / host.sizes["ops"], "source": said,
        "measured": about | {"samples": [sample._asdict() for sample in samples]},
    }  # fmt: skip


def _facts(gpu):
    return {name: value for name, value in asdict(gpu).items() if value is not None}


def _unmeasured_network():
    fabric = clusters()["laptop"].inter
    return {
        "kind": fabric.kind, "bandwidth_bytes_per_s": fabric.bandwidth_bytes_per_s, "efficiency": fabric.efficiency, "hop_s": fabric.hop_s,
        "protocols": list(fabric.protocols), "source": "not measured, and to be replaced: gigabit Ethernet, TCP",
    }  # fmt: skip


# one device -------------------------------------------------------------------------------------------------


def fitted_gpu(samples, memory_bytes, about, said):
    """The `Gpu` that explains `samples`: the greatest rates reached, and what the median kernel of a kind reaches of them."""
    peaks, precision = {}, about["precision"]
    for sample in samples:
        of = sample.kind.removeprefix("peak ") if sample.kind.startswith("peak ") else precision
        if sample.kind in ("matmul forward", f"peak {of}"):
            m, n, k = (sample.sizes[name] for name in "mnk")
            peaks[of] = max(peaks.get(of, 0.0), 2 * m * n * k / sample.seconds)
    bandwidth = max(sample.sizes["size_bytes"] / sample.seconds for sample in samples if sample.kind == "memory copy")
    tiles = CPU_TILES if about["sms"] == 1 else [list(tile) for tile in _catalogued(about["device"]).tiles]
    blank = Efficiency(
        matmul=dict.fromkeys(ROLES, 1.0), tiles=tiles, kernel_s=next(s.seconds for s in samples if s.kind == "launch"),
        attention={"flash": [1.0, 1.0]}, attention_tail={"forward": 0.0, "backward": 0.0}, memory=1.0, source=said,
    )  # fmt: skip
    gpu = Gpu(
        name=about["device"], peak_flops=peaks, memory_bytes=memory_bytes, memory_bandwidth_bytes_per_s=bandwidth, sms=about["sms"],
        efficiency=blank, source=f"{said}; peaks and bandwidth are the greatest rates that a product and a copy reached, no data sheet's",
    )  # fmt: skip
    gpu = _with(gpu, memory=_part(samples, "memory", gpu, precision, lambda part: {"memory": part}))
    matmul = {role: _part(samples, f"matmul {role}", gpu, precision, lambda part: {"matmul": dict.fromkeys(ROLES, part)}) for role in ROLES}
    return _with(gpu, matmul=matmul, **_attention(samples, gpu, precision))


def _catalogued(device):
    """The `Efficiency` of the catalogue's GPU that `device` is, or an A100's: for the tiles, which nobody can time."""
    return efficiencies_of(clusters()[cluster_of_gpu(device) or "dgx-a100"].gpu)


def _with(gpu, **changes):
    return replace(gpu, efficiency=replace(gpu.efficiency, **changes))


def _part(samples, kind, gpu, precision, change):
    """The median of what the kernels of `kind` must reach of the peak for their formula to say what was measured."""
    parts = []
    for sample in samples:
        if sample.kind.startswith(kind):
            kernel = kernel_of(sample)
            part = _solved(lambda part, kernel=kernel: kernel_s(kernel, _with(gpu, **change(part)), precision), sample.seconds)
            parts.append(part)
    known = [part for part in parts if part is not None]
    return median(known) if known else 1.0


def _solved(formula, seconds, least=1e-4, most=10.0):
    """The part, `least` to `most`, at which `formula`, which falls with it, is `seconds`; None where no part in between will do."""
    if not formula(most) < seconds < formula(least):
        return None
    for _ in range(60):
        middle = exp((log(least) + log(most)) / 2)
        least, most = (middle, most) if formula(middle) > seconds else (least, middle)
    return middle


def _attention(samples, gpu, precision):
    """Part of the peak, and on a GPU the tail that the longest block of queries makes: {"attention", "attention_tail"}."""
    parts, tails = [], {}
    for way in ("forward", "backward"):
        mine = [sample for sample in samples if sample.kind == f"attention {way}"]
        rows, none = [], gpu.efficiency.kernel_s
        for sample in mine:
            flat = kernel_s(kernel_of(sample), gpu, precision) - none
            tail = kernel_s(kernel_of(sample), _with(gpu, attention_tail={"forward": 1.0, "backward": 1.0}), precision) - none - flat
            rows.append([flat, tail] if gpu.sms > 1 else [flat])
        rest = [max(sample.seconds - none, sample.seconds / 10) for sample in mine]
        slower, *tail = nonnegative_fit(rows, rest)
        if slower <= 0:  # all tail: too few sizes to tell the two apart
            (slower,), tail = nonnegative_fit([row[:1] for row in rows], rest), []
        parts.append(1 / slower)
        tails[way] = tail[0] if tail else 0.0
    return {"attention": {"flash": parts}, "attention_tail": tails}


# links ------------------------------------------------------------------------------------------------------


def fitted_fabric(samples, about, said):
    """The facts of the `Fabric` inside the machine. Its time is linear in what is fitted, see simlab/cost/communication.py:
    base, hop and message latency, and seconds per byte of a ring, of messages, and of copying."""
    used = [sample for sample in samples if not (about["backend"] == "gloo" and sample.kind == "reduce_scatter")]
    if not used:
        return _facts_of_fabric("loopback" if about["sms"] == 1 else "pcie", [0.0] * 6, "not measured: there is one rank")
    rows = [_columns(sample) for sample in used]
    solution = nonnegative_fit(rows, [sample.seconds for sample in used])
    fast = max(sample.sizes["size_bytes"] / sample.seconds for sample in used if sample.kind == "p2p")
    kind = "loopback" if about["backend"] == "gloo" else "nvlink" if fast > FASTEST_PCIE else "pcie"
    note = "; gloo's reduce-scatter is an all-reduce and a copy, not a ring's: measured, not fitted" if about["backend"] == "gloo" else ""
    return _facts_of_fabric(kind, solution, said + "; one straight line for all protocols and sizes" + note)


def _facts_of_fabric(kind, solution, source):
    base_s, hop_s, message_s, *per_byte = solution
    ring, message, copy = (min(1 / seconds, UNSEEN) if seconds > 0 else UNSEEN for seconds in per_byte)
    message = ring if message == UNSEEN else message  # larger messages took no longer: noise, for a wire they have
    top = max(ring, message)
    facts = {
        "kind": kind, "bandwidth_bytes_per_s": top, "efficiency": ring / top, "message_efficiency": message / top, "base_s": base_s,
        "hop_s": hop_s, "message_s": message_s, "protocols": ["Simple"], "source": source,
    }  # fmt: skip
    return facts | ({"copy_bytes_per_s": copy} if copy < UNSEEN else {})


def _columns(sample):
    """[seconds that a second of base, of a hop, of a message, and a second per byte of ring, message and copy make of `sample`]"""
    nothing = {"kind": "loopback", "bandwidth_bytes_per_s": NO_LIMIT, "message_s": 0.0, "protocols": ("Simple",), "source": "a unit"}
    latencies = [_link_s(sample, Fabric(**nothing | {name: 1.0})) for name in ("base_s", "hop_s", "message_s")]
    byte_s = _link_s(sample, Fabric(**nothing | {"bandwidth_bytes_per_s": 1.0}))
    copy_s = _link_s(sample, Fabric(**nothing | {"copy_bytes_per_s": 1.0}))
    return [*latencies, *((0.0, byte_s) if sample.kind in MESSAGES else (byte_s, 0.0)), copy_s]


def _link_s(sample, fabric):
    ranks = sample.sizes["ranks"]
    return _node_s(sample, replace(clusters()["laptop"], gpus_per_node=ranks, intra=fabric))


def _node_s(sample, cluster):
    size, ranks = sample.sizes["size_bytes"], sample.sizes["ranks"]
    return p2p_s(size, cluster) if sample.kind == "p2p" else collective_s(sample.kind, size, Group(ranks, ranks), cluster)


def nonnegative_fit(rows, seconds, reweightings=15, sweeps=400):
    """[coefficients >= 0] with the least sum of |row . coefficients / seconds - 1|.

    Least squares of the relative error by coordinate descent, over and over with each row weighted by 1 / |its error| (iteratively
    reweighted least squares, which goes to least absolute values: one odd sample of ten changes little).
    """
    columns = range(len(rows[0]))
    relative = [[value / time for value in row] for row, time in zip(rows, seconds)]
    scale = [max(max(row[c] for row in relative), 1e-300) for c in columns]
    scaled = [[row[c] / scale[c] for c in columns] for row in relative]
    found, weights = [0.0 for _ in columns], [1.0] * len(rows)
    for _ in range(reweightings):
        gram = [[sum(w * row[a] * row[b] for w, row in zip(weights, scaled)) for b in columns] for a in columns]
        aims = [sum(w * row[a] for w, row in zip(weights, scaled)) for a in columns]
        for _ in range(sweeps):
            for c in columns:
                if gram[c][c] > 0:
                    others = sum(gram[c][b] * found[b] for b in columns if b != c)
                    found[c] = max(0.0, (aims[c] - others) / gram[c][c])
        errors = [abs(sum(value * x for value, x in zip(row, found)) - 1) for row in scaled]
        weights = [1 / max(error, 0.01) for error in errors]
    return [value / scale[c] for c, value in zip(columns, found)]


# the fit against what was kept apart ------------------------------------------------------------------------------


def kernel_of(sample):
    """simlab's kernel of a matmul, attention or memory sample."""
    kind, _, which = sample.kind.partition(" ")
    if kind == "matmul":
        return Matmul(sample.kind, **sample.sizes, role=which)
    if kind == "attention":
        return Attention(sample.kind, **sample.sizes, backward=which == "backward")
    return Memory(sample.kind, sample.sizes["size_bytes"])


def predicted_s(sample, cluster: Cluster, precision):
    """What the simulator says of `sample` on `cluster`, s."""
    if "ranks" in sample.sizes:
        return _node_s(sample, cluster)
    if sample.kind == "host":
        return sample.sizes["ops"] * cluster.host_op_s
    if sample.kind.startswith("layer"):
        times = _layer(sample, cluster, precision)
        return times.forward.total if sample.kind == "layer forward" else times.backward.total
    return kernel_s(kernel_of(sample), cluster.gpu, precision)


def _layer(sample, cluster, precision):
    batch, seq, hidden, heads = (sample.sizes[name] for name in ("batch", "seq", "hidden", "heads"))
    model = Model(name="a block", layers=1, hidden=hidden, heads=heads, vocab=256, positions=seq, seq=seq)
    plan = Plan(precision=precision, microbatch_size=batch, dropout=False)
    return StageCost(model, plan, replace(cluster, nodes=1), slower=1.0).layer


def comparison(samples, cluster, precision):
    """{kind: {"median_error", "rows": [{"sizes", "predicted_s", "measured_s", "error"}]}} of the samples that no fit has seen."""
    kinds = {}
    for sample in samples:
        if not sample.fitted:
            predicted = predicted_s(sample, cluster, precision)
            row = {"sizes": sample.sizes, "predicted_s": predicted, "measured_s": sample.seconds, "error": predicted / sample.seconds - 1}
            kinds.setdefault(sample.kind, []).append(row)
    return {kind: {"median_error": median(abs(row["error"]) for row in rows), "rows": rows} for kind, rows in kinds.items()}
