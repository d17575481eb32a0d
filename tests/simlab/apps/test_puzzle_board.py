"""The puzzle's board without a browser."""

import simlab as sl
from simlab.apps import PuzzleBoard

PUZZLE = sl.Puzzle(3, 4, sl.OpTimes(forward_s=1e-3, input_grad_s=1e-3, weight_grad_s=1e-3), 3)


def test_the_button_judges_what_stands_in_the_box_and_draws_it():
    board = PuzzleBoard(PUZZLE)
    first = bytes(board.picture.value)
    assert "longer than the best known" in board.verdict.value and first.startswith(b"\x89PNG")
    board.text.value = str(sl.generate("zb-h1", 3, 4))
    board.button.click()
    assert "optimal" in board.verdict.value and bytes(board.picture.value) != first


def test_an_answer_that_is_no_program_is_quoted_as_text_not_as_markup_and_hides_the_picture():
    board = PuzzleBoard(PUZZLE, "<i>0F0</i>")
    assert "&lt;i&gt;0F0" in board.verdict.value and "<i>" not in board.verdict.value
    assert board.picture.layout.display == "none"
