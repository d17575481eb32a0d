"""Plans on torch's own parallelism: the same checks as ours, and beside ours in bytes and memory."""

import pytest

from realrun import Pool
from realrun.plan_job import PlanJob
from realrun.plan_report import failures, summary, totals
from simlab.errors import InputError

SMALL = {"layers": 2, "hidden": 32, "heads": 4, "seq": 16}


@pytest.fixture(scope="module")
def pool():
    with Pool(4) as four:
        yield four


def run(pool, folder, **plan):
    job = PlanJob(plan=plan, sizes=SMALL, steps=3, warmup=0, engine="torch", reference=True, out=str(folder))
    return job, pool.run(job)


PLANS = [
    {"dp": 4, "microbatches": 2}, {"dp": 4, "zero": 1}, {"dp": 4, "zero": 2, "microbatches": 2}, {"dp": 4, "zero": 3, "microbatches": 2},
    {"dp": 2, "tp": 2}, {"dp": 2, "tp": 2, "zero": 3, "microbatches": 2}, {"tp": 4, "recompute": "full"},
]  # fmt: skip


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_torchs_engine_trains_as_one_process_does(pool, tmp_path, plan):
    job, facts = run(pool, tmp_path, **plan)
    assert not failures(facts) and facts["gradient_error"] < 1e-12
    assert facts["losses"] == pytest.approx(facts["reference_losses"], rel=1e-6)
    assert "sent by all ranks, realrun's own send" in summary(job, facts)


@pytest.mark.parametrize("plan", [plan for plan in PLANS if "tp" not in plan and plan.get("zero") != 1], ids=str)
def test_ddp_and_fsdp2_send_what_ours_does_but_for_the_norm(pool, tmp_path, plan):
    _, facts = run(pool, tmp_path, **plan)
    ours, theirs = (totals(facts[f"sent_bytes_{which}"])["dp"] for which in ("predicted", "measured"))
    assert abs(ours - theirs) <= 4 * 2 * 3 / 4 * 16  # 4 ranks' all-reduces of two numbers of 8 bytes


def test_torchs_zero_1_reduces_all_and_broadcasts_which_is_more(pool, tmp_path):
    _, facts = run(pool, tmp_path, dp=4, zero=1)
    ours, theirs = (totals(facts[f"sent_bytes_{which}"])["dp"] for which in ("predicted", "measured"))
    assert theirs > 1.5 * ours


def test_states_are_simlabs(pool, tmp_path):
    for plan in ({"dp": 4}, {"dp": 4, "zero": 3}, {"dp": 2, "tp": 2, "zero": 3}):
        _, facts = run(pool, tmp_path, **plan)
        for held, asked in zip(facts["memory_bytes"], facts["memory_bytes_predicted"]):
            assert held == {name: asked[name] for name in held}


@pytest.mark.parametrize("plan,fields,said", [
    ({"pp": 2}, {}, "pp = 2 with engine torch"), ({"cp": 2}, {}, "cp = 2 with engine torch"),
    ({"tp": 2, "sequence_parallel": True}, {}, "sequence_parallel = True with engine torch"),
    ({"dp": 2}, {"checkpoint_every": 1}, "checkpoint_every = 1 with engine torch"),
    ({"dp": 2, "tp": 2, "zero": 1}, {}, "zero = 1 with tp = 2 and engine torch"),
    ({"dp": 2, "recompute": "selective"}, {}, "recompute = 'selective' with engine torch"),
    ({"dp": 2}, {"engine": "torhc"}, "engine 'torhc', did you mean 'torch'"),
])  # fmt: skip
def test_what_torchs_engine_leaves_out_is_refused(plan, fields, said):
    with pytest.raises(InputError, match=said):
        PlanJob(plan=plan, **{"engine": "torch"} | fields)
