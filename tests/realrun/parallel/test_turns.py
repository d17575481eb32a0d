"""Two ops that take turns on one rank: in the order of simlab's lists, whatever their layers, and neither
outlives the other one's failure."""

import threading
from itertools import zip_longest

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from realrun.parallel.side_by_side import SideBySide, turns_of
from simlab.lowering.expansion import in_turns

LAYERS = st.lists(st.sampled_from([1, 3]), max_size=4)
END = st.sampled_from([[], [1]])


@st.composite
def ops(draw):
    """The units of an op: (whether it is a layer, in how many parts all-to-alls cut it)."""
    units = [
        *((False, parts) for parts in draw(END)),
        *((True, parts) for parts in draw(LAYERS)),
        *((False, parts) for parts in draw(END)),
    ]
    return units or [(True, 1)]


def is_layer(unit):
    """See `ops`."""
    return unit[0]


def listed(forward, backward):
    """[(op, unit, part)] in the order of a list, and what follows a backward's unit: its reduction."""
    found = []
    numbered = [list(enumerate(units)) for units in (forward, backward)]
    for ahead, back in in_turns(*numbered, lambda unit: unit[1][0]):
        parts = [
            [(name, unit[0], part) for part in range(unit[1][1])] if unit else []
            for name, unit in (("B", back), ("F", ahead))
        ]
        found += [part for both in zip_longest(*parts) for part in both if part]
        found += [("reduction", back[0])] if back else []
    return found


def done(pair, name, units, found):
    """An op that notes in `found` what it does."""

    def op():
        for number, (_, parts) in enumerate(units):
            pair.begins()
            for part in range(parts):
                if part:
                    pair.waits()
                found.append((name, number, part))
            pair.ends()
            if name == "B":
                found.append(("reduction", number))
        return name

    return op


@given(ops(), ops())
@settings(deadline=None)
def test_two_ops_do_what_the_list_says_in_its_order(forward, backward):
    pair, found = SideBySide(turns_of(forward, backward, is_layer)), []
    own = done(pair, "F", forward, found), done(pair, "B", backward, found)
    assert pair.results(*own, set_device=lambda: None) == ("F", "B")
    assert found == listed(forward, backward)


@pytest.mark.parametrize("failing", ["F", "B"])
@pytest.mark.parametrize("at", [0, 1])
def test_what_fails_in_one_of_them_is_raised_and_ends_the_other(failing, at):
    units = [(True, 3), (True, 3)]
    pair, found = SideBySide(turns_of(units, units, is_layer)), []

    def op(name):
        go_on = done(pair, name, units[: at + 1] if name == failing else units, found)

        def its():
            go_on()
            if name == failing:
                raise ZeroDivisionError(name)
            return name

        return its

    with pytest.raises(ZeroDivisionError, match=failing):
        pair.results(op("F"), op("B"), set_device=lambda: None)
    for thread in threading.enumerate():
        if thread.name == "backward of a pair":
            thread.join(5)
            assert not thread.is_alive()
