"""A walk over the ops of one stage, unit by unit: what each does to the memory of a rank."""

from collections.abc import Mapping
from typing import NamedTuple

from simlab.layer.units import ENDS, UnitKind, is_layer, stage_units
from simlab.memory.ledger import Ledger, Phase
from simlab.memory.schemes import Scheme, Units, Use
from simlab.memory.tensors import heads_on_first_rank
from simlab.memory.units.backward import UnitBackward
from simlab.memory.units.forward import forward_phase
from simlab.memory.units.sizes import UnitPart, UnitSizes
from simlab.spec.model import Model
from simlab.spec.plan import Plan

LOSS_BYTES = 4
"""Bytes of a logit in the loss, fp32 always."""
FORWARD = Use("F", first=False)

Parts = dict[tuple[UnitPart, str, bool, bool, bool], Phase]
"""{(part of a unit, kind of the op, whether it makes the first gradients, whether the head's
gradient waits, whether the table's is added to the head's): what it does}"""


class Shape(NamedTuple):
    """What a stage consists of."""

    layers: tuple[UnitKind, ...]
    """The kind of each layer."""
    first: bool
    last: bool

    @property
    def units(self) -> Units:
        """In the order of a forward."""
        return stage_units(self.layers, first=self.first, last=self.last)


def sizes_of(model: Model, plan: Plan, number: float, logit: float) -> dict[UnitPart, UnitSizes]:
    """{part of a model: its `UnitSizes`}. number: bytes of a number; logit: of one in the loss."""
    found = {kind: UnitSizes(model.of_kind(kind), plan, number, logit) for kind in model.counts}
    ends = next(iter(found.values()))  # which have the hidden states of every layer
    return found | dict.fromkeys((*ENDS, "loss"), ends)


class Piece(NamedTuple):
    """A part of an op: so many units that each do the same to the memory."""

    unit: UnitKind
    many: int
    phase: Phase


class StageWalk:
    """What the ops of one stage do to the memory of a rank."""

    def __init__(
        self,
        model: Model,
        plan: Plan,
        shape: Shape,
        scheme: Scheme,
        *,
        sizes: Mapping[UnitPart, UnitSizes] | None = None,
        sums_in_place: bool = True,
        parts: Parts | None = None,
    ) -> None:
        """sizes: see `sizes_of`. parts: where the phases of parts of units are kept, which stages may
        share."""
        self.model, self.plan, self.shape, self.scheme = model, plan, shape, scheme
        self.sizes = sizes or sizes_of(model, plan, plan.element_bytes, LOSS_BYTES)
        self.sums_in_place = sums_in_place
        self.waits = model.tied_head and shape.first and shape.last
        self.table_is_added = heads_on_first_rank(model, plan) and shape.first and not shape.last
        self._parts: Parts = {} if parts is None else parts
        self._phases: dict[tuple[tuple[UnitKind | None, ...], Use], Phase] = {}
        self._ops: dict[Use, Phase] = {}

    def op(self, use: Use) -> Phase:
        """What an op does, all of it."""
        if use not in self._ops:
            ledger = Ledger()
            for piece in self.pieces(use):
                ledger.add(piece.phase.repeated(piece.many))
            ledger.free(*((name, ledger.held[name]) for name in self.scheme.until_op_ends))
            self._ops[use] = ledger.phase
        return self._ops[use]

    def units_of(self, use: Use) -> list[tuple[UnitKind, Phase]]:
        """[(kind of a unit, what the op does in it)], in order."""
        return [(its.unit, its.phase) for its in self.pieces(use) for _ in range(its.many)]

    def pieces(self, use: Use) -> list[Piece]:
        """The op's `Piece`s, in order: a unit is told from the next by its kind and by those of
        its neighbours."""
        units = self.shape.units if use.kind == "F" else self.shape.units[::-1]
        reach = self.scheme.ahead + 1
        around = (None, *units, *(None,) * reach)
        pieces, before = [], None
        for at, unit in enumerate(units):
            key = around[at : at + 2 + reach], use
            if key == before:
                pieces[-1] = pieces[-1]._replace(many=pieces[-1].many + 1)
                continue
            if key not in self._phases:
                self._phases[key] = self._unit(units, at, use)
            pieces.append(Piece(unit, 1, self._phases[key]))
            before = key
        return pieces

    def _unit(self, units: Units, at: int, use: Use) -> Phase:
        ledger = Ledger()
        (self._forward if use.kind == "F" else self._backward)(ledger, units, at, use)
        return ledger.phase

    def _part(self, part: UnitPart, use: Use) -> Phase:
        """The `Phase` of an op in a part of a unit."""
        backward = use.kind != "F"
        first = use.first and self.scheme.first_differs
        key = part, use.kind, first, self.waits, self.table_is_added
        sizes = self.sizes[part]
        if key not in self._parts:
            if backward:
                walk = UnitBackward(
                    of=sizes,
                    scheme=self.scheme,
                    kind=use.kind,
                    first=use.first,
                    sums_in_place=self.sums_in_place,
                    waits=self.waits,
                    table_is_added=self.table_is_added,
                )
                self._parts[key] = walk.phase(part)
            else:
                self._parts[key] = forward_phase(sizes, part)
        return self._parts[key]

    def _forward(self, ledger: Ledger, units: Units, at: int, use: Use) -> None:
        unit, hidden = units[at], self.sizes[units[at]].hidden
        if at == 0 and not self.shape.first:
            ledger.op(("activations", hidden))  # the message
        self.scheme.begins(ledger, units, at, use)
        ledger.add(self._part(unit, use))
        self.scheme.ends(ledger, units, at, use)
        if unit == "head":
            ledger.add(self._part("loss", use))
        self._forward_offloads(ledger, units, at)
        if at == len(units) - 1 and not self.shape.last:
            ledger.free(("activations", hidden))  # sent

    def _backward(self, ledger: Ledger, units: Units, at: int, use: Use) -> None:
        unit, hidden = units[at], self.sizes[units[at]].hidden
        if at == 0 and not self.shape.last and use.kind != "W":
            ledger.op(("temporaries", hidden))  # the message
        if unit == "head":
            ledger.add(self._part("loss", use))
        self.scheme.begins(ledger, units, at, use)
        self._backward_offloads(ledger, units, at, use)
        ledger.add(self._part(unit, use))
        self.scheme.ends(ledger, units, at, use)
        if at == len(units) - 1 and not self.shape.first and use.kind != "W":
            ledger.free(("temporaries", hidden))  # sent

    # activations on the host
    # ------------------------------------------------------------------------------

    def _kept(self, units: Units) -> float:
        """Bytes of the activations of those of `units` that are layers."""
        return sum(self._part(u, FORWARD).end["activations"] for u in units if is_layer(u))

    def _forward_offloads(self, ledger: Ledger, units: Units, at: int) -> None:
        """A layer's activations leave while the next one computes."""
        if self.plan.offload != "activations" or not is_layer(units[at]):
            return
        own = () if units[at + 1 : at + 2] and is_layer(units[at + 1]) else (units[at],)
        ledger.free(("activations", self._kept((*units[max(0, at - 1) : at], *own))))

    def _backward_offloads(self, ledger: Ledger, units: Units, at: int, use: Use) -> None:
        """They come back a layer ahead."""
        if self.plan.offload != "activations" or not is_layer(units[at]) or use.kind == "W":
            return
        own = () if at and is_layer(units[at - 1]) else (units[at],)
        ledger.op(("activations", self._kept((*own, *units[at + 1 : at + 2]))))
