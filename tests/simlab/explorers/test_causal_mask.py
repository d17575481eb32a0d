"""The causal mask by rank: counted pair by pair, and the waits of the ring's steps."""

import pytest

from simlab.explorers import explorer

MASK = explorer("causal_mask")
SIZE = 64


def owner(token, cp, layout):
    """The rank of a token: Llama 3 (2024), section 3.3.2, gives rank r chunks r and 2 cp - 1 - r."""
    if layout == "contiguous":
        return token * cp // SIZE
    chunk = token * 2 * cp // SIZE
    return min(chunk, 2 * cp - 1 - chunk)


def pictures(cp, layout, step):
    found = MASK.answer(MASK.start(cp=cp, step=step)).pictures
    return {picture.key: picture for picture in found}


def cells(chart):
    """{(query, key): [(colour, pattern) of what lies there, the lowest first]} of a mask's boxes."""
    found = {}
    for mark in chart.marks:
        for x0, x1, y0, y1 in zip(mark.x0, mark.x1, mark.y0, mark.y1):
            for query in range(y0, y1):
                for key in range(x0, x1):
                    found.setdefault((query, key), []).append((mark.colour, mark.pattern))
    return found


@pytest.mark.parametrize("layout", ["contiguous", "zigzag"])
@pytest.mark.parametrize(("cp", "step"), [(2, 0), (4, 1), (8, 5)])
def test_every_unmasked_pair_has_the_colour_of_its_querys_rank_and_no_other_pair_has_one(
    cp, step, layout
):
    chart = pictures(cp, layout, step)[f"mask {layout}"]
    drawn = cells(chart)
    assert set(drawn) == {(query, key) for query in range(SIZE) for key in range(query + 1)}
    colours = {}
    for (query, key), [(colour, pattern), *above] in drawn.items():
        rank, holder = owner(query, cp, layout), owner(key, cp, layout)
        assert colours.setdefault(rank, colour) == colour
        now = (rank - holder) % cp == step
        assert pattern == "plain" and above == [(colour, "striped")] * now
    assert len(set(colours.values())) == cp
    named = {mark.name.en: mark.colour for mark in chart.marks if mark.pattern == "plain"}
    assert named == {f"rank {rank}": colour for rank, colour in colours.items()}


@pytest.mark.parametrize("layout", ["contiguous", "zigzag"])
@pytest.mark.parametrize("cp", [2, 4, 8])
def test_a_ranks_time_is_its_scores_and_the_rest_is_waiting(cp, layout):
    steps = pictures(cp, layout, 0)[f"steps {layout}"]
    pairs = [0.0] * cp  # on the diagonal half a pair, as a mask of many tokens leaves
    for query in range(SIZE):
        pairs[owner(query, cp, layout)] += query + 0.5
    end = max(x for mark in steps.marks for x in mark.x1)
    waits = [0.0] * cp
    for mark in steps.marks:
        long = sum(mark.x1) - sum(mark.x0)
        if mark.colour == "waiting":
            for x0, x1, y0 in zip(mark.x0, mark.x1, mark.y0):
                waits[round(y0 + 0.4)] += x1 - x0
        else:
            rank = round(mark.y0[0] + 0.4)
            assert long == pytest.approx(cp * pairs[rank] / (SIZE**2 / 2))
            pairs[rank] = long
    assert [long + wait for long, wait in zip(pairs, waits)] == pytest.approx([end] * cp)
    assert end == pytest.approx(1 if layout == "zigzag" else (2 * cp - 1) / cp)


def test_figures_say_how_long_ranks_wait_on_average():
    answer = MASK.answer(MASK.start(cp=2))
    # contiguous: rank 0 has 1 of 4 half blocks, rank 1 has 3 of them, so rank 0 waits 2/3
    assert [row.values for row in answer.figures] == [
        ["25.00%", "50.00%"],
        ["75.00%", "50.00%"],
        ["33.33%", "0.00%"],
    ]
    assert answer.values == {"step": [0, 1]} and "1.5 times" in answer.note.en


@pytest.mark.parametrize("cp", [2, 4])
def test_the_shares_are_whole_in_the_digits_that_are_shown(cp):
    """Of 2 or 4 ranks they are sixteenths: 6.25% is not 6.2%."""
    found = MASK.answer(MASK.start(cp=cp)).figures[:2]
    for figure in found:
        for text in figure.values:
            assert (16 * float(text.rstrip("%")) / 100).is_integer()
