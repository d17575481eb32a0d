"""The schemas of plan and cluster files are true: what they refuse, the readers refuse, and what the
readers take, they take."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from docs import generate
from docs.schemas import SCHEMAS, cluster_file, plan_file
from realrun.cli.jobs import jobs, values
from realrun.cli.main import parser
from simlab.errors import InputError
from simlab.spec.cluster import clusters, load_cluster

PLAN, CLUSTER = Draft202012Validator(plan_file()), Draft202012Validator(cluster_file())
ENTRIES = json.loads((generate.ROOT / "simlab" / "spec" / "data" / "clusters.json").read_text())
WRONG = [True, -1, 2, 1.5, 1e400, "", "abc", "1f1b", "2", [], [1, 2], ["a"], {}, {"a": 1}, [[1.0]]]
JSON = st.recursive(
    st.sampled_from([None, *WRONG]), lambda inner: st.lists(inner, max_size=2), max_leaves=3
)
QUICK = settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=60)


@pytest.fixture
def takes_plan(tmp_path):
    """{name: value} → whether realrun, which reads all names, takes a plan file of that."""

    def takes(content):
        path = tmp_path / "plan.yaml"
        path.write_text(json.dumps(content).replace("Infinity", ".inf"))
        try:
            return bool(jobs(values(parser().parse_args(["--plan", str(path)]))))
        except InputError:
            return False

    return takes


@pytest.fixture
def takes_cluster(tmp_path):
    """Facts → whether a cluster file of them is taken."""

    def takes(facts):
        path = tmp_path / "cluster.json"
        path.write_text(json.dumps(facts))
        try:
            return bool(load_cluster(path))
        except InputError:
            return False

    return takes


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_schema_is_one(name):
    Draft202012Validator.check_schema(json.loads((generate.HERE / name).read_text()))


@pytest.mark.parametrize("name", PLAN.schema["properties"])
def test_a_value_that_the_schema_of_plan_files_refuses_is_refused(takes_plan, name):
    refused = [value for value in WRONG if not PLAN.is_valid({name: value})]
    assert refused  # else it says nothing of this name
    assert [value for value in refused if takes_plan({name: value})] == []


@pytest.mark.parametrize("name", PLAN.schema["properties"])
def test_the_default_of_a_name_is_taken_by_schema_and_reader(takes_plan, name):
    its = PLAN.schema["properties"][name]
    for value in {"nothing": None, "default": its.get("default")}.values():
        assert PLAN.is_valid({name: value}) and takes_plan({name: value})


@QUICK
@given(st.dictionaries(st.sampled_from([*PLAN.schema["properties"], "?"]), JSON, max_size=3))
def test_what_realrun_takes_the_schema_takes(takes_plan, content):
    assert PLAN.is_valid(content) or not takes_plan(content)


@pytest.mark.parametrize("name", ENTRIES)
def test_the_catalogue_holds_the_schema(takes_cluster, name):
    assert CLUSTER.is_valid(ENTRIES[name]) and takes_cluster(ENTRIES[name])
    whole = json.loads(json.dumps(clusters()[name].to_dict()).replace("Infinity", "1e999"))
    del whole["more"]
    assert CLUSTER.is_valid(whole)


@pytest.mark.parametrize("part", ["", "gpu", "intra"])
def test_a_figure_that_the_schema_of_cluster_files_refuses_is_refused(takes_cluster, part):
    facts = json.loads(json.dumps(clusters()["dgx-a100"].to_dict()).replace("Infinity", "1e999"))
    del facts["more"]
    assert takes_cluster(facts)
    for name in facts[part] if part else facts:
        for value in (None, *WRONG):
            changed = {name: value}
            changed = facts | ({part: facts[part] | changed} if part else changed)
            assert CLUSTER.is_valid(changed) or not takes_cluster(changed), (name, value)


@QUICK
@given(st.sampled_from(sorted(ENTRIES)), st.dictionaries(st.text(max_size=3), JSON, max_size=2))
def test_another_figure_is_refused_by_both(takes_cluster, name, more):
    changed = ENTRIES[name] | more
    assert CLUSTER.is_valid(changed) == (not more) == takes_cluster(changed)
