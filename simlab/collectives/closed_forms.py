"""What collectives take on links of their own: alpha (s per message) and beta (s per byte), S the
whole buffer, n ranks."""

from math import ceil, log2

from simlab.errors import InputError


def closed_form_s(
    name: str, ranks: int, size_bytes: float, latency_s: float, bandwidth_bytes_per_s: float
) -> float:
    """Seconds of the collective `name` on `ranks` ranks, each pair of which has a link of its own.

    ring all-reduce         2 (n-1) alpha + 2 (n-1)/n S beta
    tree all-reduce         2 ceil(lg n) (alpha + S beta)
    halving-doubling        2 lg n alpha + 2 (n-1)/n S beta
    all-gather, reduce-scatter (ring), all-to-all (pairwise)   (n-1) (alpha + S/n beta)
    broadcast (binomial)    ceil(lg n) (alpha + S beta)

    (Thakur, Rabenseifner and Gropp 2005, "Optimization of Collective Communication Operations in
    MPICH".) Leaves out the adding.
    """
    n, alpha, beta = ranks, latency_s, 1 / bandwidth_bytes_per_s
    steps = ceil(log2(n)) if n > 1 else 0
    forms = {
        "ring": 2 * (n - 1) * alpha + 2 * (n - 1) / n * size_bytes * beta,
        "tree": 2 * steps * (alpha + size_bytes * beta),
        "halving-doubling": 2 * steps * alpha + 2 * (n - 1) / n * size_bytes * beta,
        "all-gather": (n - 1) * (alpha + size_bytes / n * beta),
        "broadcast": steps * (alpha + size_bytes * beta),
    }
    forms |= dict.fromkeys(("reduce-scatter", "all-to-all"), forms["all-gather"])
    if name not in forms:
        raise InputError(f"no closed form for {name!r}; there is {', '.join(forms)}")
    return forms[name]


def busbw_factor(operation: str, ranks: int) -> float:
    """Bus bandwidth / algorithm bandwidth (S / t), as nccl-tests reports them: what a link carries
    for each byte of the buffer."""
    n = ranks
    factors = {"all-reduce": 2 * (n - 1) / n, "broadcast": 1.0, "reduce": 1.0}
    factors |= dict.fromkeys(("all-gather", "reduce-scatter", "all-to-all"), (n - 1) / n)
    if operation not in factors:
        raise InputError(f"no bus bandwidth for {operation!r}; there is {', '.join(factors)}")
    return factors[operation]
