"""What a replay of measured steps says that faster backwards would save, against what they save.

`make bench-replay`. Ten pairs of runs of 1F1B on four ranks, with padded ops: one run with backwards
of 60 ms and one with half of that, in alternating order, so that whatever else the machine does meets
both. Of a run's steps the fastest counts, because other work only makes steps longer. Each pair's gain
is predicted from the slow run's step alone. It fails if the median error of the ten is above 3%. With a
path, it writes what was seen there as JSON. About three minutes.
"""

import json
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from realrun.launch.pool import Pool
from realrun.measure.cores import usable_cores
from realrun.measure.machine.node import cpu_name
from realrun.run.job import Job
from realrun.run.job.pipelines import program_texts
from simlab.diagnosis import trace_graph
from simlab.schedules import generate
from simlab.trace import Trace

PAIRS, STEPS = 10, 5
BACKWARD_S, SCALE = 0.06, 0.5
CLOSE = 0.03
SIZES = {"hidden": 32, "heads": 2, "seq": 16, "microbatch_size": 1}


def measured(pool, folder, backward_s, *, forward_s=0.02, steps=STEPS):
    """The traces of steps of 1F1B on four ranks, whose ops are padded to these seconds."""
    job = Job(
        programs=program_texts([generate("1f1b", 4, 8)]),
        compute="padded",
        forward_s=forward_s,
        backward_s=backward_s,
        steps=steps,
        sizes=SIZES,
        check=False,
        out=str(folder),
    )
    (result,) = pool.run(job)["runs"]
    return [Trace.load(f"{result['folder']}/measured-step-{step}.json") for step in range(steps)]


def pair(pool, folder, number):
    """{"predicted_s", "measured_s", "error"} of the gain, and the steps, of one pair of runs."""
    runs = {"slow": BACKWARD_S, "fast": SCALE * BACKWARD_S}
    order = list(runs) if number % 2 == 0 else list(runs)[::-1]
    traces = {name: measured(pool, f"{folder}/{name}-{number}", runs[name]) for name in order}
    fastest = {name: min(its, key=lambda trace: trace.step_s) for name, its in traces.items()}
    predicted_s = trace_graph(fastest["slow"]).saved_s(lambda work: work.kind == "B", SCALE)
    measured_s = fastest["slow"].step_s - fastest["fast"].step_s
    return {
        "order": order,
        "steps_s": {name: [trace.step_s for trace in its] for name, its in traces.items()},
        "predicted_s": predicted_s,
        "measured_s": measured_s,
        "error": predicted_s / measured_s - 1,
    }


def median_error(pairs):
    """The median of the pairs' absolute errors."""
    return median(abs(its["error"]) for its in pairs)


def main():
    """Run all pairs, print the table; 1 if the promise is broken."""
    pairs = []
    with tempfile.TemporaryDirectory() as folder, Pool(4) as pool:
        for number in range(PAIRS):
            pairs.append(pair(pool, folder, number))
            its = pairs[-1]
            print(
                f"{' then '.join(its['order'])}: predicted {its['predicted_s'] * 1e3:.1f} ms, "
                f"measured {its['measured_s'] * 1e3:.1f} ms, {its['error']:+.1%}",
                flush=True,
            )
    error = median_error(pairs)
    print(f"{len(pairs)} pairs: median error {error:.1%} (promised {CLOSE:.0%})")
    if len(sys.argv) > 1:
        date = datetime.now(UTC).date().isoformat()
        about = {"cpu": cpu_name(), "cores": usable_cores(), "date": date}
        found = {"machine": about, "median_error": error, "pairs": pairs}
        Path(sys.argv[1]).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return int(error > CLOSE)


if __name__ == "__main__":
    sys.exit(main())
