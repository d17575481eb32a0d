"""Every field of a plan has an effect, or is refused, or has none for a reason that stands here."""

from dataclasses import replace

import pytest

import simlab as sl
from simlab.spec.plan_effects import EFFECTS

MODEL = sl.Model(
    name="m", layers=8, hidden=1024, heads=8, kv_heads=4, vocab=512, seq=512, bias=False, gated_mlp=True
)  # fmt: skip
EXPERTS = replace(MODEL, name="e", experts=4, experts_per_token=2, clamped=True)
NODE = sl.load_cluster("dgx-h100")
BASES = {
    "one GPU": {},
    "data parallel": {"dp": 4},
    "ZeRO-1": {"dp": 4, "zero": 1, "library": "torch"},
    "ZeRO-2 without overlap": {"dp": 4, "zero": 2, "dp_overlap": False},
    "ZeRO-3": {"dp": 4, "zero": 3},
    "ZeRO-1 in 8 bits": {"dp": 4, "zero": 1, "precision": "fp8"},
    "ZeRO-3 without prefetch": {"dp": 4, "zero": 3, "prefetch": 0},
    "HSDP": {"dp": 4, "zero": 3, "hybrid": 2},
    "tensor parallel": {"tp": 2},
    "sequence parallel": {"tp": 2, "sequence_parallel": True},
    "pipeline": {"pp": 2, "microbatches": 4},
    "interleaved": {"pp": 2, "microbatches": 4, "schedule": "interleaved-1f1b"},
    "ring": {"cp": 2},
    "Ulysses": {"cp": 2, "cp_kind": "all-to-all"},
    "unfused": {"attention": "unfused"},
    "optimizer on the host": {"offload": "optimizer"},
    "parameters on the host": {"offload": "parameters"},
    "experts on ranks of their own": {"dp": 4, "ep": 2, "microbatches": 2},
    "experts in blocks of 8 bits": {"dp": 4, "ep": 2, "precision": "fp8-mx"},
    "experts that are not cut": {"dp": 4, "tp": 2, "sequence_parallel": True, "ep": 4, "etp": 1},
    "all degrees": {"dp": 2, "tp": 2, "pp": 2, "cp": 2, "zero": 1, "microbatches": 4},
}
OTHER_VALUES = {
    "dp": [2], "tp": [2], "pp": [2], "cp": [2], "ep": [2, 4], "expert_load": [1.5],
    "hybrid": [2, 4], "microbatch_size": [2], "microbatches": [2, 8], "seq": [256],
    "chunks": [2, 4], "bucket_bytes": [2**16], "gradient_bytes": [2], "prefetch": [0, 2], "order": ["pp-dp-cp-tp"],
    "moment_bytes": [2], "etp": [1, 2], "stage_layers": ["even", "ends-count-as-layers", "uneven", (3, 5)],
}  # fmt: skip


def one_stage(plan, value):
    return plan.stages == 1 or plan.microbatches == 1


NO_EFFECT = {
    "zero": (
        lambda plan, value: plan.dp * plan.cp == 1,
        "one rank holds the whole of what ZeRO shards; sweeps over dp begin there",
    ),
    "hybrid": (
        lambda plan, value: value == plan.dp * plan.cp,
        "to shard over all ranks is the default",
    ),
    "schedule": (
        one_stage,
        "with one stage or one microbatch some schedules are the same order of ops",
    ),
    "stage_layers": (
        lambda plan, value: plan.layers_of_stages(8) == replace(plan, stage_layers=value).layers_of_stages(8),
        "rules that come out even give the same layers",
    ),
    "recompute": (
        lambda plan, value: value == "selective" and plan.attention != "unfused",
        "fused attention keeps no scores, so there are none to drop; Megatron-LM takes both",
    ),
    "library": (
        lambda plan, value: value == "fsdp1" and plan.library == "torch" and plan.zero < 2,
        "FSDP1 that shards no parameter is DDP",
    ),
    "order": (
        lambda plan, value: [plan.dp, plan.tp, plan.pp, plan.cp].count(1) >= 3,
        "one dimension has one order",
    ),
    "dp_overlap": (
        lambda plan, value: (
            (plan.zero == 3 and plan.prefetch == 0)
            or (plan.dp * plan.cp == 1 and not plan.sequence_parallel)
        ),
        "ZeRO-3 without prefetch communicates in turn with computing anyway, and one rank has no "
        "gradients to reduce: sweeps over dp begin there",
    ),
    "sequence_parallel": (
        lambda plan, value: plan.tp == 1,
        "it is set to False, as Megatron-LM does: sweeps over tp begin there",
    ),
}  # fmt: skip
"""{field: (whether a value has no effect on a plan, the reason)}"""


def answers(plan, model=MODEL):
    """What is predicted of a plan, on nodes of two GPUs."""
    in_node = min(2, plan.gpus)
    cluster = replace(
        NODE, nodes=plan.gpus // in_node, gpus_per_node=in_node, nics_per_node=in_node
    )
    step, layers = sl.predict(model, plan, cluster), sl.layer_trace(model, plan, cluster)
    return step.step_s, step.waterfall_s, step.held, step.host_bytes, layers.spans


def other_values(field, plan):
    """Valid values of the field that the plan does not have."""
    values = field.choices or OTHER_VALUES.get(field.name) or [True, False]
    return [value for value in values if value != getattr(plan, field.name)]


@pytest.mark.parametrize("name", BASES)
def test_a_field_changes_an_answer_or_is_refused_or_has_a_reason(name):
    given = BASES[name]
    plan, model = sl.Plan(**given), EXPERTS if "ep" in given else MODEL
    before, silent = answers(plan, model), []
    for field in sl.plan_fields():
        for value in other_values(field, plan):
            try:
                same = answers(sl.Plan(**given | {field.name: value}), model) == before
            except sl.InputError:
                continue
            excused, _ = NO_EFFECT.get(field.name, (lambda plan, value: False, ""))
            if same and not excused(plan, value):
                silent.append(f"{field.name} = {value!r}")
    assert not silent


def test_every_field_has_an_effect_on_some_plan():
    """So that no field is excused from having any."""
    missing = {field.name for field in sl.plan_fields()}
    for given in BASES.values():
        plan, model = sl.Plan(**given), EXPERTS if "ep" in given else MODEL
        before = answers(plan, model)
        for field in sl.plan_fields():
            if field.name not in missing:
                continue
            for value in other_values(field, plan):
                try:
                    if answers(sl.Plan(**given | {field.name: value}), model) != before:
                        missing.discard(field.name)
                        break
                except sl.InputError:
                    continue
    assert not missing


@pytest.mark.parametrize("fields, says", [
    ({"hybrid": 2, "dp": 4}, "hybrid = 2 has no effect with zero = 0: leave it out, or give zero = 1, 2 or 3"),
    ({"reshard": False, "zero": 2}, "reshard = False has no effect with zero = 2: leave it out, or give zero = 3"),
    ({"prefetch": 0}, "prefetch = 0 has no effect with zero = 0 and offload = 'none': leave it out, or give zero = 3 or offload = "),
    ({"offload_to": "nvme"}, "offload_to = 'nvme' has no effect with offload = 'none': leave it out, or give offload = 'optimizer', "),
    ({"cp_kind": "all-gather"}, "cp_kind = 'all-gather' has no effect with cp = 1: leave it out, or give cp of 2 or more"),
    ({"cp_layout": "contiguous"}, "cp_layout = 'contiguous' has no effect with cp = 1"),
    ({"cp": 2, "cp_kind": "all-to-all", "cp_layout": "contiguous"}, "cp_layout = 'contiguous' has no effect with cp_kind = 'all-to-all'"),
    ({"tp_overlap": "none"}, "tp_overlap = 'none' has no effect with tp = 1"),
    ({"compiled_loss": True, "library": "nanotron"}, "compiled_loss = True has no effect with library = 'nanotron': leave it out"),
    ({"bucket_bytes": 10**6}, "bucket_bytes = 1000000 has no effect with dp = 1 and cp = 1"),
])  # fmt: skip
def test_a_value_that_would_change_nothing_is_refused_with_what_it_takes(fields, says):
    with pytest.raises(sl.InputError, match=f"^{says}"):
        sl.Plan(**fields)


def test_a_default_that_is_given_is_never_refused():
    defaults = {field.name: field.default for field in sl.plan_fields()}
    for effect in EFFECTS:
        assert sl.Plan(**{effect.field: defaults[effect.field]}) == sl.Plan()
    assert replace(sl.Plan(cp=2, tp=2), cp=1, tp=1) == sl.Plan()


def test_a_sweep_over_tp_or_dp_may_begin_at_one():
    assert replace(sl.Plan(tp=2, sequence_parallel=True), tp=1) == sl.Plan()
    assert not sl.Plan(dp=1, dp_overlap=False).dp_overlap
