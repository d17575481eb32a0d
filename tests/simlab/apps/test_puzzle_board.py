"""The puzzle's board without a browser: it keeps the learner's best orders."""

import re

import simlab as sl
from simlab.apps import PuzzleBoard
from simlab.apps.puzzle import _bests_html
from simlab.apps.screen import Session
from simlab.explorers.puzzle import LEVELS
from simlab.units import seconds_text


def rows(board):
    """{whose order: [its step, what it holds]}."""
    return {
        head: [figure.values[at] for figure in board.shown.figures]
        for at, head in enumerate(board.shown.heads)
    }


def test_an_order_is_judged_and_the_best_one_is_kept_for_the_next_time():
    board = PuzzleBoard(level=4, tongue="en")
    assert rows(board)["your best"] == ["–", "–"]  # the start is within the cap, but nobody's order
    board.state = board.state | {"order": str(sl.generate("zb-h1", 3, 4))}
    assert "no order can be shorter" in board.shown.note.en
    assert rows(board)["your order"] == rows(board)["your best"] == ["14.0 ms", "3"]
    board.state = board.state | {"order": sl.Puzzle.start.fget(board_puzzle(4))}
    assert rows(board)["your order"] == ["28.0 ms", "1"]
    assert rows(PuzzleBoard(level=4))["your best"] == ["14.0 ms", "3"]


def board_puzzle(level):
    from simlab.explorers.puzzle import LEVELS

    return LEVELS[level - 1].puzzle


def test_of_equal_steps_the_one_that_holds_less_is_the_better_and_too_much_memory_counts_nothing():
    board = PuzzleBoard(level=2, order=str(sl.generate("gpipe", 3, 4)), tongue="en")
    assert rows(board)["your best"] == ["18.0 ms", "4"]
    board.state = board.state | {"order": str(sl.generate("1f1b", 3, 4))}
    assert rows(board)["your best"] == ["18.0 ms", "3"]
    over = PuzzleBoard(level=3, order=str(sl.generate("gpipe", 3, 6)), tongue="en")
    assert "Too much memory: rank 0 holds 4 microbatches" in over.shown.note.en
    assert rows(over)["your best"] == ["–", "–"]


def test_where_no_rank_can_go_on_there_is_a_reason_and_no_picture():
    text = board_puzzle(1).start.replace("0F0 0B0", "0B0 0F0")
    board = PuzzleBoard(level=1, order=text, tongue="en")
    assert "rank 0 stops at B0, which needs F0" in board.shown.note.en and board.still() is None
    assert rows(board)["your order"] == ["–", "–"]
    assert repr(board).startswith("PuzzleBoard(order='0B0 0F0")


def test_the_table_of_bests_has_par_of_each_level_and_what_the_learner_has_reached():
    def cells():
        lines = re.findall(r"<tr>(.*?)</tr>", _bests_html(), re.DOTALL)
        return [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", line) for line in lines]

    assert [row[3:] for row in cells()[1:]] == [["–", "–", ""]] * len(LEVELS)
    board = PuzzleBoard(level=2, order=str(sl.generate("gpipe", 3, 4)), tongue="en")
    assert cells()[2][1:] == ["18.0 ms", "3", "18.0 ms", "4", "par time, more memory"]
    board.state = board.state | {"order": str(sl.generate("1f1b", 3, 4))}
    assert cells()[2][3:] == ["18.0 ms", "3", "par"]
    PuzzleBoard(level=4, tongue="en")
    assert cells()[4][1:] == ["14.0 ms", "3", "–", "–", ""], "a start is nobody's order"
    worse = board_puzzle(4).start.replace("0W0 0F1", "0F1 0W0")
    PuzzleBoard(level=4, order=worse, tongue="en")
    assert cells()[4][-1] == "longer than par"
    for row, level in zip(cells()[1:], LEVELS, strict=True):
        found = level.puzzle
        assert row[:3] == [
            level.name.en,
            seconds_text(found.shortest_s),
            f"{found.least_held:g}",
        ]


def test_a_better_order_changes_the_table_that_is_shown(monkeypatch):
    told = []
    session = Session()
    session.retold.append(lambda: told.append(1))
    monkeypatch.setattr("simlab.apps.puzzle.session", lambda: session)
    board = PuzzleBoard(level=2, order=str(sl.generate("gpipe", 3, 4)))
    before = len(told)
    board.state = board.state | {"order": str(sl.generate("1f1b", 3, 4))}
    assert len(told) == before + 1
    board.state = board.state | {"order": str(sl.generate("gpipe", 3, 4))}
    assert len(told) == before + 1, "the worse order changes nothing"
