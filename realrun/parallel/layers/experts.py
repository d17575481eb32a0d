"""Expert parallelism: each rank of an 'ep' group has its part of a layer's experts (Lepikhin et al.
2020, GShard, arXiv 2006.16668).

The group's ranks are replicas: each routes its own tokens. One all-to-all brings their copies to the
ranks of their experts, another one takes the results back, and the backward does the same with
their gradients, in reverse. All experts have inputs of one shape (`realrun.model.experts`), so the
parts that ranks exchange are equal.

An expert's gradient comes from the tokens of all replicas in the group, each of which has a loss of
its own. The loss of the step is the mean of theirs, so what arrives is divided by the number of
replicas, and what goes back to the tokens is multiplied by it. The group of the ranks that hold the
same experts then averages their gradients as a data-parallel group does. With sequence parallelism
each tensor-parallel rank has a part of its replica's tokens, and takes part by itself.
"""

from typing import Self

from torch import Tensor, nn

from realrun.comm.group import Group, part
from realrun.model.experts import Experts
from realrun.parallel.layers.tensor import conjugates


class ParallelExperts(Experts):
    """This rank's part of an `Experts`, and the whole router. `group`: the ranks that share them;
    None: this one has all. `tp`: how many ranks have the tokens of one replica. `InputError` where the
    experts cannot be shared evenly."""

    group: Group | None
    tp: int

    @classmethod
    def of(cls, whole: Experts, group: Group | None, tp: int = 1) -> Self:
        """This rank's part of `whole`, which routes the tokens that the rank has. The parameters are
        its own, and keep their names."""
        count = whole.model.experts
        layer = cls(whole.model, whole.capacity)
        own = count if group is None else part(count, group, "experts")
        first = 0 if group is None else group.place * own
        held = [str(number) for number in range(first, first + own)]
        layer.experts = nn.ModuleDict({name: layer.experts[name] for name in held})
        layer.to(whole.router.weight).load_state_dict(
            {name: whole.state_dict()[name] for name in layer.state_dict()}
        )
        layer.group, layer.tp = group, tp
        return layer

    def results(self, copies: Tensor) -> Tensor:
        """See `Experts`: those of all ranks' experts, of this rank's copies."""
        if self.group is None:
            return super().results(copies)
        ranks = self.group.size
        replicas = ranks / self.tp
        received = _exchanged(copies.unflatten(0, (ranks, -1)), self.group, replicas)
        # (rank whose tokens they are, own expert, ...) becomes (own expert, all its tokens, ...)
        own = received.transpose(0, 1).flatten(1, 2)
        made = super().results(own).unflatten(1, (ranks, -1)).transpose(0, 1)
        return _exchanged(made, self.group, 1 / replicas).flatten(0, 1)


def _exchanged(parts: Tensor, group: Group, gradients: float) -> Tensor:
    """`parts`, (ranks, ...), of which each rank of `group` gets its own from every other. The
    gradients that come back are multiplied by `gradients`."""
    return conjugates(
        parts,
        lambda parts: group.all_to_all(parts).wait(),
        lambda back: group.all_to_all(back).wait() * gradients,
    )
