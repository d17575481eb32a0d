"""Still pictures of memory with matplotlib: categories stacked over a step, ZeRO's curves over the ranks."""

from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from simlab.units import GIB, MS
from simlab.views.scene import CAP_COLOUR, CATEGORY_COLOURS, STAGE_COLOURS, STAGE_DASHES, STAGE_NAMES, steps
from simlab.views.still import Picture

LINES = {"solid": "-", "dash": "--", "dashdot": "-.", "dot": ":"}
TICKS = 14  # at most so many ops are named below a step without times


def figure(stacks, *, width_in=12.0, height_in=3.2):
    """A Figure of `Stack`s under each other, with one height scale; the peak and what passes the capacity are marked."""
    picture = Picture(figsize=(width_in, height_in * len(stacks) + 0.4), layout="constrained", dpi=110)
    highest = max(max(*stack.totals, stack.capacity_bytes or 0) for stack in stacks) / GIB
    same_times = all(stack.timed for stack in stacks)
    all_axes = picture.subplots(len(stacks), 1, squeeze=False, sharex=same_times)[:, 0]
    for axes, stack in zip(all_axes, stacks):
        draw_stack(axes, stack)
        axes.set_ylim(0, 1.22 * highest)
    there = {category for stack in stacks for category in stack.held}
    handles = [Patch(color=colour, label=category) for category, colour in CATEGORY_COLOURS.items() if category in there][::-1]
    if any(stack.capacity_bytes for stack in stacks):
        handles.insert(0, Line2D([], [], color=CAP_COLOUR, linestyle="--", label="the GPU's memory"))
    picture.legend(handles=handles, loc="outside right upper", frameon=False, fontsize=9)
    for axes in all_axes[:-1]:
        axes.set_xlabel("")
    return picture


def draw_stack(axes, stack):
    """Draw `stack` on `axes`: stepped areas, the peak with its op, the GPU's capacity."""
    scale = MS if stack.timed else 1
    edges = [edge / scale for edge in stack.edges]
    below = [0.0] * len(stack.ops)
    for category, amounts in stack.held.items():
        top = [low + amount / GIB for low, amount in zip(below, amounts)]
        xs, ys = steps(edges, top)
        axes.fill_between(xs, steps(edges, below)[1], ys, color=CATEGORY_COLOURS[category], linewidth=0)
        axes.plot(xs, ys, color="white", linewidth=0.5)
        below = top
    _mark(axes, stack, edges)
    axes.set_xlim(edges[0], edges[-1])
    axes.set_title(stack.name, loc="left", fontsize=10)
    axes.set_ylabel("GiB on a rank", fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    if stack.timed:
        axes.set_xlabel("time, ms", fontsize=9)
    else:
        shown = [*range(0, len(stack.ops) - 1, -(-len(stack.ops) // TICKS)), len(stack.ops) - 1]
        shown = shown[:-2] + shown[-1:] if shown[-1] - shown[-2] < len(stack.ops) / TICKS / 2 else shown
        axes.set_xticks([i + 0.5 for i in shown], [stack.ops[i] for i in shown], rotation=35, ha="right", fontsize=8)


def _mark(axes, stack, edges):
    peak, total = stack.peak, stack.totals[stack.peak] / GIB
    middle = (edges[peak] + edges[peak + 1]) / 2
    colour = "black" if stack.breach is None else CAP_COLOUR
    side = "right" if middle > (edges[0] + edges[-1]) / 2 else "left"
    text = f"peak {total:.1f} GiB: {stack.ops[peak]}"
    axes.annotate(
        text, (middle, total), xytext=(-14 if side == "right" else 14, 12), textcoords="offset points", ha=side, fontsize=9,
        color=colour, fontweight="bold", arrowprops={"arrowstyle": "-|>", "color": colour},
    )  # fmt: skip
    if stack.capacity_bytes:
        capacity = stack.capacity_bytes / GIB
        axes.axhline(capacity, color=CAP_COLOUR, linestyle="--", linewidth=1.4)
        for i, amount in enumerate(stack.totals):
            if amount > stack.capacity_bytes:
                axes.fill_between(
                    edges[i : i + 2], capacity, amount / GIB, facecolor="none", edgecolor=CAP_COLOUR, hatch="////", linewidth=0
                )


def bars_figure(bars, *, capacity_bytes=None, longest_bytes=None, width_in=12.0):
    """A Figure of `bars` = {label: {category: bytes}}, one below the other, each with its sum; over `longest_bytes` they are cut off."""
    picture = Picture(figsize=(width_in, 0.45 * len(bars) + 1.2), layout="constrained", dpi=90)
    axes = picture.subplots()
    longest = longest_bytes or max(sum(held.values()) for held in bars.values())
    for row, held in enumerate(bars.values()):
        start = 0.0
        for category in [name for name in CATEGORY_COLOURS if held.get(name)]:
            width = max(0.0, min(held[category], longest - start)) / GIB
            axes.barh(row, width, left=start / GIB, color=CATEGORY_COLOURS[category], edgecolor="white", linewidth=0.6)
            start += held[category]
        colour = CAP_COLOUR if capacity_bytes and start > capacity_bytes else "black"
        cut = " →" if start > longest else ""
        axes.text(min(start, longest) / GIB, row, f" {start / GIB:,.1f} GiB{cut}", va="center", color=colour, fontsize=9)
    there = {name for held in bars.values() for name, size in held.items() if size}
    handles = [Patch(color=colour, label=name) for name, colour in CATEGORY_COLOURS.items() if name in there]
    if capacity_bytes:
        handles.append(axes.axvline(capacity_bytes / GIB, color=CAP_COLOUR, linestyle="--", linewidth=1.4, label="the GPU's memory"))
    axes.set_yticks(range(len(bars)), bars)
    axes.set(xlabel="GiB on a rank", ylim=(len(bars) - 0.4, -0.6), xlim=(0, 1.13 * longest / GIB))
    axes.spines[["top", "right"]].set_visible(False)
    picture.legend(handles=handles, loc="outside upper center", ncols=len(handles), frameon=False, fontsize=9)
    return picture


def zero_figure(ranks, curves, *, capacity_bytes=None, name="", width_in=8.0):
    """A Figure of ZeRO's curves: `curves` = {stage: [bytes for each number of `ranks`]}, both axes logarithmic."""
    picture = Picture(figsize=(width_in, 4), layout="constrained", dpi=110)
    axes = picture.subplots()
    for stage, amounts in curves.items():
        style = {"color": STAGE_COLOURS[stage], "linestyle": LINES[STAGE_DASHES[stage]], "linewidth": 2.2}
        gib = [amount / GIB for amount in amounts]
        axes.plot(ranks, gib, **style)
        axes.annotate(
            STAGE_NAMES[stage], (ranks[-1], gib[-1]), xytext=(6, -3), textcoords="offset points", color=STAGE_COLOURS[stage], fontsize=10
        )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    if capacity_bytes:
        axes.axhline(capacity_bytes / GIB, color=CAP_COLOUR, linestyle="--", linewidth=1.4)
        axes.text(ranks[0], capacity_bytes / GIB * 1.06, f"one GPU: {capacity_bytes / GIB:.0f} GiB", color=CAP_COLOUR, fontsize=9)
    axes.set_xticks(ranks, [str(n) for n in ranks])
    axes.set(xlabel="data-parallel ranks", ylabel="model states on a rank, GiB", title=name, xlim=(ranks[0], ranks[-1] * 2.2))
    axes.spines[["top", "right"]].set_visible(False)
    return picture
