"""A model's training step on a cluster, predicted from the command line."""

import argparse
import sys
from collections.abc import Callable, Mapping
from math import prod
from typing import Annotated, Any, TypedDict

import simlab as sl
from simlab.cli.output import print_json, print_text, write_file, write_picture
from simlab.cli.plan_options import REALRUN_ONLY, given_values, plan_part
from simlab.errors import InputError, require_whole, whole
from simlab.spec.cluster import Cluster, nodes_of_file
from simlab.spec.named import smallest
from simlab.spec.plan import Plan
from simlab.trace import Trace
from simlab.training.summary import PredictionFacts
from simlab.views import timeline

MOST_GPUS = 2**20
BATCH = "; microbatches follow from it (default: it follows from --microbatches)"
REPLICAS = (
    "the number of data-parallel replicas (default: as many as the nodes have GPUs for; "
    "1 where the plan says how many nodes it takes)"
)


class Said(TypedDict):
    """An interval as a sentence."""

    text: str


class Explained(TypedDict, total=False):
    """What `--explain` adds."""

    gaps: list[Annotated[dict[str, Any], sl.Gap, Said]]
    critical_path: list[str]


class StepAnswer(PredictionFacts, Explained):
    """A model's training step on a cluster."""


def simulate_model(arguments: argparse.Namespace) -> int:
    """Predict a training step of a model on a cluster."""
    given = given_values(arguments)
    if "model" not in given:
        raise InputError(f"--plan {arguments.plan} names no model: give --model")
    model = sl.load_model(given["model"])
    plan, cluster = plan_and_cluster(given, global_batch=global_batch_of(arguments))
    prediction = sl.predict(model, plan, cluster)
    say_what_is_not_read(given, model)
    trace = prediction.trace
    write_trace(arguments, trace, lambda: sl.layer_trace(model, plan, cluster))
    more: Explained = explained(trace) if arguments.explain else {}
    result: StepAnswer = {**prediction.to_dict(), **more}
    if arguments.json:
        print_json(result)
    else:
        lines = explained_lines(result) if arguments.explain else []
        print_text("\n".join([prediction.summary(), *lines]))
    return int(arguments.strict and not prediction.fit.fits)


def say_what_is_not_read(given: dict[str, Any], model: sl.Model) -> None:
    """Note on stderr what a file says that has no effect here."""
    if model.ignored:
        print(
            f"note: nothing is computed from {given['model']}'s {', '.join(model.ignored)}",
            file=sys.stderr,
        )
    if unread := [name for name in given if name in REALRUN_ONLY]:
        print(f"note: only realrun reads {', '.join(unread)}", file=sys.stderr)


def write_trace(
    arguments: argparse.Namespace, trace: Trace, for_perfetto: Callable[[], Trace]
) -> None:
    """Write the trace, its picture and the trace for Perfetto, those that the arguments ask for."""
    if arguments.trace:
        write_file(arguments.trace, lambda path: trace.save(path))
    if arguments.perfetto:
        whole = for_perfetto()
        write_file(
            arguments.perfetto,
            lambda path: path.write_text(timeline(whole, renderer="perfetto"), encoding="utf-8"),
        )
    if arguments.picture:
        write_picture(
            arguments.picture,
            lambda path: timeline(trace, critical_path=arguments.explain).savefig(path),
        )


def global_batch_of(arguments: argparse.Namespace) -> int | None:
    """The global batch that the command line gives; None if it gives none."""
    batch: int | None = arguments.global_batch
    if batch is None:
        return None
    require_whole("--global-batch", batch)
    if (count := arguments.microbatches) is not None:
        raise InputError(f"--microbatches {count} and --global-batch {batch}: give one of the two")
    return batch


def plan_and_cluster(
    given: dict[str, Any], *, global_batch: int | None = None, gpus: int | None = None
) -> tuple[Plan, Cluster]:
    """The plan and the cluster of {name: value}: of so many nodes as it or the cluster's file says,
    else of as many GPUs as the plan takes.

    global_batch: the sequences of a step, from which microbatches then follow, whatever is given.
    gpus: how many there are where neither `given` nor the cluster's file says how many nodes.
    """
    if not given.get("cluster"):
        raise InputError(
            f"--model {given['model']} needs --cluster: one of {', '.join(sl.clusters())}, or the path of a JSON file"
        )
    nodes = given.get("nodes")
    if nodes is not None and nodes < 1:
        raise InputError(f"--nodes {nodes}: give a whole number, at least 1")
    cluster = sl.load_cluster(given["cluster"], nodes=nodes)
    _check_gpus(cluster.gpus, f"{cluster.nodes} nodes")
    sized = nodes is not None or nodes_of_file(given["cluster"]) is not None
    if gpus is not None and not sized:
        cluster, sized = smallest(cluster, gpus), True
    degrees = plan_part(given)
    if sized or not {"dp", "tp", "pp", "cp"} & degrees.keys():
        degrees = _with_replicas(degrees, cluster)
        return Plan(**_with_microbatches(degrees, global_batch)), cluster
    plan = Plan(**_with_microbatches(degrees, global_batch))
    _check_gpus(plan.gpus, "this plan")
    return plan, smallest(cluster, plan.gpus)


def _check_gpus(gpus: int, what: str) -> None:
    """`InputError` for more GPUs than a prediction can list in a few seconds."""
    if gpus > MOST_GPUS:
        raise InputError(f"{what}: {gpus} GPUs are more than {MOST_GPUS:,}: give fewer")


def _with_replicas(degrees: dict[str, Any], cluster: Cluster) -> dict[str, Any]:
    """The fields of a plan with dp, where it is not given, as many as there are GPUs for. Without a
    dp that the GPUs allow, or with a degree that is no whole number, they stay as they are, for
    `Plan` to refuse."""
    others = [degrees.get(name, 1) for name in ("tp", "pp", "cp")]
    if "dp" in degrees or not all(whole(degree) for degree in others):
        return degrees
    rest = prod(others)
    return degrees if cluster.gpus % rest else degrees | {"dp": cluster.gpus // rest}


def _with_microbatches(degrees: dict[str, Any], global_batch: int | None) -> dict[str, Any]:
    """The fields of a plan with the microbatches of a global batch; without one they stay as they are."""
    dp, size = degrees.get("dp", 1), degrees.get("microbatch_size", 1)
    if global_batch is None or not whole(dp) or not whole(size):
        return degrees
    if global_batch % (dp * size):
        raise InputError(
            f"a global batch of {global_batch} is no multiple of dp x microbatch_size = {dp} x {size}"
        )
    return degrees | {"microbatches": global_batch // (dp * size)}


def explained(trace: Trace) -> Explained:
    """What idle time waited for, and the critical path, as plain values."""
    return {
        "gaps": [gap._asdict() | {"text": str(gap)} for gap in sl.gaps(trace)],
        "critical_path": [f"{span.stream} {span.op}" for span in sl.critical_path(trace)],
    }


def explained_lines(result: Mapping[str, Any]) -> list[str]:
    """What `explained` gives, for reading."""
    longest = sorted(result["gaps"], key=lambda gap: gap["start_s"] - gap["end_s"])[:10]
    path = " → ".join(
        name.split()[1] for name in result["critical_path"] if name.startswith("compute")
    )
    return [
        f"longest idle times, {len(longest)} of {len(result['gaps'])}:",
        *(f"  {gap['text']}" for gap in longest),
        f"critical path            {path}",
    ]
