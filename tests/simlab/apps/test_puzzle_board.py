"""The puzzle's board and the explorer's menus without a browser."""

import simlab as sl
from simlab.apps import PipelineExplorer, PuzzleBoard

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


def test_a_menu_shows_another_schedule_with_op_kinds_that_were_not_there_before():
    explorer = PipelineExplorer(("gpipe", "1f1b"), choose=True)
    explorer.menus[1].value = "zb-v"
    of_gpipe, of_zb_v = (panel["kinds"].decode() for panel in explorer.picture.panels)
    assert (of_gpipe.count("B"), of_zb_v.count("B")) == (32, 0)
    assert of_zb_v.count("I") == of_zb_v.count("W") == 64
    assert explorer.picture.panels[1]["used"] == "FIW"
    assert "<b>zb-v</b>" in explorer.table.value


def test_numbers_that_a_schedule_cannot_do_are_said_and_the_picture_stays():
    explorer = PipelineExplorer(("gpipe", "1f1b"), choose=True)
    explorer.menus[1].value = "dualpipe"
    title = explorer.picture.panels[1]["title"]
    explorer.stages.value = 3
    assert (
        "dualpipe on 3 ranks" in explorer.table.value
        and explorer.picture.panels[1]["title"] == title
    )
    explorer.stages.value = 2
    assert "<b>dualpipe</b>" in explorer.table.value
