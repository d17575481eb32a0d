"""How far a prediction may be off is told from what was recorded of published runs, and from nothing else."""

import re
from dataclasses import replace
from pathlib import Path
from statistics import mean

import pytest

import simlab as sl
from simlab.training.uncertainty import recorded

PAGE = (Path(__file__).parents[3] / "docs" / "validation.md").read_text(encoding="utf-8")
VALIDATION = PAGE.split("### Which layout is chosen")[0]
DENSE, EXPERTS = sl.load_model("llama-3-8b"), sl.load_model("mixtral-8x7b")


def told(cluster, model=DENSE, **plan):
    return sl.predict(model, sl.Plan(dp=8, zero=1, **plan), cluster).uncertainty


def node(cluster, **gpu):
    cluster = sl.load_cluster(cluster)
    return replace(cluster, gpus_per_node=8, gpu=replace(cluster.gpu, **gpu))


def test_what_is_recorded_has_the_errors_of_each_suite_that_the_page_shows():
    rows = re.findall(
        r"^\| (\w+) \| (\d+) \| ([\d.]+) \| ([\d.]+) \| (-?[\d.]+) \|", VALIDATION, re.M
    )
    assert len(rows) > 30
    for suite, count, off, worst, bias in rows:
        errors = [100 * e for its in recorded() if its.suite == suite for e in its.errors]
        assert len(errors) == int(count), suite
        found = mean(map(abs, errors)), max(map(abs, errors)), mean(errors)
        assert found == pytest.approx((float(off), float(worst), float(bias)), abs=0.11), suite


def test_the_errors_of_its_kind_are_summed_up():
    its = told(node("dgx-h100"))
    (suite,) = (each for each in recorded() if each.suite == "nvidia_dgxc_h100_bf16")
    absolute = sorted(map(abs, suite.errors))
    assert its.suites == (suite.suite,) and its.runs == len(absolute) == 12 and its.is_near
    assert its.error == pytest.approx(sum(absolute) / 12) and its.nine_in_ten == absolute[10]
    assert its.bias == pytest.approx(sum(suite.errors) / 12) and its.differs == ()
    assert str(its).endswith("in 12 published runs of nvidia_dgxc_h100_bf16")


@pytest.mark.parametrize(
    ("cluster", "model", "plan", "differs"),
    [
        (node("dgx-h200"), DENSE, {"precision": "fp8"}, ("GPU",)),
        (node("h800", name="my own"), DENSE, {}, ("GPU",)),
        (node("dgx-h100"), DENSE, {"precision": "fp8", "library": "torch"}, ("GPU",)),
        (node("dgx-h100"), EXPERTS, {"ep": 8}, ()),
        (node("dgx-a100"), EXPERTS, {"ep": 8}, ("architecture",)),
        (node("dgx-v100"), DENSE, {"precision": "fp16"}, ("architecture",)),
        (node("laptop"), DENSE, {"precision": "fp32"}, ("architecture", "precision")),
    ],
)
def test_the_runs_are_of_the_nearest_kind_and_where_none_is_near_it_says_so(
    cluster, model, plan, differs
):
    its = told(cluster, model, **plan)
    assert its.differs == differs
    assert its.is_near == (differs in ((), ("GPU",)))
    assert str(its).startswith("not known: the nearest are off by") == (not its.is_near)
    assert ("which differ in" in str(its)) == bool(differs)
    assert ("the error of such predictions" in its.tie_text) == its.is_near
    assert ("of these it is not known" in its.tie_text) == (not its.is_near)
    alike = {each.suite for each in recorded() if each.kind.experts == (model.experts > 0)}
    assert {*its.suites} <= alike
