"""The report of `realrun measure` as text."""

from typing import Any

from simlab.units import bytes_text, percent_text, seconds_text

BUSY = 0.05
"""The part of the time in which something else had the core, from which on this is noted."""


def text(result: dict[str, Any]) -> str:
    """The result for reading."""
    about, cluster = result["measured"], result["cluster"]
    gpu, reached, links = cluster["gpu"], cluster["gpu"]["efficiency"], cluster["intra"]
    flash = reached["attention"]["flash"]
    peaks = ", ".join(
        f"{precision} {flops / 1e9:.4g}" for precision, flops in gpu["peak_flops"].items()
    )
    lines = [
        f"{about['device']}, {about['ranks']} rank(s), {about['threads']} thread(s), {about['precision']}, torch {about['torch']}",
        f"products      {peaks} GFLOP/s at most; of it "
        + ", ".join(f"{role} {part:.2f}" for role, part in reached["matmul"].items()),
        f"attention     forward {flash[0]:.2f}, backward {flash[1]:.2f} of it, counting the unmasked half",
        f"memory        {gpu['memory_bandwidth_bytes_per_s'] / 1e9:.3g} GB/s copied; other kernels {reached['memory']:.2f} of it",
        f"kernel, host  {seconds_text(reached['kernel_s'])} a kernel; {cluster['host_op_s'] * 1e6:.1f} µs an op dispatched",
        f"links         {_links_text(links)}"
        if about["ranks"] > 1
        else "links         not measured: one rank",
        f"to host       {cluster['pcie_bytes_per_s'] / 1e9:.3g} GB/s; drive {cluster['nvme_bytes_per_s'] / 1e9:.3g} GB/s written",
    ]
    if about["waited"] > BUSY:
        lines.append(
            f"note          for {about['waited']:.0%} of the time something else had the core: measure again on a quiet machine"
        )
    if "comparison" in result:
        lines += comparison_lines(result["comparison"])
        if about["backend"] == "gloo" and about["ranks"] > 1:
            lines.append(
                "gloo's collectives do not follow latency + bytes / bandwidth, least of all where ranks outnumber idle cores"
            )
    return "\n".join([*lines, f"wrote {result['file']}"])


def _links_text(links: dict[str, float]) -> str:
    top = links["bandwidth_bytes_per_s"]
    ring, message = (_rate_text(top * links[name]) for name in ("efficiency", "message_efficiency"))
    copy = (
        f", copies {_rate_text(links['copy_bytes_per_s'])}" if "copy_bytes_per_s" in links else ""
    )
    return f"base {seconds_text(links['base_s'])}, hop {seconds_text(links['hop_s'])}; ring {ring}, messages {message}{copy}"


def _rate_text(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e9:.3g} GB/s" if bytes_per_s < 1e14 else "as fast as could be seen"


def comparison_lines(kinds: dict[str, Any]) -> list[str]:
    """Predicted against measured at the sizes that no fit has seen."""
    lines = ["", "predicted from the fit against measured, at other sizes than those fitted:"]
    for kind, its in kinds.items():
        lines.append(f"{kind:<20} median error {its['median_error']:.1%} of {len(its['rows'])}")
        for row in its["rows"]:
            times = f"{seconds_text(row['predicted_s']):>10} {seconds_text(row['measured_s']):>10} {percent_text(row['error']):>9}"
            lines.append(f"  {_sizes_text(row['sizes']):<44} {times}")
    return lines


def _sizes_text(sizes: dict[str, int]) -> str:
    return ", ".join(
        bytes_text(value) if name == "size_bytes" else f"{name} {value}"
        for name, value in sizes.items()
    )
