"""What a rank holds over time."""

from simlab.trace import LIVE


def memory_curve(trace, rank, category=LIVE):
    """([time_s], [amount]) of `rank`: it holds amount[i] from time_s[i] until time_s[i + 1]. Starts with 0."""
    times, amounts = [trace.start_s], [0.0]
    for point in trace.memory:
        if point.rank == rank and point.category == category:
            times.append(point.time_s)
            amounts.append(point.amount)
    return times, amounts


def peak_memory(trace, category=LIVE):
    """[per rank] the most it ever holds of `category`, in that category's unit."""
    peaks = [0] * trace.ranks
    for point in trace.memory:
        if point.category == category:
            peaks[point.rank] = max(peaks[point.rank], point.amount)
    return peaks
