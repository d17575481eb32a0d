"""python -m benchmarks.bench_faults [FILE] [--backend native|torch]: trainings broken on purpose, at
random: 20 kills of one of 8 ranks, and each fault 10 times on 4.

After each kill training goes on from the last complete checkpoint, on the same plan or on another,
with the losses of an unbroken run. Each fault must be named with its rank and cause before its
timeout has passed twice, and leave no process behind. About ten minutes; not part of the tests.
With FILE, what was seen is written there as JSON. With the torch backend there are the kills only, for
faults are put into the native one.
"""

import argparse
import json
import os
import random
import re
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from shutil import rmtree

from realrun.checkpoint import save as checkpoint
from realrun.launch.pool import Pool, RunError
from realrun.run.faults import KINDS
from realrun.run.job import Job

SIZES = {"layers": 2, "hidden": 32, "seq": 16}
KILLS, TIMES, TIMEOUT_S = 20, 10, 5.0
UNBROKEN = 160  # steps
EIGHT = [
    {"dp": 2, "tp": 2, "pp": 2, "zero": 1, "microbatches": 2},
    {"dp": 4, "tp": 2, "zero": 3},
    {"pp": 2, "cp": 2, "tp": 2, "microbatches": 4},
]
TORCHS = [
    {"dp": 2, "tp": 2, "pp": 2, "microbatches": 2},
    {"dp": 4, "tp": 2, "zero": 3},
    {"pp": 2, "tp": 4, "microbatches": 4},
]
"""Plans of 8 ranks with batches of 4 sequences, as torch's own means run them."""
FOUR = [
    {"dp": 2, "tp": 2, "microbatches": 2},
    {"pp": 2, "tp": 2, "microbatches": 4},
    {"dp": 2, "pp": 2, "zero": 3, "microbatches": 4},
]
SAID = {
    "hang": r"rank {rank} is (running|at) \d+[FBIW]\d+",
    "skip": r"^rank {rank} (is done with|begins|waits for) .*, but (its list goes on with|next is) begin",
    "resize": r"^rank {rank} begins \w+ \w+ of \d+ bytes, but next is",
    "nan": r"^rank {rank}: \d+F\d+ made numbers that are not finite",
    "leak": r"^rank {rank}: a memory leak",
    "kill": r"^rank {rank} \(process \d+\) was killed by signal 9",
}
"""{fault: what a run says of it}"""


def job(plan, folder, **fields):
    """A short one."""
    return Job(
        plan=plan,
        **{"sizes": SIZES, "check": False, "warmup": 0, "timeout_s": 30.0, "out": str(folder)}
        | fields,
    )


def broken(pool, this, before=lambda: None):
    """(what ends the run of `this` on `pool`, seconds until it did); '' if nothing does."""
    started_s, processes = time.monotonic(), list(pool._processes.started)
    before()
    try:
        facts = pool.run(this)
    except RunError as error:
        assert not any(process.is_alive() for process in processes), "a process is left behind"
        return str(error), time.monotonic() - started_s
    return facts, time.monotonic() - started_s


def kills(folder, luck, backend="native"):
    """[{"rank", "after_s", "said", "in_save": whether one was left unfinished, "plan", "resumed_on",
    "from_step", "error": of the losses}]"""
    rows, plans = [], EIGHT if backend == "native" else TORCHS
    with Pool(8) as pool:
        whole = pool.run(job(plans[0], folder / "unbroken", steps=UNBROKEN, backend=backend))[
            "losses"
        ]
        print(f"{UNBROKEN} steps unbroken", flush=True)
    training = {
        "backend": backend,
        "checkpoint_every": 1,
        "checkpoints": str(folder / "checkpoints"),
        "resume": True,
    }
    while len(rows) < KILLS:
        plan, other, victim, delay_s = (
            luck.choice(plans),
            luck.choice(plans),
            luck.randrange(8),
            luck.uniform(1.0, 9.0),
        )
        if not checkpoint.complete(training["checkpoints"]):
            plan = plans[0]  # the weights at first are those of as many stages
        with Pool(8) as pool:
            timer = threading.Timer(
                delay_s, os.kill, (pool._processes.started[victim].pid, signal.SIGKILL)
            )
            said, _ = broken(pool, job(plan, folder, steps=10**4, **training), timer.start)
        complete = checkpoint.complete(training["checkpoints"])
        in_save = len(list(Path(training["checkpoints"]).glob("*/"))) > len(complete)
        done = (complete or [0])[-1]
        with Pool(8) as pool:
            facts = pool.run(job(other, folder, steps=done + 3, **training))
        assert facts["first_step"] == done and re.search(SAID["kill"].format(rank=victim), said), (
            facts["first_step"],
            done,
            said,
        )
        error = max(abs(a / b - 1) for a, b in zip(facts["losses"], whole[done:], strict=False))
        rows.append(
            {
                "rank": victim,
                "after_s": delay_s,
                "said": said,
                "in_save": in_save,
                "plan": plan,
                "resumed_on": other,
                "from_step": done,
                "error": error,
            }
        )
        print(
            f"{len(rows):>3} {said[:60]} ... resumed from step {done}, losses {error:.1e} off",
            flush=True,
        )
        if done > UNBROKEN - 60:
            rmtree(training["checkpoints"])
    return rows


def faults(folder, luck):
    """[{"fault", "plan", "said", "seconds", "named"}]"""
    rows = []
    for kind in KINDS:
        for _ in range(TIMES):
            rank, step, plan = luck.randrange(4), luck.randrange(3), luck.choice(FOUR)
            with Pool(4) as pool:
                this = job(
                    plan, folder, steps=4, fault=f"{kind}@{rank}:{step}", timeout_s=TIMEOUT_S
                )
                said, seconds = broken(pool, this)
            if kind == "slow":
                named = [slow for slow, _ in said["stragglers"]] == [rank]
                said = str(said["stragglers"])
            else:
                named = (
                    isinstance(said, str)
                    and bool(re.search(SAID[kind].format(rank=rank), said))
                    and seconds < 2 * TIMEOUT_S + 5
                )
                said = said if isinstance(said, str) else "nothing"
            rows.append(
                {
                    "fault": f"{kind}@{rank}:{step}",
                    "plan": plan,
                    "said": said,
                    "seconds": seconds,
                    "named": named,
                }
            )
            if not named:
                print(f"not named: {rows[-1]}", flush=True)
        print(f"{kind}: {sum(row['named'] for row in rows[-TIMES:])} of {TIMES}", flush=True)
    return rows


def main():
    """Run it all; 1 if something was not named, or losses are more than a rounding off."""
    asked = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    asked.add_argument("file", nargs="?")
    asked.add_argument("--backend", choices=("native", "torch"), default="native")
    asked = asked.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        native = asked.backend == "native"
        seen = {
            "faults": faults(Path(folder), random.Random(1)) if native else [],
            "kills": kills(Path(folder), random.Random(2), asked.backend),
        }
    worst = max(row["error"] for row in seen["kills"])
    named = sum(row["named"] for row in seen["faults"])
    in_save = sum(row["in_save"] for row in seen["kills"])
    print(
        f"{named} of {len(seen['faults'])} faults named; {len(seen['kills'])} kills, {in_save} of them "
        f"inside a save, losses at most {worst:.1e} off"
    )
    if asked.file:
        Path(asked.file).write_text(json.dumps(seen, indent=1) + "\n", encoding="utf-8")
    return int(named < len(seen["faults"]) or worst > 1e-6)


if __name__ == "__main__":
    sys.exit(main())
