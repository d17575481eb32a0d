"""python tests/bench.py: how fast the simulator is, each figure beside a yardstick measured in the same run.

--json prints one object. Exit status 1 if a ratio is below what the project promises.
"""

import argparse
import json
import subprocess
import sys
import time
from statistics import median

import simpy

import simlab as sl

STAGES, MICROBATCHES, ROUNDS = 64, 512, 7
LEAST_RATIO, MOST_IMPORT_S = 0.2, 0.3


def seconds(function):
    """(wall seconds of one call, its result). The result of an earlier call is gone before the clock starts."""
    start_s = time.perf_counter()
    result = function()
    return time.perf_counter() - start_s, result


def raw_timeouts(processes, each):
    """SimPy doing nothing but letting time pass: `processes` processes with `each` timeouts."""
    env = simpy.Environment()

    def wait():
        for _ in range(each):
            yield env.timeout(1.0)

    for _ in range(processes):
        env.process(wait())
    env.run()


def simulated(name, link):
    """A row: simulated ops per second of schedule `name` beside raw timeouts per second, run in turns."""
    program = sl.generate(name, STAGES, MICROBATCHES)
    validation_s, _ = seconds(lambda: sl.validate(program))
    times = sl.OpTimes(forward_s=0.02, backward_s=0.04)
    ops = len(program.rank_of)
    ours, raw = [], []
    for _ in range(ROUNDS):
        elapsed_s, trace = seconds(lambda: sl.simulate(program, times, link=link, message_bytes=2**20))
        assert len(trace.compute()) == ops
        del trace
        ours.append(ops / elapsed_s)
        elapsed_s, _ = seconds(lambda: raw_timeouts(STAGES, ops // STAGES))
        raw.append(ops / elapsed_s)
    return {
        "what": f"{name} p={STAGES} m={MICROBATCHES}{'' if link is None else ', links with latency and bandwidth'}",
        "ops": ops,
        "simulated_ops_per_s": median(ours),
        "raw_timeouts_per_s": median(raw),
        "ratio": median(a / b for a, b in zip(ours, raw)),
        "validation_s": validation_s,
    }


def import_s():
    """Median seconds that `import simlab` adds to a fresh interpreter, by the interpreter's own account."""
    code = "import time; t = time.perf_counter(); import simlab; print(time.perf_counter() - t)"
    return median(float(subprocess.check_output([sys.executable, "-c", code])) for _ in range(ROUNDS))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    link = sl.Link(latency_s=0.005, bandwidth_bytes_per_s=1e9)
    rows = [simulated(name, link_or_none) for name in ("gpipe", "1f1b") for link_or_none in (None, link)]
    result = {"rows": rows, "import_s": import_s()}
    slow = [row["what"] for row in rows if row["ratio"] < LEAST_RATIO] + ["import simlab"] * (result["import_s"] > MOST_IMPORT_S)
    if arguments.json:
        print(json.dumps(result | {"too_slow": slow}))
    else:
        for row in rows:
            print(
                "{what}: {simulated_ops_per_s:,.0f} simulated ops/s, {raw_timeouts_per_s:,.0f} raw timeouts/s, "
                "ratio {ratio:.2f}; validation {validation_s:.2f} s".format(**row)
            )
        print(f"import simlab: {result['import_s'] * 1e3:.0f} ms")
    for what in slow:
        print(f"too slow: {what}", file=sys.stderr)
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
