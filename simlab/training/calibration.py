"""Calibration: what was measured apart from any pipeline, and the prediction that follows from
it."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from simlab.cost import FIELD_OF_KIND, OpTimes
from simlab.engine import simulate
from simlab.errors import InputError
from simlab.program import Program
from simlab.spec.hardware import Link
from simlab.trace import Trace

FORMAT = "simlab-calibration-1"


@dataclass(kw_only=True)
class Calibration:
    """Op times per stage and a link per pair of neighbouring ranks, as measured on one machine."""

    op_seconds: dict[str, list[float]]
    """{op kind: [per stage] median seconds of one op, timed alone}"""
    links: dict[str, dict[str, Any]]
    """{"source-destination": {the fields of `Link`}} from ping-pong."""
    message_bytes: int
    """Size of an activation at a stage boundary."""
    op_gap_s: float = 0.0
    """Seconds between the end of an op and the start of the next where nothing is waited for or
    sent."""
    cores: float | None = None
    """Processors that the ranks share while computing; None if each has its own (or sleeps, in
    padded compute)."""
    metadata: dict[str, Any] = field(default_factory=dict)
    """How, where and when it was measured."""

    def times(self) -> OpTimes:
        """`OpTimes` of the measured stages."""
        given: dict[str, Any] = {
            FIELD_OF_KIND[kind]: tuple(seconds) for kind, seconds in self.op_seconds.items()
        }
        return OpTimes(**given)

    def link_of_pairs(self) -> dict[tuple[int, int], Link]:
        """{(source, destination): Link}"""
        links = {}
        for pair, link in self.links.items():
            source, destination = pair.split("-")
            links[int(source), int(destination)] = Link(**link)
        return links

    def predict(self, program: Program) -> Trace:
        """The simulated `Trace` of `program` on the machine that was measured."""
        trace = simulate(
            program,
            self.times(),
            link=self.link_of_pairs(),
            message_bytes=self.message_bytes,
            cores=self.cores,
            op_gap_s=self.op_gap_s,
        )
        trace.metadata["calibration"] = asdict(self)
        return trace

    def save(self, path: str | Path) -> None:
        """Write JSON to `path`."""
        Path(path).write_text(
            json.dumps({"format": FORMAT, **asdict(self)}, indent=1), encoding="utf-8"
        )

    @classmethod
    def load(cls, path: str | Path) -> "Calibration":
        """Read what `save` wrote; `InputError` names the file and what is wrong."""
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
            if data.pop("format") != FORMAT:
                raise ValueError(f"its format is not {FORMAT!r}")
            calibration = cls(**data)
            calibration.predict(Program(()))  # raises if a field is no good
            return calibration
        except OSError as error:
            raise InputError(f"cannot read {str(path)!r}: {error.strerror}") from error
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise InputError(
                f"{path}: not a calibration file: {type(error).__name__} {error}"
            ) from error
