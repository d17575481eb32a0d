"""FSDP2's part of the memory: what it gathers, copies, frees and reduces around each unit of an op."""

from simlab.layer.parameters import Layers, counted
from simlab.layer.units import ENDS, is_layer
from simlab.lowering.zero import runs_in_torchs_pipeline
from simlab.memory.ledger import Ledger
from simlab.memory.schemes import NumberBytes, Scheme, Units, Use
from simlab.memory.tensors import Padded, padded
from simlab.spec.model import Model
from simlab.spec.plan import Plan

Group = str
"""A group of parameters that are gathered together: a kind of layers, or 'root'."""


def _group(units: Units, at: int) -> Group:
    """The group of unit `at` of an op: its own, if it is a layer, or the root's; the root, too,
    where there is no such unit."""
    if not 0 <= at < len(units):
        return "root"
    return units[at] if is_layer(units[at]) else "root"


def _last_layer(units: Units) -> Group | None:
    """The group of the last of `units` that is a layer, if one of the last two is."""
    found = [_group(units, at) for at in (len(units) - 1, len(units) - 2)]
    return next((group for group in found if group != "root"), None)


class Gathered(Scheme):
    """FSDP2: groups of parameters, each gathered for its forward and for its backward. A layer is a
    group; what a stage has of embedding and head is the root's.

    Each tensor is cut in dimension 0 into N pieces of ceil(rows / N) rows, the last ones padded to
    that; so padded are gathered parameters, both buffers and sharded gradients. (Optimizer states
    are not, but rank 0, meant here, has no padding in its piece.)

    Gathering a group takes the all-gather's buffer, and the parameters that are copied out of it.
    In forward the buffer is kept so that the next all-gather may overlap the copy: it goes only
    when the next group has been copied out, so that two of them and the parameters are held at that
    moment, and the last one goes when the root's forward is over. In backward it goes at once, but
    the next group's all-gather is issued before this group's backward. A group that was not
    resharded is not gathered again.

    When a group's backward is over, its parameters go; so does the input of the previous
    reduce-scatter. The input of this one is made, the gradients are copied in and go (the last of
    them when the reduce-scatter is issued), its output stays: the shard's gradient, or is added to
    it. A single rank gathers without a buffer, but reduces with one.

    In torch's pipelines a backward leaves its group's gradients whole, in the type in which they
    are reduced. When the stage's last backward is over its groups are reduced like this, one after
    the other, and their parameters go.
    """

    first_differs = True

    def __init__(
        self,
        sizes: NumberBytes,
        model: Model,
        plan: Plan,
        units: Units,
        *,
        root_stays: bool = False,
    ) -> None:
        """root_stays: whether the root's parameters stay gathered from a forward to its backward,
        whatever the others do."""
        super().__init__(sizes)
        self.ranks, self.root_stays = plan.shards, root_stays
        self.last_differs = runs_in_torchs_pipeline(plan)
        root = tuple(unit for unit in ENDS if unit in units)
        self.groups: dict[Group, Padded] = {
            kind: padded(model, plan, (kind,)) for kind in model.counts
        }
        self.groups["root"] = padded(model, plan, root)
        self.has_root = bool(root)

    def numbers(self, layers: Layers) -> float:
        """Parameters of a stage with these layers, with padding."""
        of_layers = (n * self.groups[kind].padded for kind, n in counted(layers).items())
        return sum(of_layers) + self.groups["root"].padded

    def accumulate(self, ledger: Ledger, size: float, first: bool) -> None:
        """It stays whole until its group's backward is over. In torch's pipelines, where it has the
        type that is reduced, autograd adds it to the one that has stayed whole."""
        if self.last_differs and not first and self.sizes.made == self.sizes.reduced:
            ledger.free(("temporaries", size))
        else:
            ledger.relabel("temporaries", "unsharded_gradients", size)

    def _buffer(self, group: Group) -> float:
        return self.groups[group].padded * self.sizes.gathered if self.ranks > 1 else 0.0

    def _whole(self, group: Group) -> float:
        return self.groups[group].padded * self.sizes.gathered

    def _issue(self, ledger: Ledger, group: Group) -> None:
        """All-gather: a cast of the shard where the two differ in type, and the buffer."""
        cast = 0.0
        if self.sizes.gathered != self.sizes.parameter and self.ranks > 1:
            cast = self.groups[group].own * self.sizes.gathered
        ledger.op(("temporaries", cast))
        ledger.op(("all_gather", self._buffer(group)), free=(("temporaries", cast),))

    def _copy_out(self, ledger: Ledger, group: Group, frees: float) -> None:
        ledger.op(("unsharded_parameters", self._whole(group)), free=(("all_gather", frees),))

    def begins(self, ledger: Ledger, units: Units, at: int, use: Use) -> None:
        """Gather the root's with the op, a layer's with the layer or before."""
        if use.gathered:
            return
        if use.kind == "F":
            self._forward_begins(ledger, units, at)
        elif use.kind in "BI":
            self._backward_begins(ledger, units, at)

    def _forward_begins(self, ledger: Ledger, units: Units, at: int) -> None:
        if at == 0 and self.has_root:
            self._issue(ledger, "root")
            self._copy_out(ledger, "root", 0.0)
        if (own := _group(units, at)) != "root":
            self._issue(ledger, own)
            self._copy_out(ledger, own, self._buffer(_group(units, at - 1)))

    def _backward_begins(self, ledger: Ledger, units: Units, at: int) -> None:
        if at == 0 and self.has_root:
            if not self.root_stays:
                self._issue(ledger, "root")
                self._copy_out(ledger, "root", self._buffer("root"))
            for unit in [unit for unit in units[:2] if is_layer(unit)][:1]:
                self._issue(ledger, _group((unit,), 0))
        if (own := _group(units, at)) == "root":
            return
        if at == 0 and not self.has_root:
            self._issue(ledger, own)
        self._copy_out(ledger, own, self._buffer(own))
        if (following := _group(units, at + 1)) != "root":
            self._issue(ledger, following)

    def ends(self, ledger: Ledger, units: Units, at: int, use: Use) -> None:
        """Free parameters; reduce gradients."""
        last = at == len(units) - 1
        if use.kind == "F":
            self._forward_ends(ledger, units, at, use, last)
            return
        if self.last_differs:
            self._stage_goes_on(ledger, units, at, use, last)
            return
        if (own := _group(units, at)) != "root":
            before = _group(units, at - 1)
            self._group_ends(ledger, own, None if before == "root" else before, use)
        if last and self.has_root:
            self._group_ends(ledger, "root", _last_layer(units), use)
        if last and use.kind in "BW":
            group: Group = "root" if self.has_root else own
            ledger.free(("reduce_scatter", self.groups[group].padded * self.sizes.reduced))

    def _stage_goes_on(self, ledger: Ledger, units: Units, at: int, use: Use, last: bool) -> None:
        """In torch's pipelines: add a unit's gradients to those of earlier backwards, and reduce
        those of the stage if they are complete."""
        if use.kind == "I":
            return
        if (own := _group(units, at)) != "root":
            self._accumulate_whole(ledger, own, use)
        if not last:
            return
        if self.has_root:
            self._accumulate_whole(ledger, "root", use)
        if use.last:
            self._reduce_stage(ledger, units, use)

    def _reduce_stage(self, ledger: Ledger, units: Units, use: Use) -> None:
        """Reduce the gradients of a stage, group by group, the root's first, and free its
        parameters."""
        groups: list[Group] = ["root"] if self.has_root else []
        groups += [unit for unit in units if is_layer(unit)]
        before: Group | None = None
        for group in groups:
            self._reduce(ledger, group, before, use, self.sizes.reduced)
            if not use.stays:
                ledger.free(("unsharded_parameters", self._whole(group)))
            before = group
        last = self.groups[groups[-1]].padded * self.sizes.reduced
        ledger.free(("reduce_scatter", last))

    def _accumulate_whole(self, ledger: Ledger, group: Group, use: Use) -> None:
        """Add gradients that a backward has made to the whole ones, which have another type; those
        of the same type autograd has added."""
        its, sizes = self.groups[group], self.sizes
        if sizes.made == sizes.reduced:
            return
        ledger.op(
            ("unsharded_gradients", its.whole * sizes.reduced if use.first else 0.0),
            free=(("unsharded_gradients", its.whole * sizes.made),),
        )

    def _forward_ends(self, ledger: Ledger, units: Units, at: int, use: Use, last: bool) -> None:
        if (own := _group(units, at)) != "root" and use.frees:
            ledger.free(("unsharded_parameters", self._whole(own)))
        if not last:
            return
        if self.has_root and use.frees and not self.root_stays:
            ledger.free(("unsharded_parameters", self._whole("root")))
        if not use.gathered:
            ledger.free(("all_gather", self._buffer(_last_layer(units) or "root")))

    def _group_ends(self, ledger: Ledger, group: Group, before: Group | None, use: Use) -> None:
        if use.frees:
            ledger.free(("unsharded_parameters", self._whole(group)))
        if use.kind != "I":
            self._reduce(ledger, group, before, use, self.sizes.made)

    def _reduce(
        self, ledger: Ledger, group: Group, before: Group | None, use: Use, number_bytes: float
    ) -> None:
        """Reduce a group's gradients, after the group `before`. number_bytes: of a number of
        them."""
        its, sizes = self.groups[group], self.sizes
        if before:
            ledger.free(("reduce_scatter", self.groups[before].padded * sizes.reduced))
        copied = (its.whole - its.last) * number_bytes
        ledger.op(
            ("reduce_scatter", its.padded * sizes.reduced),
            free=(("unsharded_gradients", copied),),
        )
        shard, makes = its.own * sizes.gradient, use.first or self.last_differs
        ledger.op(
            ("gradients" if makes else "temporaries", shard),
            free=(
                ("unsharded_gradients", its.last * number_bytes),
                ("temporaries", 0.0 if makes else shard),
            ),
        )
