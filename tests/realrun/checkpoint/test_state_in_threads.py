"""A training's state by global names, on ranks that are threads: what is saved, taken and trained on
is the same whatever plan cuts it, and is what torch's Adam makes of the whole model."""

from functools import cache
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from threaded_ranks import on_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.testing._internal.distributed.fake_pg import FakeStore

from realrun.checkpoint.state import State
from realrun.model.gpt import Stage
from realrun.parallel.sharded import ShardedUnit
from realrun.parallel.stage import ParallelStage
from realrun.parallel.units import StageUnits
from simlab.spec.plan import Plan

SIZES = {"layers": 2, "hidden": 8, "heads": 2, "seq": 4}
STAGES = 2  # both of them on every rank
NAMES = {
    "embed": "embedding.rows", "position": "embedding.position", "norm": "head.norm",
    "head": "head.column", "blocks": "layer",
}  # fmt: skip
CUT = ["rows.weight", "qkv.weight", "qkv.bias", "up.weight", "up.bias", "out.weight", "down.weight",
       "column.weight"]  # fmt: skip
"""What Megatron-LM cuts over tensor-parallel ranks; they have the rest whole."""
PLANS = [
    {},
    {"tp": 2},
    *({"dp": 3, "zero": zero} for zero in (0, 1, 2, 3)),
    {"dp": 3, "tp": 2, "zero": 1, "sequence_parallel": True},
    {"dp": 2, "tp": 2, "zero": 3},
]


def adam(parameters):
    return torch.optim.Adam(parameters, lr=0.01, fused=True)


def gradient(value):
    """A gradient that is the same wherever its number lies."""
    return value.float().square() - 0.1


def whole_stages(dtype, seed=3):
    """The stages of the whole model, no two numbers of which are the same."""
    generator = torch.Generator().manual_seed(seed)
    stages = [Stage(SIZES, stage, STAGES) for stage in range(STAGES)]
    for stage in stages:
        for parameter in stage.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator)
    return [stage.to(dtype) for stage in stages]


@cache
def alone(dtype, steps):
    """{global name: number or whole tensor} after so many steps of Adam in one process, in fp32
    from weights of `dtype`, from which each gradient is made."""
    found = {"optimizer steps": torch.tensor(float(steps))}
    for stage, module in enumerate(whole_stages(dtype)):
        for path, used in module.named_parameters():
            master = torch.nn.Parameter(used.detach().float())
            optimizer = adam([master])
            for _ in range(steps):
                master.grad = gradient(master.detach().to(dtype))
                optimizer.step()
            moments = optimizer.state[master] if steps else {}
            name, zeros = global_name(path, stage), torch.zeros_like(master)
            for word in ("", "exp_avg", "exp_avg_sq"):
                whole = moments.get(word, zeros) if word else master.detach()
                if ".qkv." in path:  # queries, keys and values: each is cut by itself
                    whole = whole.unflatten(0, (3, -1))
                found[f"{name} {word}".rstrip()] = whole
    return found


def global_name(path, stage):
    """As `realrun.model.gpt.Stage` names a parameter -> as a checkpoint does."""
    first, _, rest = path.partition(".")
    if first == "blocks":
        at, _, rest = rest.partition(".")
        first, rest = f"layer {stage * SIZES['layers'] // STAGES + int(at)}", rest
    return f"{NAMES.get(first, first)}.{rest}"


class Training:
    """One rank's stages, units and optimizer."""

    def __init__(self, mesh, plan, dtype, seed):
        layers = SIZES["layers"] // STAGES
        self.stages = {
            at: ParallelStage(stage, at * layers, mesh, plan)
            for at, stage in enumerate(whole_stages(dtype, seed))
        }
        self.units = StageUnits(self.stages, plan, mesh["dp"], mesh["tp"], {}, torch.float32)
        self.optimizer = adam([tensor for unit in self.units.all for tensor in unit.updated])
        self.group = mesh["dp"]

    def step(self):
        """One step with `gradient` of each number."""
        for unit in self.units.all:
            sharded = isinstance(unit, ShardedUnit)
            if sharded:
                unit.gather()
                unit.gathered()
            for parameter in unit.parameters:
                parameter.grad = gradient(parameter.detach())
            if sharded and unit.frees:
                unit.free()
            if self.group.size > 1:
                unit.reduce()
                unit.reduced()
            unit.to_masters()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        for unit in self.units.all:
            unit.from_masters()


class Ranks:
    """The ranks of a plan, on threads where they communicate."""

    def __init__(self, fields, dtype=torch.float32, *, seed=3, steps_before=0):
        self.plan = Plan(precision="fp32", microbatches=2, **fields)
        self.sizes = {"pp": 1, "dp": self.plan.dp, "cp": 1, "tp": self.plan.tp}
        self.trainings = on_mesh(self.sizes, lambda mesh: Training(mesh, self.plan, dtype, seed))
        self.states = [None] * len(self.trainings)
        for _ in range(steps_before):
            self.each(lambda training, _: training.step())
        self.states = [self._state(rank) for rank in range(len(self.trainings))]

    def _state(self, rank):
        training, layout = self.trainings[rank], self.plan.layout
        dist.init_process_group("fake", rank=rank, world_size=layout.world_size, store=FakeStore())
        try:
            return State(training.stages, training.units, training.optimizer, layout)
        finally:
            dist.destroy_process_group()

    def each(self, function):
        """[function(training, state) of each rank]"""

        def here(mesh):
            rank = mesh["dp"].place * self.plan.tp + mesh["tp"].place
            return function(self.trainings[rank], self.states[rank])

        return on_mesh(self.sizes, here)


def cut(whole, like):
    """What torch says that this rank has of `whole`, placed like the DTensor `like`."""
    assert like.shape == whole.shape
    shape, offset = compute_local_shape_and_global_offset(
        like.shape, like.device_mesh, like.placements
    )
    return whole[tuple(slice(at, at + size) for at, size in zip(offset, shape))]


def check(tensors, expected, tp):
    """The tensors are this rank's parts of what is expected, and only those are cut that should
    be."""
    assert tensors.keys() == expected.keys()
    assert tensors["optimizer steps"].equal(expected["optimizer steps"])
    for name in tensors.keys() - {"optimizer steps"}:
        local = tensors[name].to_local()
        torch.testing.assert_close(local, cut(expected[name], tensors[name]), rtol=1e-5, atol=1e-7)
        ranks = tp if any(part in name for part in CUT) else 1
        assert local.numel() * ranks == expected[name].numel(), name


def fill(tensors, expected):
    """Put this rank's parts of what is expected into the tensors, as a load does."""
    for name, tensor in tensors.items():
        if isinstance(tensor, DTensor):
            tensor.to_local().copy_(cut(expected[name], tensor))
        else:
            tensor.copy_(expected[name])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("fields", PLANS, ids=str)
def test_the_state_of_any_plan_is_that_of_the_whole_model_in_one_process(fields, dtype):
    """Before the first step Adam's moments are zeros; a state that was made before it is the
    training's after it, too."""
    ranks = Ranks(fields, dtype)
    for steps in (0, 2):
        for _ in range(steps):
            ranks.each(lambda training, _: training.step())
        for tensors in ranks.each(lambda _, state: state.tensors()):
            check(tensors, alone(dtype, steps), ranks.plan.tp)


def test_a_state_that_is_made_after_some_steps_has_their_moments():
    ranks = Ranks({"dp": 2, "zero": 1}, steps_before=2)
    for tensors in ranks.each(lambda _, state: state.tensors()):
        check(tensors, alone(torch.float32, 2), 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("fields", PLANS, ids=str)
def test_a_training_of_other_weights_goes_on_from_a_state_as_one_process_does(fields, dtype):
    ranks = Ranks(fields, dtype, seed=4)

    def take(training, state):
        tensors = state.tensors()
        fill(tensors, alone(dtype, 2))
        state.take(tensors)
        return state.tensors()

    for steps in (2, 3):
        for tensors in ranks.each(take if steps == 2 else lambda _, state: state.tensors()):
            check(tensors, alone(dtype, steps), ranks.plan.tp)
        ranks.each(lambda training, _: training.step())


def test_the_mesh_is_of_the_devices_that_are_given(monkeypatch):
    asked = []

    class Whole(dict):
        mesh_dim_names = ("pp", "dp", "cp", "tp")

    def device_mesh(*arguments):
        asked.append(arguments)
        return Whole({("dp", "cp", "tp"): "a mesh"})

    monkeypatch.setattr("realrun.checkpoint.state.device_mesh", device_mesh)
    units = SimpleNamespace(all=[])
    assert State({}, units, None, "a layout", "cuda").mesh == "a mesh"
    assert asked == [("a layout", "cuda")]
