"""What if one thing were faster: the same step predicted again, and what that changes."""

from dataclasses import replace
from typing import NamedTuple

from simlab.cluster import gpus
from simlab.errors import InputError, did_you_mean
from simlab.training import predict

LINKS = ("intra", "inter", "pcie")


class WhatIf(NamedTuple):
    """A step as it would be."""

    before: object
    """`Prediction` of the step as it is."""
    prediction: object
    """`Prediction` of the step as it would be."""

    @property
    def saved_s(self):
        """By how much the step gets shorter, s; negative if longer."""
        return self.before.step_s - self.prediction.step_s

    @property
    def saved(self):
        """`saved_s` as a fraction of the step as it is."""
        return self.saved_s / self.before.step_s

    @property
    def spent_s(self):
        """{part of the waterfall: seconds that it gets shorter}."""
        parts = self.before.waterfall_s._fields
        return {part: was - now for part, was, now in zip(parts, self.before.waterfall_s, self.prediction.waterfall_s)}


def faster_link(prediction, link, times=2):
    """`WhatIf` the bandwidth of one kind of link were `times` what it is: 'intra' a node, 'inter' nodes, or 'pcie' to the host."""
    _check_times(times)
    cluster = prediction.cluster
    if link not in LINKS:
        raise InputError(f"link {link!r}: give one of {', '.join(LINKS)}")

    def faster(part):
        if link == "pcie":
            return replace(part, pcie_bytes_per_s=times * part.pcie_bytes_per_s)
        fabric = getattr(part, link)
        return replace(part, **{link: replace(fabric, bandwidth_bytes_per_s=times * fabric.bandwidth_bytes_per_s)})

    return _on(_each(cluster, faster), prediction)


def faster_kernel(prediction, kernel, times=2):
    """`WhatIf` a kernel, its gradients included, took 1/`times` as long: 'attention', 'qkv', 'norm' (both), 'head', ... see
    `simlab.cost.kernels.kernel_names`."""
    _check_times(times)
    return WhatIf(prediction, predict(prediction.model, prediction.plan, prediction.cluster, faster={kernel: times}))


def other_gpu(prediction, name):
    """`WhatIf` the same nodes and links had another GPU, a name of data/gpus.json."""
    if name not in gpus():
        raise InputError(f"gpu {name!r}{did_you_mean(name, gpus()) or ';'} there is {', '.join(gpus())}")
    return _on(_each(prediction.cluster, lambda part: replace(part, gpu=gpus()[name])), prediction)


def _each(cluster, change):
    """`cluster` with `change` made to each kind of its nodes."""
    return replace(change(cluster), more=tuple(change(part) for part in cluster.more))


def _on(cluster, prediction):
    return WhatIf(prediction, predict(prediction.model, prediction.plan, cluster))


def _check_times(times):
    if not 0 < times < float("inf"):
        raise InputError(f"times = {times!r}: give a number above 0")
