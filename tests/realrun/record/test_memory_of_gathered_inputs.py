"""What a layer keeps and sends under torch's tensor parallelism: read off torch's own DTensors."""

import pytest
import torch
from realrun_memory import pretended_group, saved_by
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.debug import CommDebugMode

import simlab as sl
from realrun.backends.torch.model import TorchStage, local
from realrun.backends.torch.parallelize import cut
from realrun.model.gpt import VOCAB, Stage
from simlab.lowering.kernels import UnitKernels
from simlab.memory.units.forward import forward_phase
from simlab.memory.units.sizes import UnitSizes

SIZES = {"hidden": 64, "heads": 4, "seq": 32}
BATCH, TP = 2, 2


def read(layers, plan):
    """(bytes that autograd keeps of a forward beside weights, how many collectives of each kind the
    backward has) of a model of so many layers."""
    with pretended_group(TP):
        mesh = init_device_mesh("cpu", (TP,), mesh_dim_names=("tp",))
        part = (0, SIZES["seq"] // TP) if plan.sequence_parallel else None
        stage = TorchStage(Stage(SIZES | {"layers": layers}, 0, 1), TP, tokens=part)
        cut(stage, plan, mesh["tp"])
        weights = {local(weight).untyped_storage().data_ptr() for weight in stage.parameters()}
        tokens = torch.zeros(BATCH, SIZES["seq"], dtype=torch.int64)
        output, kept = saved_by(lambda: stage(tokens), local)
        with CommDebugMode() as sent:
            output.sum().backward()
    counts = {str(kind).rpartition(".")[2]: n for kind, n in sent.get_comm_counts().items()}
    return sum(size for at, size in kept.items() if at not in weights), counts


def held(of, *units):
    """Bytes that simlab keeps of these units."""
    return sum(forward_phase(of, unit).end["activations"] for unit in units)


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_a_layer_keeps_and_sends_what_torchs_does(sequence_parallel):
    """Of one layer: what four have more than three; of both ends: what three have besides. With
    sequence parallelism torch keeps what it has gathered, and its backward gathers gradients only."""
    model = sl.Model(**SIZES, layers=3, vocab=VOCAB, positions=SIZES["seq"])
    plan = sl.Plan(
        tp=TP,
        sequence_parallel=sequence_parallel,
        library="torch",
        precision="fp32",
        microbatch_size=BATCH,
    )
    (three, few), (four, more) = (read(layers, plan) for layers in (3, 4))
    of = UnitSizes(model, plan, 4, 4)
    assert held(of, "layer") == four - three
    ends = held(of, "embedding", "head") - of.logits  # no loss saves those
    numbers = 8 * (BATCH * SIZES["seq"] + SIZES["seq"] // (TP if sequence_parallel else 1))
    assert ends + numbers == three - 3 * (four - three)  # of tokens and of their positions
    backward = [k for k in UnitKernels(model, plan)["layer"].input_grad if hasattr(k, "dimension")]
    found = {
        kind: more.get(name, 0) - few.get(name, 0)
        for kind, name in (
            ("all_gather", "all_gather_into_tensor"),
            ("reduce_scatter", "reduce_scatter_tensor"),
        )
    }
    assert found == {kind: sum(k.kind == kind for k in backward) for kind in found}
    assert found == dict.fromkeys(found, 2 * sequence_parallel)
