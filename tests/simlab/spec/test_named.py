"""Where a function takes a model or a cluster, the name of one in the catalogue will do; a wrong order and
a wrong name are said in one line."""

import json
from dataclasses import replace

import pytest

import simlab as sl
from simlab.errors import did_you_mean
from simlab.planner import Space

PLAN = sl.Plan(dp=2, tp=8, sequence_parallel=True)
MODEL, CLUSTER = sl.load_model("llama-3-8b"), sl.load_cluster("dgx-h100", nodes=2)
NAMES = "llama-3-8b", PLAN, "dgx-h100"
OBJECTS = MODEL, PLAN, CLUSTER
GROUP = sl.GroupShape(16, 8)
DENSE = {"microbatch_size": 1}


@pytest.mark.parametrize(
    "of",
    [
        lambda model, plan, cluster: sl.predict(model, plan, cluster).to_dict(),
        lambda model, plan, cluster: sl.layer_trace(model, plan, cluster).to_dict(),
        lambda model, plan, cluster: sl.layer_table(model, plan),
        lambda model, plan, cluster: sl.traffic(model, plan),
        lambda model, plan, cluster: sl.collective("all_reduce", 1e6, GROUP, cluster),
        lambda model, plan, cluster: sl.all_reduce_curve(GROUP, cluster, [1e3, 1e9]),
        lambda model, plan, cluster: sl.p2p_s(1e6, cluster, same_node=False),
    ],
)
def test_a_name_stands_for_the_object_and_for_the_nodes_that_the_plan_needs(of):
    assert of(*NAMES) == of(*OBJECTS)


def test_the_studies_and_the_search_take_names_too():
    one = replace(CLUSTER, nodes=1)
    plan = replace(PLAN, dp=1)
    assert sl.offload_step("gpt2", sl.Plan(dp=8, zero=1), "dgx-h100").step_s > 0
    ring = sl.Plan(cp=8, cp_kind="ring", seq=8192)
    assert sl.ring_trace(MODEL, ring, "dgx-h100").step_s == sl.ring_trace(MODEL, ring, one).step_s
    assert sl.data_parallel_memory("gpt2", 8, **DENSE) == sl.data_parallel_memory(
        sl.load_model("gpt2"), 8, **DENSE
    )
    space = Space(model="llama-3-8b", cluster="dgx-h100", global_batch=8)
    assert (space.model, space.cluster) == (MODEL, one) and plan.gpus == space.cluster.gpus
    facts = {name: getattr(one, name) for name in one.__dataclass_fields__}
    assert sl.Cluster(**facts | {"gpu": "h200-sxm"}).gpu.name == "h200-sxm"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("llama-3-8b", "dgx-h100", PLAN), r"^plan = 'dgx-h100': give a Plan; the arguments are a model, a plan and a cluster, in "),
        ((PLAN, MODEL, CLUSTER), r"^plan = Model\(.*: give a Plan; the arguments are"),
        ((CLUSTER, PLAN, MODEL), r"^model = Cluster\(.*: give a Model or the name of one; the arguments are"),
        ((MODEL, PLAN, 8), r"^cluster = 8: give a Cluster or the name of one; the arguments are"),
        ((MODEL, PLAN, "h100"), r"^unknown cluster 'h100', did you mean 'h100-96gb-500w' or 'dgx-h100'\? there is"),
        ((MODEL, PLAN, "h100-sxm-80gb"), r"^unknown cluster 'h100-sxm-80gb', a GPU of dgx-h100, aws-p5, h800; there is"),
        (("llama", PLAN, CLUSTER), r"^unknown model 'llama', did you mean 'llama-.*' or 'llama-.*'\? there is"),
        ((MODEL, replace(PLAN, dp=3, tp=3), "dgx-h100"), "9 GPUs are not whole nodes of 8"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("of", [sl.predict, sl.layer_trace])
def test_another_order_and_another_name_are_said_in_one_line(of, given, said):
    with pytest.raises(sl.InputError, match=said) as wrong:
        of(*given)
    assert "\n" not in str(wrong.value)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("h100", "'h100-96gb-500w' or 'dgx-h100'"),
        ("DGX-A100", "'dgx-a100'"),
        ("a100", "'a100-pcie', 'dgx-a100', 'vtrain-a100' or 'dgx-a100-40gb'"),
        ("dgx-h10", "'dgx-h100'"),
        ("dgxh100", "'dgx-h100'"),
    ],
)
def test_all_names_that_have_the_text_in_them_are_meant_and_else_the_nearest(name, said):
    assert did_you_mean(name, sl.clusters()) == f", did you mean {said}?"


@pytest.mark.parametrize("name", ["", "x", 8, None, "nothing like it"])
def test_what_is_like_nothing_is_not_guessed(name):
    assert did_you_mean(name, sl.clusters()) == ""


@pytest.mark.parametrize(("file", "name"), [("mine/config.json", "mine"), ("mine/13b.json", "13b")])
def test_a_models_file_names_it_unless_it_is_called_as_all_are(tmp_path, file, name):
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    more = {"vocab_size": 100, "intermediate_size": 128, "max_position_embeddings": 32}
    (tmp_path / "mine").mkdir()
    (tmp_path / file).write_text(json.dumps({"model_type": "llama", **sizes, **more}))
    assert sl.load_model(str(tmp_path / file)).name == name
