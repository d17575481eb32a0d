"""op → seconds."""

from dataclasses import dataclass

from simlab.errors import InputError

FIELD_OF_KIND = {"F": "forward_s", "B": "backward_s", "I": "input_grad_s", "W": "weight_grad_s"}


@dataclass(frozen=True, kw_only=True)
class OpTimes:
    """How long each op kind takes: one number for all stages, or one per stage.

    Kinds left None are not known: simulating a program that has them is an error. Leaves out: variation between
    microbatches.
    """

    forward_s: float | tuple[float, ...] | None = None
    """F, seconds."""
    backward_s: float | tuple[float, ...] | None = None
    """B, the full backward, seconds."""
    input_grad_s: float | tuple[float, ...] | None = None
    """I, the backward down to the input gradient, seconds."""
    weight_grad_s: float | tuple[float, ...] | None = None
    """W, the rest of the backward, seconds."""

    def __post_init__(self):
        for field in FIELD_OF_KIND.values():
            value = getattr(self, field)
            if value is None:
                continue
            if not isinstance(value, (int, float)):
                value = tuple(value)
                object.__setattr__(self, field, value)
            for number in value if isinstance(value, tuple) else (value,):
                if not 0 <= number < float("inf"):
                    raise InputError(f"{field} = {number!r}: give a finite number of seconds, 0 or more")

    def table(self, program):
        """{(stage, kind): seconds} for every stage and kind that `program` has; `InputError` where one is unknown."""
        return {pair: self._seconds(*pair) for pair in sorted({(op.stage, op.kind) for op in program.rank_of})}

    def _seconds(self, stage, kind):
        value = getattr(self, FIELD_OF_KIND[kind])
        if value is None:
            raise InputError(f"the program has {kind} ops, but {FIELD_OF_KIND[kind]} is not given")
        if isinstance(value, tuple):
            if stage >= len(value):
                raise InputError(f"{FIELD_OF_KIND[kind]} has {len(value)} stages, but the program has a stage {stage}")
            return value[stage]
        return value
