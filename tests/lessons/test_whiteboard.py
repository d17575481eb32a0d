"""Whiteboard cases: what is right is what the simulator says of the numbers that the learner is told, and a
calculation by the hints comes close enough to it."""

import re
from collections import Counter
from functools import cache
from random import Random

import pytest

from simlab import Plan
from simlab.lessons import words
from simlab.lessons.drill import boards, rounds
from simlab.lessons.drill.artefacts.recorders import REASONS
from simlab.lessons.drill.boards import models, running
from simlab.lessons.drill.boards.board import FUNCTIONS, NAME
from simlab.lessons.drill.items import Item, pose
from simlab.lessons.drill.session import Session
from simlab.operations import Prices, training_cost, young_interval_s

DRAWS = 100
STATES = ("parameters", "gradients", "optimizer")


@cache
def drawn(name):
    return [boards.board(name).drawn(str(seed)) for seed in range(DRAWS)]


@pytest.mark.parametrize("name", boards.BOARDS)
def test_a_calculation_by_the_hints_is_within_the_tolerance_of_what_is_expected(name):
    board = boards.board(name)
    for case in drawn(name):
        for stage in board.stages:
            if stage.hand:
                by_hand = boards.by_hand(stage.hand, case.known(board.before(stage)))
                on_the_board = float(f"{by_hand:.3g}")
                assert on_the_board == pytest.approx(
                    case.expected[stage.name], rel=stage.tolerance
                ), (stage.name, case.given)


@pytest.mark.parametrize("name", ["llama3", "deepseek"])
def test_a_case_tells_what_a_choice_means_and_not_its_name_in_a_plan(monkeypatch, name):
    names = {value for case in drawn(name) for value in case.given.values() if type(value) is str}
    assert names <= {*words.entry("boards.said", tongue="en")}
    monkeypatch.setenv("SIMLAB_LANG", "zh")
    part = rounds.parts(Item("board", name))[0]
    told = "".join(pose(part, str(seed)).text for seed in range(20))
    assert not [
        one for one in names if f"{one}；" in told or f"{one}。" in told or f"'{one}'" in told
    ]


@pytest.mark.parametrize("name", ["fell", "hang", "budget"])
def test_no_guess_is_right_whatever_the_numbers(name):
    for stage in boards.board(name).stages:
        if stage.hand:
            right = [case.expected[stage.name] for case in drawn(name)]
            taken = [sum(abs(a - b) <= stage.tolerance * b for b in right) for a in right]
            assert max(taken) < 0.75 * DRAWS, stage.name


@pytest.mark.parametrize("name", boards.BOARDS)
def test_what_is_written_on_the_board_gives_what_was_calculated(name):
    board = boards.board(name)
    for case in drawn(name):
        for stage in board.stages:
            if stage.hand:
                known = case.known(board.before(stage))
                shown = boards.written(stage.hand, known).replace("×", "*").replace("^", "**")
                its = eval(shown, {"__builtins__": {}}, FUNCTIONS)
                assert its == pytest.approx(boards.by_hand(stage.hand, known), rel=0.01), shown


@pytest.mark.parametrize("name", boards.BOARDS)
def test_numbers_are_drawn_anew_and_the_same_seed_draws_the_same(name):
    assert len({str(case.given) for case in drawn(name)}) >= 8
    board = boards.board(name)
    assert board.draw(Random(f"board {name} 5")) == drawn(name)[5]


@pytest.mark.parametrize("name", boards.BOARDS)
def test_every_number_of_a_calculation_is_told_or_said_in_a_hint(name):
    """A name that the text does not tell is one that a hint gives the values of."""
    board, from_hints = boards.board(name), {"kept", "forwards", "copies", "nodes"}
    text = words.word(f"boards.{name}.text")
    told = {*re.findall(r"{(\w+)[^}]*}", text)}
    assert told <= {*drawn(name)[0].given}
    for stage in board.stages:
        used = {*NAME.findall(re.sub(r"\d[\d.]*e\d+", "", stage.hand))} - {*FUNCTIONS}
        earlier = {one.name for one in board.before(stage)}
        assert used <= told | earlier | from_hints, stage.name


def told_plan(given, **more):
    return Plan(dp=given["dp"], microbatches=given["microbatches"], zero=1, **more)


def of_llama3(given):
    plan = told_plan(
        given, tp=8, pp=given["pp"], seq=8192, sequence_parallel=True, recompute=given["recompute"],
        schedule="interleaved-1f1b", chunks=given["chunks"], stage_layers="ends-count-as-layers",
    )  # fmt: skip
    assert plan.gpus == 16384
    found, sent = models.predicted(models.LLAMA, plan, "dgx-h100"), models.sent(models.LLAMA, plan)
    held = found.held[1]
    return {
        "states": sum(held[name] for name in STATES) / 1e9, "activations": held["activations"] / 1e9,
        "tp_sent": sent[1].tp / 1e9, "dp_sent": sent[1].dp / 1e9,
        "step": found.step_s, "mfu": 100 * found.mfu,
    }  # fmt: skip


def of_deepseek(given):
    plan = told_plan(
        given, pp=given["pp"], ep=64, seq=given["seq"], recompute=given["recompute"],
        stage_layers="uneven", dispatcher=given["dispatcher"],
    )  # fmt: skip
    assert plan.gpus == 2048
    found = models.predicted(models.DEEPSEEK, plan, "h800")
    assert found.fits
    return {
        "active": found.model.flops_per_token(given["seq"]) / 1e9,
        "states": sum(found.held[3][name] for name in STATES) / 1e9,
        "sent": models.sent(models.DEEPSEEK, plan)[3].ep / 1e9,
        "all_to_alls": found.waterfall_s.ep, "step": found.step_s, "mfu": 100 * found.mfu,
    }  # fmt: skip


def of_million(given):
    plan = told_plan(
        given, tp=8, cp=given["cp"], seq=2**20, sequence_parallel=True, recompute="full"
    )
    assert plan.gpus == given["gpus"] and plan.global_batch == given["sequences"]
    found = models.predicted(models.LONG, plan, "dgx-h100")
    assert found.fits
    layer = found.model.layer_flops(2**20)
    attention = 3 * 80 * (layer["scores"] + layer["values"]) / found.model.flops_per_token(2**20)
    return {
        "attention": 100 * attention,
        "states": sum(found.held[0][name] for name in STATES) / 1e9,
        "activations": found.held[0]["activations"] / 1e9,
        "ring": models.sent(models.LONG, plan)[0].cp / 1e9, "step": found.step_s, "mfu": 100 * found.mfu,
    }  # fmt: skip


@pytest.mark.parametrize("of_case", [of_llama3, of_deepseek, of_million])
def test_what_is_expected_of_a_model_is_what_the_simulator_says_of_what_is_told(of_case):
    for case in drawn(of_case.__name__.removeprefix("of_")):
        assert case.expected == pytest.approx(of_case(case.given))


def test_what_is_expected_of_a_fallen_mfu_is_the_two_simulations():
    for case in drawn("fell"):
        part = {row[0]: [float(cell) for cell in row[1:]] for row in case.rows[1:]}
        spent = [
            sum(cells[at] for name, cells in part.items() if name.endswith("ms")) for at in (0, 1)
        ]
        assert case.expected["longer"] == pytest.approx(100 * (spent[1] / spent[0] - 1), abs=0.4)
        freed = part["activations, GB"][1] < 0.5 * part["activations, GB"][0]
        hfu = part["HFU, %"][1] > 0.98 * part["HFU, %"][0]
        grown = max(part, key=lambda name: part[name][1] - part[name][0] if "ms" in name else 0)
        of_network = part["dp, ms"][1] > 4 * part["dp, ms"][0]
        told = "recompute" if freed and hfu else "network" if of_network else grown.split(",")[0]
        assert case.expected["cause"] == {"compute": "clock", "bubble": "schedule"}.get(told, told)


def test_what_is_expected_of_a_hang_is_the_diagnosis_of_its_dumps_and_the_closed_forms():
    for case in drawn("hang"):
        last = {row[0]: tuple(row[1:4]) for row in case.rows[1:]}  # number, kind, size
        common, ranks = Counter(last.values()).most_common(1)[0]
        (odd,) = (rank for rank, call in last.items() if call != common)
        assert ranks == 7 and odd == f"rank {case.expected['rank']:.0f}"
        differs = [mine != others for mine, others in zip(last[odd], common)].index(True)
        assert case.expected["reason"] == REASONS[differs]
        mtbf_s = 86400 / case.given["failures"]
        young = young_interval_s(case.given["stall"], mtbf_s) / 60
        assert case.expected["interval"] == pytest.approx(young, rel=0.05)


def test_what_is_expected_of_a_budget_is_the_simulated_speed_and_cost():
    for case in drawn("budget"):
        given, right = case.given, case.expected
        dp = given["gpus"] // (given["pp"] * running.LAYOUTS[given["model"]][0])
        for times, microbatches, cost in (
            (1, given["microbatches"], given["budget"]),
            (2, given["microbatches"] // 2, right["twice"]),
        ):
            found = running.pipelined(given["model"], times * dp, microbatches)
            assert found.fits
            paid = training_cost(
                tokens=1e9 * right["tokens"], tokens_per_s=found.tokens_per_s, gpus=found.plan.gpus,
                prices=Prices(gpu_hour=given["price"]), goodput=given["goodput"] / 100,
            )  # fmt: skip
            assert paid.total == pytest.approx(1e6 * cost)
        assert right["days"] == pytest.approx(
            1e6 * given["budget"] / given["price"] / given["gpus"] / 24
        )


@pytest.mark.parametrize("tongue", words.LANGUAGES)
@pytest.mark.parametrize("name", boards.BOARDS)
def test_every_stage_is_asked_with_hints_and_answered(monkeypatch, tongue, name):
    monkeypatch.setenv("SIMLAB_LANG", tongue)
    for part in rounds.parts(Item("board", name)):
        asked = pose(part, "3")
        assert "{" not in asked.text and len(asked.hints) in (2, 3)
        right = asked.read({"answer": str(asked.answer["answer"])})
        assert asked.right(right) and len(asked.said(right)) == 2
        unit = asked.unit("answer")
        assert tongue == "en" or not re.search(r"days|k\$|GPUs", unit), unit


def test_a_case_is_asked_stage_by_stage_with_the_same_numbers():
    session = Session(3, "7", ["fell", "budget"])
    assert session.count == sum(len(boards.board(name).stages) for name in ("fell", "budget"))
    first = rounds.whole(Item(*session.state["items"][0])).name
    stages = boards.board(first).stages
    expected = boards.board(first).drawn("7 0").expected
    for stage in stages:
        asked = session.question()
        assert asked.answer["answer"] == expected[stage.name]
        session.answer({"answer": str(asked.answer["answer"])}, hints=1)
    assert session.right == len(stages) and session.state["results"][0]["hints"] == 1
    second = session.question().item
    assert rounds.whole(second).name != first and Session.kept().question().item == second
