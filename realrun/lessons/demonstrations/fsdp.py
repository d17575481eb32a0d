"""A step by torch's FSDP2, with three ways to divide the model into units."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

from realrun.backends.torch.model import TorchStage
from realrun.backends.torch.traffic import Counted
from realrun.comm.mesh import Mesh
from realrun.model.gpt import Stage, loss
from realrun.model.text import batch
from realrun.record.fsdp_trace import Fsdp2Recorder
from simlab.program import Op


def fully_sharded(
    mesh: Mesh, sizes: dict[str, int], wrapping: str, microbatches: int = 1, warmup: int = 2
) -> dict[str, Any]:
    """A step by torch's FSDP2: this rank's `Trace`, as JSON, and the bytes that it sent in the
    first step. wrapping: see `WRAPPINGS`."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    ranks, model = mesh["dp"].size, TorchStage(Stage(sizes, 0, 1))
    flat = DeviceMesh("cpu", mesh["dp"].ranks)
    for unit, options in WRAPPINGS[wrapping](model):
        fully_shard(unit, mesh=flat, **options)
    recorder, counted = Fsdp2Recorder(mesh.rank), Counted({"dp": mesh["dp"].ranks})
    for step in range(warmup + 1):
        tokens, targets = batch(step, ranks * microbatches, 1, sizes["seq"])
        for i in range(microbatches):
            own = mesh.rank * microbatches + i
            with counted if step == 0 else recorder if step == warmup else nullcontext():
                recorder.op = Op(0, "F", i)
                value = loss(model(tokens[own]), targets[own]) / microbatches
                recorder.op = Op(0, "B", i)
                value.backward()
    return {"trace": recorder.trace(ranks).to_json(), "sent_bytes": counted.sent["dp"]}


def simulators_units(model: TorchStage, **options: Any) -> "Units":
    """The embedding, each layer and the head are units by themselves. The root has nothing left."""
    units = [model.embed, model.position], *model.blocks, [model.norm, model.head], model
    return [(unit, {"reshard_after_forward": True} | options) for unit in units]


def layers_and_root(model: TorchStage) -> "Units":
    """As torch's tutorial has it, with torch's defaults: what is in no layer belongs to the
    root."""
    return [(unit, {}) for unit in (*model.blocks, model)]


Units = list[tuple[Any, dict[str, Any]]]
WRAPPINGS: dict[str, Callable[[TorchStage], Units]] = {
    "simulator's units": simulators_units,
    "layers and root": layers_and_root,
    "kept after the forward": partial(simulators_units, reshard_after_forward=False),
}
