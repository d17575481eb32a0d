"""Fits with coefficients that are not negative."""

from collections.abc import Sequence


def nonnegative_fit(
    rows: Sequence[Sequence[float]],
    seconds: Sequence[float],
    reweightings: int = 15,
    sweeps: int = 400,
) -> list[float]:
    """The coefficients, each at least 0, with the least sum of |row . coefficients / seconds - 1|
    over the rows.

    It minimises the squares of the relative errors by coordinate descent, over and over, with each
    row weighted by 1 / |its error|. These iteratively reweighted least squares go to least absolute
    values: one odd sample of ten changes little.
    """
    columns = range(len(rows[0]))
    relative = [[value / time for value in row] for row, time in zip(rows, seconds)]
    scale = [max(max(row[c] for row in relative), 1e-300) for c in columns]
    scaled = [[row[c] / scale[c] for c in columns] for row in relative]
    found, weights = [0.0 for _ in columns], [1.0] * len(rows)
    for _ in range(reweightings):
        gram = [
            [sum(w * row[a] * row[b] for w, row in zip(weights, scaled)) for b in columns]
            for a in columns
        ]
        aims = [sum(w * row[a] for w, row in zip(weights, scaled)) for a in columns]
        for _ in range(sweeps):
            for c in columns:
                if gram[c][c] > 0:
                    others = sum(gram[c][b] * found[b] for b in columns if b != c)
                    found[c] = max(0.0, (aims[c] - others) / gram[c][c])
        errors = [abs(sum(value * x for value, x in zip(row, found)) - 1) for row in scaled]
        weights = [1 / max(error, 0.01) for error in errors]
    return [value / scale[c] for c, value in zip(columns, found)]
