"""The text that the command operations prints."""

from collections.abc import Mapping
from math import isfinite
from typing import Any

from simlab.cli.output import print_table, print_text
from simlab.operations.rates import DAY_S, HOUR_S
from simlab.units import seconds_text

Facts = Mapping[str, Any]


def show_run(result: Facts) -> None:
    """Print a run: where its time went, and what interrupted it."""
    days = result["wall_s"] / DAY_S
    print_text(
        f"{days:.1f} days, goodput {result['goodput']:.1%}, {result['failures']} failures, one each "
        f"{result['mtbf_s'] / HOUR_S:.2f} h on average"
    )
    rows = [
        [name.removesuffix("_s"), f"{spent / HOUR_S:,.1f}", f"{spent / result['wall_s']:.2%}"]
        for name, spent in result["spent"].items()
    ]
    print_table(["where the time went", "hours", "part"], rows)
    causes = [f"{name} {count}" for name, count in result["causes"].items()]
    print_text(f"causes: {', '.join(causes) or 'none'}")


def show_interval(result: Facts) -> None:
    """Print goodput against the interval, and which assumptions of the formulas hold."""
    marks = {name: result[f"{name}_interval_s"] for name in ("young", "daly")}
    rows = [
        [
            f"{point['interval_s']:,.0f}",
            f"{point['goodput']:.2%}",
            f"{point['error']:.2%}" if isfinite(point["error"]) else "-",
            f"{point['expected']:.2%}",
        ]
        for point in result["points"]
    ]
    print_table(["interval (s)", "goodput", "error", "by Daly's cost"], rows)
    print_text(
        f"best: {result['best_interval_s']:,.0f} s by simulation, {marks['young']:,.0f} s by Young, "
        f"{marks['daly']:,.0f} s by Daly"
    )
    for one in result["assumptions"]:
        print_text(f"  {'holds' if one['holds'] else 'fails'}: {one['text']} ({one['here']})")


def show_stragglers(result: Facts) -> None:
    """Print the steps of ranks that wait for each other."""
    print_text(
        f"{result['steps']} steps of {result['ranks']} ranks: mean {seconds_text(result['mean_s'])}, "
        f"{result['slowdown']:+.1%}; p90/median {result['p90_over_median']:.3f}, "
        f"max/median {result['max_over_median']:.2f}"
    )
    print_text(
        f"waiting for the slowest rank: {seconds_text(result['waiting_s'])} of each step; pauses "
        f"cost {result['pauses_apart']:.1%} apart, {result['pauses_together']:.1%} together"
    )


def show_queue(result: Facts) -> None:
    """Print how each policy served the same jobs."""
    rows = [
        [
            one["policy"],
            f"{one['mean_wait_s'] / HOUR_S:.2f}",
            f"{one['mean_turnaround_s'] / HOUR_S:.2f}",
            f"{one['makespan_s'] / HOUR_S:.1f}",
            f"{one['utilisation']:.0%}",
            str(one["resizes"]),
        ]
        for one in result["policies"]
    ]
    print_table(["policy", "wait (h)", "turnaround (h)", "all done (h)", "in use", "resizes"], rows)


def _degrees_text(degrees: dict[str, int]) -> str:
    """The degrees of a plan in a line; of experts only where ranks share them."""
    return " ".join(f"{name} {n}" for name, n in degrees.items() if name != "ep" or n > 1)


def show_replan(result: Facts) -> None:
    """Print the ways to go on after a failure."""
    rows = [
        [
            way["name"],
            str(way["nodes"]),
            _degrees_text(way["degrees"]),
            seconds_text(way["step_s"]),
            f"{way['speed']:.0%}",
        ]
        for way in result["ways"]
    ]
    print_table(["way", "nodes", "degrees", "step", "speed"], rows)
    pays = f" (going on pays beyond a restart, {result['resize_s'] / 60:.1f} min)" if rows else ""
    print_text(f"for a repair of {result['repair_s'] / 60:.1f} min: {result['advice']}{pays}")


def show_cost(result: Facts) -> None:
    """Print what a training costs."""
    print_text(
        f"{result['total']:,.0f} in all, {result['per_million_tokens']:.4g} per million tokens, "
        f"{result['wall_s'] / DAY_S:.1f} days"
    )
    parts = ", ".join(
        f"{name} {result[name]:,.0f}" for name in ("gpus", "spares", "storage", "power")
    )
    print_text(
        f"  {parts}; {result['of_failures']:.1%} of it because of failures; GPUs that stand ready: "
        f"{result['spare_gpus']}"
    )
