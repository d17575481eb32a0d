"""What an execution makes of each field of a plan: it is executed, or refused."""

import pytest

import simlab as sl
from realrun.run.job import Job, plan_fields
from realrun.run.job.checks import EXECUTION
from simlab.lowering.instructions import rank_instructions

EXECUTED = {
    "dp": ({}, [2]), "tp": ({}, [2]), "pp": ({}, [2]), "cp": ({}, [2]), "cp_layout": ({"cp": 2}, ["contiguous"]),
    "cp_kind": ({"cp": 2}, ["all-to-all", "all-gather"]), "zero": ({"dp": 2}, [1, 2, 3]), "microbatch_size": ({}, [2]),
    "microbatches": ({}, [2]), "schedule": ({"pp": 2, "microbatches": 4}, ["gpipe", "zb-h1", "zb-v"]),
    "chunks": ({"pp": 2, "microbatches": 4, "schedule": "interleaved-1f1b"}, [4]),
    "stage_layers": ({"pp": 2, "stage_layers": (2, 2)}, [(1, 3)]), "recompute": ({"attention": "unfused"}, ["selective", "full"]),
    "precision": ({}, ["fp16"]), "sequence_parallel": ({"tp": 2}, [True]), "attention": ({}, ["unfused"]),
    "dp_overlap": ({"dp": 2}, [False]), "gradient_bytes": ({"dp": 2, "precision": "fp16"}, [4]),
    "prefetch": ({"dp": 2, "zero": 3, "pp": 1}, [0, 2]),
    "reshard": ({"dp": 2, "zero": 3}, [False]), "order": ({"dp": 2, "tp": 2}, ["dp-cp-tp-pp"]),
    "etp": ({"dp": 2, "tp": 2, "ep": 2, "sequence_parallel": True}, [1]),
    "ep": ({"dp": 2, "ep": 1}, [2]), "expert_load": ({"dp": 2, "ep": 2}, [1.5]),
    "ep_overlap": ({"dp": 2, "ep": 2, "microbatches": 2}, [True]),
}  # fmt: skip
"""{field: (fields of a plan on which one sees it, values that are executed)}"""

NOT_EXECUTED = {
    "hybrid": ({"dp": 2, "zero": 3}, [1, 2]), "seq": ({}, [16]), "recompute": ({}, ["per-op", "outputs"]),
    "attention": ({"precision": "fp8-mx"}, ["flash-1", "flash-2", "flash-fp8"]),
    "library": ({}, ["torch", "fsdp1", "nanotron"]), "fused": ({}, [False]),
    "compiled_loss": ({"library": "torch"}, [True]),
    "dropout": ({}, [True]), "tp_overlap": ({"tp": 2}, ["none", "pipelined"]),
    "optimizer": ({"library": "torch"}, ["sgd", "adafactor", "muon"]),
    "bucket_bytes": ({"dp": 2}, [10**6]), "moment_bytes": ({"dp": 2, "zero": 1}, [2]),
    "fp8_param_gather": ({"dp": 2, "zero": 1, "precision": "fp8"}, [True]),
    "dispatcher": ({"dp": 2, "ep": 2}, ["once-a-node"]), "fused_experts": ({"precision": "fp8-mx"}, [True]),
    "fp8_head": ({"precision": "fp8-mx"}, [True]), "cuda_graphs": ({}, ["router", "parts", "whole"]),
    "offload": ({}, ["optimizer", "parameters", "activations"]), "offload_to": ({"offload": "optimizer"}, ["nvme"]),
}  # fmt: skip


def executed(plan):
    """All that the ranks of a job of `plan` are held to: their lists and the groups they form."""
    experts = {"experts": 4} if "ep" in plan else {}
    job = Job(plan=plan, sizes={"layers": 8 if "stage_layers" not in plan else 4, **experts})
    lists = [
        rank_instructions(job.model, job.executed, job.program, rank, context_rank=context_rank)
        for rank in range(job.executed.pp)
        for context_rank in range(job.executed.cp)
    ]
    layout = job.executed.layout
    return lists, {name: layout.groups(name) for name in ("dp", "tp", "pp", "cp", "ep")}


def test_every_field_is_executed_or_refused():
    names = [field.name for field in sl.plan_fields()]
    assert list(EXECUTION) == names
    assert set(names) == EXECUTED.keys() | NOT_EXECUTED.keys()
    for name, its in EXECUTION.items():
        assert (its.values is None) == (name not in NOT_EXECUTED)


@pytest.mark.parametrize("name", EXECUTED)
def test_an_executed_field_changes_what_the_ranks_do(name):
    given, values = EXECUTED[name]
    try:
        before = executed(given)
    except sl.InputError:  # experts that tensor-parallel ranks cut are not executed
        before = None
    for value in values:
        assert executed(given | {name: value}) != before, value


@pytest.mark.parametrize("name", NOT_EXECUTED)
def test_a_field_that_is_not_executed_is_refused(name):
    given, values = NOT_EXECUTED[name]
    known = {name: field.choices for name, field in zip(EXECUTION, sl.plan_fields())}[name]
    if known and EXECUTION[name].values:
        assert set(values) == set(known) - set(EXECUTION[name].values)
    for value in values:
        said = {"offload_to": "offload", "compiled_loss": "library", "optimizer": "library"}.get(
            name, name
        )
        with pytest.raises(sl.InputError, match=f"^{said} = .* is simulated, but not executed: "):
            Job(plan=given | {name: value})


def test_a_plan_of_torchs_library_is_executed_by_torchs_backend():
    plan = {"dp": 2, "zero": 2, "library": "torch"}
    job, other = (Job(plan=its, backend="torch") for its in (plan, {"dp": 2, "zero": 2}))
    assert job.given.library == "torch" and job.executed == other.executed
    for wrong in ({"backend": "native"}, {}):
        with pytest.raises(sl.InputError, match="or give 'megatron', or --backend torch"):
            Job(plan=plan, **wrong)
    with pytest.raises(sl.InputError, match="library = 'fsdp1' is simulated, but not executed"):
        Job(plan=plan | {"library": "fsdp1"}, backend="torch")


@pytest.mark.parametrize("name", ["sgd", "muon"])
def test_an_optimizer_that_the_executor_has_not_is_refused_by_its_name(name):
    with pytest.raises(
        sl.InputError, match=f"^optimizer = '{name}' is simulated, but not executed"
    ):
        Job(plan={"optimizer": name})


@pytest.mark.parametrize("plan", [{"fused": False}, {"dropout": True}, {"attention": "flash-1"}])
def test_what_decides_times_is_taken_with_a_box(plan):
    box = {"cluster": "dgx-a100", "model": "llama-2-7b"}
    changed, before = (Job(plan=its, box=box).box_plan for its in (plan, {}))
    assert changed != before


@pytest.mark.parametrize("given", [
    {}, {"attention": "unfused"}, {"dp": 64}, {"dp": 2, "zero": 3}, {"precision": "fp16"}, {"schedule": "zb-v", "pp": 2},
])  # fmt: skip
def test_a_plan_that_was_made_elsewhere_is_taken_with_all_its_defaults(given):
    plan = sl.Plan(**given)
    assert Job(plan=plan_fields(plan)).given == plan
