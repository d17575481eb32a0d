"""One machine, timed at many sizes, and the cluster that explains these samples best.

The fit uses the simulator's own formulas, and none of them is written again here. A kernel's
efficiency is the value at which the formula returns the measured time; it is found by bisection. A
fabric's latencies and bandwidths enter the formula linearly: each column of the fit is the time
that the formula gives for one second of latency, or one byte per second of bandwidth, alone. There
is one figure for each kind of work. What caches hold, and gloo's changes of algorithm with the
size, are left out; they show in the error at the sizes that are kept apart from the fit.
"""
