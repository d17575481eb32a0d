"""It writes seconds, bytes and fractions for people. Everywhere else simlab uses SI base units:
seconds, bytes, bytes per second."""

MS = 1e-3
"""Seconds in a millisecond."""
KIB, MIB, GIB = 2**10, 2**20, 2**30


def seconds_text(seconds: float) -> str:
    """`seconds` as a person reads it: '1.25 s', '690.0 ms', '57 µs'."""
    if abs(seconds) >= 1e6 or 0 < abs(seconds) < 1e-6:
        return f"{seconds:.3g} s"
    if abs(seconds) >= 1:
        return f"{seconds:.3f} s"
    if abs(seconds) >= 1e-3:
        return f"{seconds * 1e3:.1f} ms"
    return f"{seconds * 1e6:.0f} µs"


def bytes_text(count: float) -> str:
    """`count` bytes as a person reads it: '512 B', '1.5 MiB'."""
    for unit, size in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if abs(count) >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} B"


def percent_text(fraction: float) -> str:
    """`fraction` as a signed percentage: '+1.9%'."""
    return f"{round(fraction * 100, 1) + 0.0:+.1f}%"  # Adding 0.0 makes +0.0 of -0.0.
