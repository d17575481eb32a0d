"""Commands about real models on real clusters: what a step takes, what it holds, how far published runs are off."""

import json
import sys
from dataclasses import fields, replace
from pathlib import Path

import simlab as sl
from simlab.cluster import nodes_of_file
from simlab.errors import InputError
from simlab.model_states import RECIPES, STAGES, model_states, parameter_count
from simlab.plan import ATTENTIONS, CP_KINDS, CP_LAYOUTS, LIBRARIES, OFFLOAD_TARGETS, OFFLOADS, PRECISIONS, RECOMPUTE, TP_OVERLAPS
from simlab.program import WEIGHT_GRAD_MEMORY
from simlab.runs import read_runs, suites, validate_runs
from simlab.trace import ACTIVATIONS
from simlab.training import capacity_bytes, does_not_fit
from simlab.units import GIB, bytes_text, seconds_text
from simlab.views import timeline
from simlab.views.runs import runs_figure

DEGREES = ("dp", "tp", "pp", "cp", "zero", "microbatch_size", "microbatches", "seq", "chunks")
CHOICES = {
    "recompute": RECOMPUTE, "precision": tuple(PRECISIONS), "offload": OFFLOADS, "offload_to": OFFLOAD_TARGETS, "attention": ATTENTIONS,
    "tp_overlap": TP_OVERLAPS, "cp_layout": CP_LAYOUTS, "cp_kind": CP_KINDS, "library": LIBRARIES,
}  # fmt: skip
SWITCHES = ("sequence_parallel", "dp_overlap", "fused")
SHARED = ("pp", "microbatches", "chunks")  # of DEGREES: what a schedule with op times has too
ONLY_WITH_MODEL = ("cluster", "nodes", *(field for field in DEGREES if field not in SHARED), *CHOICES, *SWITCHES)
ONLY_WITH_OP_TIMES = {
    "csv": None, "group": None, "forward_ms": None, "backward_ms": None, "input_grad_ms": None, "weight_grad_ms": None, "pair_ms": None,
    "p2p_ms": 0.0, "jitter": 0.0, "seed": 0, "weight_grad_memory": WEIGHT_GRAD_MEMORY, "activation_cap": None,
    "layers": None, "embedding": 0.0, "head": 0.0, "partition": None,
}  # fmt: skip
"""{argument: what it is where it is not given}: the parser leaves it None, so that what is given can be told (see `fill_in`)."""


def fill_in(arguments):
    """Give the arguments of `ONLY_WITH_OP_TIMES` that were not given what they then are."""
    for field, default in ONLY_WITH_OP_TIMES.items():
        if getattr(arguments, field, None) is None:
            setattr(arguments, field, default)


def refuse_given(arguments, names, why):
    """`InputError` that names the first of `names` that was given, and says `why` it should not be."""
    for name in names:
        if (value := getattr(arguments, name)) is not None:
            raise InputError(f"{flag(name)} {f'{value:g}' if isinstance(value, float) else value} {why}")


def flag(name):
    """The argument `name` as it is written on the command line."""
    return f"--{name.replace('_', '-')}"


NODES = "its nodes (default: those that its file says; else as many as the plan takes, one for a plan without degrees)"
REPLICAS = "data-parallel replicas (default: as many as the nodes have GPUs for; 1 where the plan says how many nodes it takes)"


def add_plan(command):
    """The arguments of `simulate` that say what is trained, on what and how."""
    options = command.add_argument_group("a model on a cluster (instead of op times): see the catalog command for names")
    options.add_argument("--model", metavar="NAME", help="a model of the catalogue, or the path of a Hugging Face config.json")
    options.add_argument("--cluster", metavar="NAME", help="a cluster of the catalogue, or the path of a JSON file")
    options.add_argument("--nodes", type=int, metavar="N", help=NODES)
    helps = {
        "dp": REPLICAS, "tp": "tensor-parallel ranks", "cp": "context-parallel ranks",
        "zero": "ZeRO stage, 0 to 3", "microbatch_size": "sequences of a microbatch", "seq": "tokens of a sequence (default the model's)",
    }  # fmt: skip
    for field, text in helps.items():
        options.add_argument(flag(field), type=int, metavar="N", help=text)
    for field, choices in CHOICES.items():
        options.add_argument(flag(field), metavar="X", help=" | ".join(choices))
    for field in SWITCHES:
        options.add_argument(flag(field), choices=("yes", "no"), help=f"see simlab.Plan.{field}")


def plan_of(arguments, cluster, pp):
    """The `Plan` that the arguments describe, with dp as many as there are GPUs for."""
    given = {field: getattr(arguments, field) for field in (*DEGREES, *CHOICES) if getattr(arguments, field) is not None}
    given |= {field: getattr(arguments, field) == "yes" for field in SWITCHES if getattr(arguments, field) is not None}
    given |= {"pp": pp, "schedule": arguments.schedule or "1f1b"}
    rest = given.get("tp", 1) * given["pp"] * given.get("cp", 1)
    if "dp" not in given and cluster is not None and rest and cluster.gpus % rest == 0:
        given["dp"] = max(1, cluster.gpus // rest)
    if given.get("tp", 1) > 1:
        given.setdefault("sequence_parallel", given.get("precision", "bf16") != "fp16")
    return sl.Plan(**given)


def simulate_model(arguments):
    """Predict a training step of a model on a cluster."""
    refuse_given(arguments, ONLY_WITH_OP_TIMES, "goes with op times, not with --model")
    model = sl.load_model(arguments.model)
    plan, cluster = plan_and_cluster(arguments)
    prediction = sl.predict(model, plan, cluster)
    if model.ignored:
        print(f"note: nothing is computed from {arguments.model}'s {', '.join(model.ignored)}", file=sys.stderr)
    result = facts(prediction)
    trace = prediction.trace
    if arguments.trace:
        write_file(arguments.trace, lambda path: trace.save(path))
    if arguments.perfetto:
        whole = sl.layer_trace(model, plan, cluster)
        write_file(arguments.perfetto, lambda path: path.write_text(timeline(whole, renderer="perfetto"), encoding="utf-8"))
    if arguments.picture:
        write_file(arguments.picture, lambda path: timeline(trace, critical_path=arguments.explain).savefig(path))
    if arguments.explain:
        result |= explained(trace)
    if arguments.json:
        print_json(result)
    else:
        print("\n".join([step_text(prediction), *(explained_lines(result) if arguments.explain else ())]))
    return 0


def plan_and_cluster(arguments):
    """(`Plan`, `Cluster`): of so many nodes as --nodes or the cluster's file says, else of as many GPUs as the plan takes."""
    if not arguments.cluster:
        raise InputError(f"--model {arguments.model} needs --cluster: one of {', '.join(sl.clusters())}, or the path of a JSON file")
    if arguments.nodes is not None and arguments.nodes < 1:
        raise InputError(f"--nodes {arguments.nodes}: give a whole number, at least 1")
    cluster = sl.load_cluster(arguments.cluster, nodes=arguments.nodes)
    pp = 1 if arguments.pp is None else arguments.pp
    sized = arguments.nodes is not None or nodes_of_file(arguments.cluster) is not None
    if sized or all(getattr(arguments, field) is None for field in ("dp", "tp", "pp", "cp")):
        return plan_of(arguments, cluster, pp), cluster
    plan = plan_of(arguments, None, pp)
    return plan, smallest(cluster, plan.gpus)


def explained(trace):
    """What idle time waited for, and the critical path, as plain values."""
    return {
        "gaps": [gap._asdict() | {"text": str(gap)} for gap in sl.gaps(trace)],
        "critical_path": [f"{span.stream} {span.op}" for span in sl.critical_path(trace)],
    }


def explained_lines(result):
    """What `explained` gives, for reading."""
    longest = sorted(result["gaps"], key=lambda gap: gap["start_s"] - gap["end_s"])[:10]
    path = " → ".join(name.split()[1] for name in result["critical_path"] if name.startswith("compute"))
    return [
        f"longest idle times, {len(longest)} of {len(result['gaps'])}:", *(f"  {gap['text']}" for gap in longest),
        f"critical path            {path}",
    ]  # fmt: skip


def smallest(cluster, gpus):
    """So many GPUs of `cluster`'s kind: part of a node, or whole nodes."""
    if gpus <= cluster.gpus_per_node:
        return replace(cluster, gpus_per_node=gpus)
    if gpus % cluster.gpus_per_node:
        raise InputError(f"{gpus} GPUs are not whole nodes of {cluster.gpus_per_node}: say --nodes, or take other degrees")
    return replace(cluster, nodes=gpus // cluster.gpus_per_node)


def facts(prediction):
    """What is known of a `Prediction`, as plain values."""
    trace, plan, program = prediction.trace, prediction.plan, prediction.program
    return {
        "model": prediction.model.name, "cluster": prediction.cluster.name, "gpus": plan.gpus,
        "seq": plan.seq or prediction.model.seq, "global_batch": plan.global_batch,
        "plan": {field.name: getattr(plan, field.name) for field in fields(plan)},
        "schedule": program.name, "stages": program.stages, "microbatches": program.microbatches,
        "step_s": prediction.step_s, "tokens_per_s": prediction.tokens_per_s, "mfu": prediction.mfu, "hfu": prediction.hfu,
        "bubble": sl.bubble(trace)._asdict(), "waterfall_s": prediction.waterfall_s._asdict(), "exposed_s": prediction.exposed_s,
        "memory_bytes": prediction.memory_bytes, "peak_rank": prediction.peak_rank, "fits": prediction.fits,
        "gpu_memory_bytes": capacity_bytes(prediction.cluster), "breaches": [breach._asdict() for breach in prediction.breaches],
        "peak_live_microbatches": sl.peak_memory(trace), "peak_activations_bytes": sl.peak_memory(trace, ACTIVATIONS),
    }  # fmt: skip


def step_text(prediction):
    """A prediction for reading."""
    plan = prediction.plan
    peak, there = sum(prediction.memory_bytes.values()), capacity_bytes(prediction.cluster)
    parts = ", ".join(f"{name} {bytes_text(size)}" for name, size in prediction.memory_bytes.items() if size)
    lines = [
        f"{prediction.model.name} on {plan.gpus} x {prediction.cluster.gpu.name}: dp {plan.dp}, tp {plan.tp}, pp {plan.pp}, cp {plan.cp}, "
        f"ZeRO-{plan.zero}, {plan.schedule}, {plan.microbatches} microbatches of {plan.microbatch_size}",
        f"global batch             {plan.global_batch} sequences of {plan.seq or prediction.model.seq} tokens",
        f"step                     {seconds_text(prediction.step_s)}",
        f"tokens/s                 {prediction.tokens_per_s:,.0f}   of all GPUs; {prediction.tokens_per_s / plan.gpus:,.0f} of each",
        f"MFU, HFU                 {prediction.mfu:.1%}, {prediction.hfu:.1%}",
        f"peak memory              {bytes_text(peak)} of {bytes_text(there)} on pipeline rank {prediction.peak_rank}: {parts}",
    ]
    if not prediction.fits:
        lines.append(f"                         does not fit: {does_not_fit(prediction)}")
    lines.append("the step's time, as means over ranks:")
    for name, seconds in prediction.waterfall_s._asdict().items():
        if seconds > 0:
            share = seconds / prediction.step_s
            lines.append(f"  {name:<10} {seconds_text(seconds):>10}  {share:>6.1%}  {'#' * round(40 * share)}")
    return "\n".join(lines)


# memory -------------------------------------------------------------------------------------------------------


def memory(arguments):
    """Model states per rank (parameters, gradients, optimizer) under ZeRO."""
    if (arguments.params is None) == (arguments.model is None):
        raise InputError(f"--params {arguments.params} and --model {arguments.model}: give one of the two")
    count = float(sl.load_model(arguments.model).parameters) if arguments.model else parameter_count(arguments.params)
    largest = parameter_count(arguments.largest_layer) if arguments.largest_layer else 0
    if largest and (arguments.recipe != "deepspeed" or largest > count):
        raise InputError(
            f"--largest-layer {arguments.largest_layer}: only for --recipe deepspeed, and no more than all {count:g} parameters"
        )
    zero = RECIPES[arguments.recipe].stages[0] if arguments.zero is None else arguments.zero
    states = model_states(count, arguments.dp, zero=zero, recipe=arguments.recipe, largest_layer=largest)
    facts = {"parameters": count, "dp": arguments.dp, "zero": zero, "recipe": arguments.recipe}
    result = facts | {"bytes": states._asdict(), "total_bytes": states.total, "bytes_per_parameter": states.total / count}
    if arguments.json:
        print_json(result)
        return 0
    print(f"{arguments.recipe}: {RECIPES[arguments.recipe].text}")
    print(f"{count:g} parameters on {arguments.dp} data-parallel ranks, GB = 1e9 bytes on each; activations not included")
    for stage in RECIPES[arguments.recipe].stages:
        states = model_states(count, arguments.dp, zero=stage, recipe=arguments.recipe, largest_layer=largest)
        parts = ", ".join(f"{name} {value / 1e9:.4g}" for name, value in states._asdict().items() if value)
        print(f"{'>' if stage == zero else ' '} ZeRO-{stage} ({STAGES[stage]}): {states.total / 1e9:.4g} GB = {parts}")
    return 0


def add_memory(command):
    """The arguments of `memory`."""
    command.add_argument("--params", metavar="N", help="parameters of the model: 7.5e9, 7.5B, 350M")
    command.add_argument("--model", metavar="NAME", help="or a model of the catalogue, or the path of a Hugging Face config.json")
    command.add_argument("--dp", type=int, default=1, metavar="N", help="data-parallel ranks (default 1)")
    command.add_argument("--zero", type=int, choices=STAGES, help="ZeRO stage (default 0, plain data parallelism; 2 for deepspeed)")
    command.add_argument("--recipe", default="zero", choices=RECIPES, help="bytes per parameter are counted as who does (default zero)")
    command.add_argument("--largest-layer", metavar="N", help="parameters of the largest layer, for deepspeed's ZeRO-3")


# published runs -----------------------------------------------------------------------------------------------


def validate(arguments):
    """Predict the measured runs of a CSV file and say how far off each suite is."""
    results = validate_runs(read_runs(arguments.file), waterfall=arguments.rows)
    table = suites(results)
    if arguments.picture:
        done = [(r.suite, r.measured_s, r.prediction.step_s) for r in results if r.prediction]
        if not done:
            raise InputError(f"{arguments.file}: no row of it can be predicted, so there is nothing to draw")
        write_file(
            arguments.picture, lambda path: runs_figure(done, {name: its["mape"] for name, its in table.items()}).savefig(path, dpi=130)
        )
    if arguments.json:
        result = {"suites": {name: its | {"skipped": len(its["skipped"]), "skips": its["skipped"]} for name, its in table.items()}}
        if arguments.rows:
            result["rows"] = [_row(r) for r in results]
        print_json(result)
        return 0
    print(f"{'suite':<28} {'rows':>5} {'skipped':>8} {'MAPE %':>7} {'max %':>7} {'bias %':>7} {'constant %':>11} {'memory %':>9}")
    for name, its in table.items():
        numbers = [its[key] for key in ("mape", "max", "bias", "constant_mape", "memory_mape")]
        texts = ["-" if number is None else f"{number:.1f}" for number in numbers]
        widths = (7, 7, 7, 11, 9)
        print(f"{name:<28} {its['rows']:>5} {len(its['skipped']):>8} {' '.join(f'{t:>{w}}' for t, w in zip(texts, widths))}")
    for reason in sorted({skip["reason"] for its in table.values() for skip in its["skipped"]}):
        count = sum(skip["reason"] == reason for its in table.values() for skip in its["skipped"])
        print(f"skipped {count}: {reason}")
    if arguments.rows:
        for result in results:
            print(_row_text(result))
    return 0


def _row(result):
    if not result.prediction:
        return {"id": result.id, "suite": result.suite, "skipped": result.skipped}
    memory = sum(result.prediction.memory_bytes.values()) / GIB
    return {
        "id": result.id, "suite": result.suite, "measured_s": result.measured_s, "predicted_s": result.prediction.step_s,
        "error_pct": 100 * result.error, "waterfall_s": result.prediction.waterfall_s._asdict(), "mfu": result.prediction.mfu,
        "memory_gib": memory, "measured_memory_gib": result.memory_gib, "fits": result.prediction.fits,
    }  # fmt: skip


def _row_text(result):
    if not result.prediction:
        return f"{result.id}: skipped, {result.skipped}"
    parts = ", ".join(f"{k} {seconds_text(v)}" for k, v in result.prediction.waterfall_s._asdict().items() if v > 0.001 * result.measured_s)
    times = f"measured {seconds_text(result.measured_s)}, predicted {seconds_text(result.prediction.step_s)} ({100 * result.error:+.1f}%)"
    return f"{result.id}: {times}: {parts}"


def add_validate(command):
    """The arguments of `validate`."""
    command.add_argument("file", metavar="RUNS.csv", help="measured runs, with the columns of tests/published/runs.csv")
    command.add_argument("--rows", action="store_true", help="also each row's prediction and what its time is spent on")
    command.add_argument("--picture", metavar="X.png", help="draw predicted over measured of every run (needs matplotlib)")


def print_json(result):
    """One JSON object on stdout."""
    print(json.dumps(result))


def write_file(path, write):
    """Call `write` with `path` as a Path; an `InputError` that quotes it if it cannot be written."""
    if Path(path).is_dir():
        raise InputError(f"cannot write {path!r}: it is a folder")
    try:
        write(Path(path))
    except (OSError, ValueError, ArithmeticError) as error:
        raise InputError(f"cannot write {path!r}: {getattr(error, 'strerror', None) or error}") from error
    print(f"wrote {path}", file=sys.stderr)
