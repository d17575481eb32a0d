"""The groups of a GPU against a count of the ranks that each node holds."""

from collections import Counter
from dataclasses import fields, replace
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import simlab as sl
from simlab.cost.groups import Groups, _group

A100 = sl.load_cluster("dgx-a100")
DEGREES = st.sampled_from([1, 2, 4, 8])
ORDERS = ["-".join(order) for order in permutations(("tp", "cp", "dp", "pp"))]


@given(
    st.fixed_dictionaries(dict.fromkeys(("tp", "cp", "dp", "pp"), DEGREES)),
    st.sampled_from(ORDERS),
    st.sampled_from([1, 2, 4, 8]),
    st.booleans(),
)
def test_a_group_has_as_many_ranks_in_each_node_as_are_counted_there(
    degrees, order, gpus_per_node, hybrid
):
    """Of powers of two, so that each node has as many of a group as the next one."""
    plan = sl.Plan(
        **degrees, order=order, microbatches=8, hybrid=degrees["dp"] if hybrid else 0, zero=1
    )
    cluster = replace(A100, gpus_per_node=gpus_per_node, nodes=-(-plan.gpus // gpus_per_node))
    groups = Groups.of(plan, cluster)
    for name in (one.name for one in fields(Groups)):
        offsets, shape = plan.layout.offsets(name), getattr(groups, name)
        held = Counter(offset // gpus_per_node for offset in offsets)
        assert len(set(held.values())) == 1, name
        assert (shape.size, shape.nodes) == (len(offsets), len(held)), name


@pytest.mark.parametrize(
    ("ranks", "in_node", "per_node"), [(6, 4, 3), (6, 5, 3), (10, 8, 5), (6, 2, 2), (7, 4, 1)]
)
def test_ranks_that_do_not_fill_nodes_alike_count_as_if_they_did(ranks, in_node, per_node):
    """As many in each node as divide them, and no more than the first node holds: here two blocks of
    ranks with a gap between them, of which a node holds `in_node`."""
    offsets = (*range(in_node), *range(in_node + 1, ranks + 1))
    cluster = replace(A100, gpus_per_node=in_node + 1, nodes=ranks)
    shape = _group(offsets, cluster)
    assert (shape.size, shape.per_node) == (ranks, per_node)
