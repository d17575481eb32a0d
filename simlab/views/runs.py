"""Predicted against measured step times of published runs, as a still picture."""

MARKS = (
    ("#0072B2", "o"), ("#D55E00", "s"), ("#009E73", "^"), ("#CC79A7", "D"), ("#E69F00", "v"), ("#56B4E9", "P"), ("#000000", "X"),
    ("#F0E442", "o"), ("#882255", "<"), ("#AAAAAA", "."),
)  # fmt: skip


def runs_figure(rows, errors):
    """A matplotlib figure: each run's predicted over measured step time against its measured one.

    rows:   [(suite, measured step time in s, predicted step time in s)].
    errors: {suite: mean absolute error, percent}, for the legend.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 5), layout="constrained")
    axes = figure.add_subplot()
    axes.axhspan(0.9, 1.1, color="#F2F2F2", label="within 10%")
    axes.axhline(1, color="#666666", linewidth=1)
    for suite, (colour, marker) in zip(sorted({row[0] for row in rows}), MARKS * (1 + len(rows))):
        its = [(measured_s, predicted_s / measured_s) for name, measured_s, predicted_s in rows if name == suite]
        small = 18 if len(its) > 50 else 42
        label = f"{suite}: {len(its)} runs, {errors[suite]:.1f}%"
        axes.scatter(
            *zip(*its),
            s=small,
            marker=marker,
            color=colour,
            edgecolors="#444444",
            linewidths=0.3,
            label=label,
            zorder=1 if len(its) > 50 else 2,
        )
    axes.set_xscale("log")
    axes.set_ylim(0.5, 1.5)
    axes.set_xlabel("measured step time, s")
    axes.set_ylabel("predicted / measured")
    axes.set_title("Published training runs, predicted", fontsize=11, loc="left")
    figure.legend(
        title="suite: runs, mean absolute error", alignment="left", title_fontsize=9, loc="outside right upper", fontsize=8, frameon=False
    )
    return figure
