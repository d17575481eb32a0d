"""How long a search of plans takes, by one process and by several, on a quiet machine.

`make bench-search`. The promise: 10,000 candidates in 10 s on two cores, the first twenty simulated layer
by layer; and that every executor finds the same plans. Where dask.distributed is installed, a local Dask
cluster of as many workers as cores searches, too.
"""

import os
import sys
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager, nullcontext

from simlab.planner import Search, Space, search
from simlab.spec.cluster import load_cluster
from simlab.spec.model import load_model

SPACES = {
    "llama-3-70b on 512 H100s, 1,024 sequences": ("llama-3-70b", "dgx-h100", 64, 1024),
    "gpt3-175b on 1,024 A100s, 1,536 sequences": ("gpt3-175b", "dgx-a100", 128, 1536),
}
KEPT = 20
"""How many plans are kept, and simulated layer by layer."""
MOST_S_OF_10_000 = 10.0


@contextmanager
def dask(workers: int):
    """The executor of a local Dask cluster; None where it is not installed."""
    try:
        from distributed import Client, LocalCluster
    except ImportError:
        yield None
        return
    with LocalCluster(n_workers=workers, threads_per_worker=1) as cluster, Client(cluster) as client:  # fmt: skip
        yield client.get_executor()


def found(space: Space, executor: Executor | None) -> Search:
    """A search whose workers are up before it begins."""
    if executor is not None:
        list(executor.map(abs, range(64)))
    return search(space, kept=KEPT, layered=KEPT, executor=executor)


def main() -> int:
    """Print a row for each space and executor; 1 if the promise is not kept."""
    cores, failed = len(os.sched_getaffinity(0)), []
    print(f"{'space':<44} {'executor':<14} {'candidates':>10} {'predicted':>9} {'s':>6} {'s / 10,000':>10}")  # fmt: skip
    for name, (model, cluster, nodes, batch) in SPACES.items():
        space = Space(
            model=load_model(model), cluster=load_cluster(cluster, nodes=nodes), global_batch=batch
        )
        executors = {"none": nullcontext(None)}
        executors |= {
            f"{n} process{'es' * (n > 1)}": ProcessPoolExecutor(n) for n in range(1, cores + 1)
        }
        executors[f"dask, {cores}"] = dask(cores)
        first, seconds = None, {}
        for label, opened in executors.items():
            with opened as executor:
                if executor is None and label != "none":
                    print(f"{name:<44} {label:<14} dask.distributed is not installed")
                    continue
                its = found(space, executor)
            seconds[label] = 10_000 * its.seconds / its.evaluated
            counts = f"{its.evaluated:>10,} {its.predictions:>9,}"
            times = f"{its.seconds:>6.1f} {seconds[label]:>10.1f}"
            print(f"{name:<44} {label:<14} {counts} {times}", flush=True)
            plans = [each.plan for each in its.plans]
            if first is not None and plans != first:
                failed.append(f"{name}: {label} finds other plans than one process")
            first = first or plans
        if min(seconds.values()) > MOST_S_OF_10_000:
            failed.append(f"{name}: {min(seconds.values()):.1f} s for 10,000 candidates")
    print("\n".join(failed) or "the promise is kept")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
