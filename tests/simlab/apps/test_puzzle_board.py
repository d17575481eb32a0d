"""The puzzle's board without a browser: it keeps the learner's best orders."""

import pytest

import simlab as sl
from simlab.apps import PuzzleBoard


@pytest.fixture(autouse=True)
def progress(tmp_path, monkeypatch):
    monkeypatch.setenv("SIMLAB_PROGRESS", str(tmp_path / "progress.json"))


def rows(board):
    """{whose order: [its step, what it holds]}."""
    return {
        head: [figure.values[at] for figure in board.shown.figures]
        for at, head in enumerate(board.shown.heads)
    }


def test_an_order_is_judged_and_the_best_one_is_kept_for_the_next_time():
    board = PuzzleBoard(level=4, tongue="en")
    assert rows(board)["your best"] == ["28.0 ms", "1"]  # the start is within the cap
    board.state = board.state | {"order": str(sl.generate("zb-h1", 3, 4))}
    assert "no order can be shorter" in board.shown.note.en
    assert rows(board)["your order"] == rows(board)["your best"] == ["14.0 ms", "3"]
    board.state = board.state | {"order": sl.Puzzle.start.fget(board_puzzle(4))}
    assert rows(board)["your order"] == ["28.0 ms", "1"]
    assert rows(PuzzleBoard(level=4))["your best"] == ["14.0 ms", "3"]
    assert rows(PuzzleBoard(level=5))["your best"] == ["50.0 ms", "1"]


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
