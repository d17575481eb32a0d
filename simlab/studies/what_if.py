"""It predicts a step again with a faster link, a faster kernel or another GPU."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from simlab.errors import InputError, number
from simlab.spec.cluster import Cluster, gpu_called
from simlab.training import Prediction, predict
from simlab.units import seconds_text

LINKS = ("intra", "inter", "pcie")


class WhatIf(NamedTuple):
    """A step as it is, and as it would be after one change."""

    before: Prediction
    """The `Prediction` of the step as it is."""
    prediction: Prediction
    """The `Prediction` of the step as it would be."""

    def __repr__(self) -> str:
        before, after = seconds_text(self.before.step_s), seconds_text(self.prediction.step_s)
        return f"<WhatIf: step {before} → {after}, {self.saved:.1%} shorter>"

    def to_dict(self) -> dict[str, Any]:
        """Both predictions and what is saved, as plain values that JSON knows."""
        return {
            "before": self.before.to_dict(),
            "prediction": self.prediction.to_dict(),
            "saved_s": self.saved_s,
            "saved": self.saved,
            "spent_s": self.spent_s,
        }

    @property
    def saved_s(self) -> float:
        """By how many seconds the step gets shorter; negative if it gets longer."""
        return self.before.step_s - self.prediction.step_s

    @property
    def saved(self) -> float:
        """`saved_s` as a fraction of the step as it is."""
        return self.saved_s / self.before.step_s

    @property
    def spent_s(self) -> dict[str, float]:
        """{part of the waterfall: by how many seconds it gets shorter}."""
        parts = self.before.waterfall_s._fields
        return {
            part: was - now
            for part, was, now in zip(parts, self.before.waterfall_s, self.prediction.waterfall_s)
        }


def faster_link(prediction: Prediction, link: str, times: float = 2) -> WhatIf:
    """The step if the bandwidth of one kind of link were `times` as high.

    link: 'intra' for the links within a node, 'inter' for those between nodes, 'pcie' for those to
          the host.

    Raises `InputError` for another link, or if `times` is not above 0.
    """
    _check_times(times)
    cluster = prediction.cluster
    if link not in LINKS:
        raise InputError(f"link {link!r}: give one of {', '.join(LINKS)}")

    def faster(part: Cluster) -> Cluster:
        if link == "pcie":
            return replace(part, pcie_bytes_per_s=times * part.known("pcie_bytes_per_s"))
        fabric = getattr(part, link)
        return replace(
            part,
            **{link: replace(fabric, bandwidth_bytes_per_s=times * fabric.bandwidth_bytes_per_s)},
        )

    return _on(_each(cluster, faster), prediction)


def faster_kernel(prediction: Prediction, kernel: str, times: float = 2) -> WhatIf:
    """The step if a kernel and its gradients took 1/`times` as long.

    kernel: a name such as 'attention', 'qkv', 'norm' (both norms of a layer) or 'head', see
            `simlab.lowering.kernels.kernel_names`.

    Raises `InputError` for an unknown kernel, or if `times` is not above 0.
    """
    _check_times(times)
    return WhatIf(
        prediction,
        predict(prediction.model, prediction.plan, prediction.cluster, faster={kernel: times}),
    )


def other_gpu(prediction: Prediction, name: str) -> WhatIf:
    """The step if the same nodes and links had another GPU.

    name: the name of a GPU in simlab/spec/data/gpus.json, or as nvidia-smi spells it.

    Raises `InputError` for an unknown GPU.
    """
    gpu = gpu_called(name)
    return _on(_each(prediction.cluster, lambda part: replace(part, gpu=gpu)), prediction)


def _each(cluster: Cluster, change: Callable[[Cluster], Cluster]) -> Cluster:
    """`cluster` with `change` applied to each kind of its nodes."""
    return replace(change(cluster), more=tuple(change(part) for part in cluster.more))


def _on(cluster: Cluster, prediction: Prediction) -> WhatIf:
    return WhatIf(prediction, predict(prediction.model, prediction.plan, cluster))


def _check_times(times: float) -> None:
    if not number(times) or not 0 < times < float("inf"):
        raise InputError(f"times = {times!r}: give a number above 0")
