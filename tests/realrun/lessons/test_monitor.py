"""The panel that a notebook shows while a training runs."""

from base64 import b64decode

import pytest

from realrun.launch.pool import Pool
from realrun.lessons.monitor import TrainingMonitor
from realrun.run.job import Job
from simlab.views.language import CHINESE_PNG
from simlab.views.still.wording import chinese_font


def now(step, losses, slow=()):
    """What is said at `step` of 4."""
    ranks = [
        {"computed_s": 1.0, "waited_s": 1.0, "activations": 2**20},
        {"computed_s": 1.7, "waited_s": 0.3, "activations": 2**20},
    ]
    figures = {"step": step, "steps": 4, "step_s": 0.1, "tokens_per_s": 1e3, "mfu": None}
    return figures | {"name": "tp2", "losses": losses, "ranks": ranks, "slow": slow}


def test_it_keeps_the_losses_of_a_training_and_begins_a_new_one_anew():
    monitor = TrainingMonitor()
    monitor.show(now(2, [3.0, 2.0]))
    monitor.show(now(3, [1.5], slow=[[1, 1.7]]))
    assert monitor.losses == [3.0, 2.0, 1.5] and (monitor.bar.value, monitor.bar.max) == (3, 4)
    assert (
        monitor.text.value
        == "step 3 of 4 · loss 1.5000 · 100.0 ms · 1,000 tokens/s · 32% waiting · 1.0 MiB of activations"
    )
    assert monitor._repr_mimebundle_()["image/png"]
    assert CHINESE_PNG not in monitor._repr_mimebundle_()
    monitor.show(now(1, [3.1]))
    assert monitor.losses == [3.1]


def test_it_speaks_the_learners_language_and_a_copy_for_reading_has_both(monkeypatch):
    monkeypatch.setenv("SIMLAB_LANG", "zh")
    monitor = TrainingMonitor()
    monitor.show(now(3, [1.5]))
    told = "第 3 步，共 4 步 · loss 1.5000 · 100.0 ms · 1,000 tokens/s · 32% 的时间在等待 · 激活 1.0 MiB"
    assert monitor.text.value == told
    chinese = monitor.picture.value
    monkeypatch.setenv("SIMLAB_LESSONS", "rendered")
    monkeypatch.setenv("SIMLAB_LANG", "en")
    monitor.show(now(3, [1.5]))
    assert b64decode(monitor._repr_mimebundle_()[CHINESE_PNG]) == chinese
    assert (chinese != monitor.picture.value) == (chinese_font() is not None)


def test_steps_are_whole_numbers_and_waits_are_hatched_as_everywhere():
    monitor = TrainingMonitor()
    curve, bars = monitor._picture(now(2, [3.0, 2.0])).axes
    assert all(float(tick).is_integer() for tick in curve.get_xticks())
    waits = [bar for bar in bars.patches if bar.get_hatch()]
    assert len(waits) == 2 and "hatched" in bars.get_xlabel()


@pytest.mark.parametrize(("rank", "colour"), [(0, "black"), (1, "white")])
def test_what_is_said_of_a_slow_rank_stands_in_its_bar_or_beside_it(rank, colour):
    """Rank 0 computes half of its time, and its bar is too short for the text."""
    picture = TrainingMonitor()._picture(now(2, [3.0, 2.0], slow=[[rank, 1.3]]))
    bars = picture.axes[1]
    picture.draw_without_rendering()
    (text,) = bars.texts
    own = next(bar for bar in bars.patches if bar.get_y() < rank < bar.get_y() + bar.get_height())
    box, bar = text.get_window_extent(), own.get_window_extent()
    assert text.get_color() == colour
    assert box.x1 < bar.x1 if colour == "white" else box.x0 > bar.x1


def test_without_a_picture_there_is_none_to_show():
    assert "image/png" not in TrainingMonitor()._repr_mimebundle_()


def test_a_pool_shows_what_its_ranks_say_and_tells_the_rest(tmp_path):
    monitor, said = TrainingMonitor(), []
    with Pool(2, say=said.append, show=monitor.show) as pool:
        facts = pool.run(
            Job(
                plan={"tp": 2},
                sizes={"layers": 2},
                steps=3,
                warmup=0,
                check=False,
                out=str(tmp_path),
            )
        )
    assert monitor.losses == pytest.approx(facts["losses"]) and monitor.now == facts["progress"][-1]
    assert "tp2: 0 warm-up and 3 measured steps" in said and not any(
        text.startswith("[") for text in said
    )


def test_a_frozen_monitor_keeps_what_it_shows():
    monitor = TrainingMonitor()
    monitor.show(now(2, [3.0, 2.0]))
    shown = monitor.picture.value, monitor.text.value
    monitor.freeze()
    monitor.show(now(1, [9.0], slow=[[0, 9.0]]))
    assert (monitor.picture.value, monitor.text.value) == shown
