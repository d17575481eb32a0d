"""It finds what is known of the source of a published row, and is not said in the row.

`sources.json` is one table: (a pattern of sources, and of releases, models, GPUs and precisions where a
fact is of some only) → facts, each with the file and the line that says so. A later entry counts more
than an earlier one, and a column of the row more than all of them.
"""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

from simlab.studies.published.words import Row, number_of, precision_of, whole, yes_or_no

Facts = dict[str, Any]
"""{field of `Plan`: value}, and

machine:      {the usual machine of a GPU: the one that the source ran on};
mtp_layers:   as in `Model`, of what is trained;
stage_layers: {number of stages, as a text: layers of each};
nics:         (NICs of a node, bytes/s of each)."""

NICS = (
    r"(\d+)\s*(?:x\s*|\w+\s+)(\d+)\s?g(?:b(?:/s|ps|it/s)?)?\s+(?:\w+\s+)?(?:links?|nics?)?\s*"
    r"(?:/|per|a)\s?node"
)
"""A pattern of the NICs of a node and the Gb/s of each, as in "4 OmniPath 100G links/node"."""
MODULES = {
    "outputs": r"layernorm|moe_act|mla_up_proj",
    "selective": "core_attn",
    "none": "^none$|mlp",
}
"""{recomputation: a pattern of Megatron-LM's --recompute-modules}; the first one that matches counts."""


@cache
def _table() -> list[dict[str, Any]]:
    path = Path(__file__).with_name("sources.json")
    entries: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    return entries


def facts_of(row: Row, model: str) -> Facts:
    """What the table and the row's own columns say of a row whose model is called `model`."""
    source, gpu = (row.get("source") or "").lower(), row["gpu"].lower()
    release = release_of(row)
    found: Facts = {}
    for entry in _table():
        since, before = entry.get("since", ""), entry.get("before", "~")
        if (
            re.search(entry["source"], source)
            and re.search(entry.get("model", ""), model.lower())
            and re.search(entry.get("gpu", ""), gpu)
            and re.search(entry.get("precision", ""), row["precision"].lower())
            and (("since" not in entry and "before" not in entry) or since <= release < before)
        ):
            found |= entry["facts"]
    return found | _of_columns(row, f"{gpu} {source}")


def release_of(row: Row) -> str:
    """The release of the library, '26.04.01': of the column library_release, or in brackets in the
    source; "" if neither says one."""
    said = re.search(r"\((\d\d\.\d\d(?:\.\d\d)?)", row.get("source") or "")
    return (row.get("library_release") or "").strip() or (said[1] if said else "")


def _of_columns(row: Row, prose: str) -> Facts:
    """What a row says in columns that it may have, and of NICs in `prose`."""
    found: Facts = {}
    if dispatcher := (row.get("dispatcher") or "").strip().lower():
        once = re.search("flex|deepep|hybridep|once", dispatcher)
        found["dispatcher"] = "once-a-node" if once else "all-to-all"
    if (row.get("ep_overlap") or "").strip():
        found["ep_overlap"] = yes_or_no("ep_overlap", row["ep_overlap"])
    if (row.get("etp") or "").strip():
        found["etp"] = whole(row, "etp")
    if modules := (row.get("recompute_modules") or "").strip().lower():
        found["recompute"] = next(
            (kind for kind, words in MODULES.items() if re.search(words, modules)), "full"
        )
    if (row.get("gradient_bytes") or "").strip():
        found["gradient_bytes"] = whole(row, "gradient_bytes")
    if (row.get("gradient_bits") or "").strip():
        found["gradient_bytes"] = whole(row, "gradient_bits") // 8
    if nics := re.search(NICS, f"{(row.get('nics') or '').lower()} a node {prose}"):
        found["nics"] = int(nics[1]), number_of(nics[2]) * 1e9 / 8
    return found


def effective(facts: Facts, *, zero: int, tp: int, ep: int, precision: str) -> Facts:
    """Those of the facts that have an effect in a plan of ZeRO stage `zero` and these degrees."""
    needs = {
        "moment_bytes": zero > 0,
        "fp8_param_gather": zero > 0 and precision_of(precision).startswith("fp8"),
        "tp_overlap": tp > 1,
        "dispatcher": ep > 1,
        "fp8_head": precision_of(precision) == "fp8-mx",
        "fused_experts": ep > 1 and precision_of(precision) == "fp8-mx",
        "ep_overlap": ep > 1,
        "etp": tp > 1 and ep > 1,
    }
    return {name: value for name, value in facts.items() if needs.get(name, True)}
