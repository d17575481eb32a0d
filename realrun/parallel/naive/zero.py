"""ZeRO: what data parallelism keeps n times, each of n ranks keeps an n-th of (Rajbhandari et al.
2020, arXiv 1910.02054, section 5).

A step of m backwards sends, per rank, of Ψ bytes of parameters or gradients:

    stage     kept in n parts   bytes             by
    naive 1   optimizer         3 (n-1)/n Ψ       all-reduce, all-gather
    1         optimizer         2 (n-1)/n Ψ       reduce-scatter, all-gather: as plain data parallelism
    2         and gradients     (m+1) (n-1)/n Ψ   a reduce-scatter after each backward, all-gather
    3         and parameters    3m (n-1)/n Ψ      an all-gather in the forward and again in the
                                                  backward, reduce-scatter

(Section 7 has m = 1.) The bytes are those of rings, without padding. Every class takes

    layers:    the modules whose parameters travel together. Parameters that are in none of them
               travel together as the root.
    optimizer: function of shards that returns a torch optimizer which treats each number by itself:
               Adam or SGD, but not LAMB, Adafactor or Muon, which look at matrices.
    master:    the type of the shards. With a narrower model this is mixed precision with fp32
               master weights.
    reduce:    the type in which gradients travel; None: the parameters'.

Leaves out: frozen parameters, offload, hybrid sharding, ranks whose backwards reach different
parameters.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from realrun.comm.group import Group
from realrun.parallel.flat import FlatUnit
from realrun.parallel.precision import LossScaler
from simlab.errors import InputError


class Zero1:
    """The optimizer is sharded. Backwards add up in `parameter.grad` as always, and `step` does the
    rest."""

    frees = False

    def __init__(
        self,
        module: nn.Module,
        layers: Sequence[nn.Module],
        group: Group,
        optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer],
        *,
        master: torch.dtype = torch.float32,
        reduce: torch.dtype | None = None,
    ) -> None:
        self.module, self.group = module, group
        of_layers = {p for layer in layers for p in layer.parameters()}
        parts = {"root": [p for p in module.parameters() if p not in of_layers]}
        parts |= {
            f"layer {number}": list(layer.parameters()) for number, layer in enumerate(layers)
        }
        self.units = [
            FlatUnit(name, part, group, master=master, reduce=reduce, frees=self.frees)
            for name, part in parts.items()
            if part
        ]
        self.optimizer = optimizer([unit.shard for unit in self.units])

    @property
    def shards(self) -> list[nn.Parameter]:
        """This rank's part of each unit, with its gradient after `reduce`."""
        return [unit.shard for unit in self.units]

    def reduce(self) -> None:
        """Make the shards' gradients complete. Called after the last backward."""
        for unit in reversed(self.units):
            unit.reduce()
        for unit in self.units:
            unit.reduced()

    def step(
        self, *, scaler: LossScaler | None = None, clip: Callable[[], Any] | None = None
    ) -> bool:
        """Reduce the gradients, update the shards, and make the parameters whole again. Returns
        whether it updated.

        scaler: a `precision.LossScaler`, whose groups must have this one among them. clip: called
        before the update, see `clipping`.
        """
        self.reduce()
        if finite := scaler is None or scaler.unscale([shard.grad for shard in self.shards]):
            if clip is not None:
                clip()
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if finite:
            self._publish()
        return finite

    def _publish(self) -> None:
        for unit in self.units:
            unit.gather()
        for unit in self.units:
            unit.gathered()

    def state_bytes(self) -> dict[str, int]:
        """{"parameters", "gradients", "optimizer": bytes on this rank now}; without the optimizer's
        counters of steps.

        A shard of its own counts as the optimizer's where parameters are kept whole (master
        weights), as parameters where they are not.
        """
        own = sum(unit.shard.nbytes for unit in self.units if not unit.is_view)
        gradients = [
            tensor.grad for unit in self.units for tensor in (unit.shard, *unit.parameters)
        ]
        states = [
            value
            for state in self.optimizer.state.values()
            for value in state.values()
            if value.dim()
        ]
        return {
            "parameters": sum(unit.whole_bytes for unit in self.units) + own * self.frees,
            "gradients": sum(gradient.nbytes for gradient in gradients if gradient is not None),
            "optimizer": sum(value.nbytes for value in states) + own * (not self.frees),
        }


class NaiveZero1(Zero1):
    """It all-reduces whole gradients, of which each rank then uses an n-th. That sends half as many
    bytes again as needed."""

    def reduce(self) -> None:
        for unit in reversed(self.units):
            flat = self.group.all_reduce(unit.flat_gradient()).wait()
            unit.add_gradient(self.group.own(flat, 0))


class Zero2(Zero1):
    """Gradients are sharded, too: those of a layer are reduced, and dropped, as soon as the
    backward has made them all.

    The reduction of one layer runs beside the next layer's backward, and must have ended before a
    third one begins. So the whole gradients of at most two layers exist at a time.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._missing = {unit: set(unit.parameters) for unit in self.units}
        self._unit_of = {p: unit for unit in self.units for p in unit.parameters}
        self._reducing: list[FlatUnit] = []
        for parameter in self._unit_of:
            parameter.register_post_accumulate_grad_hook(self._accumulated)

    def reduce(self) -> None:
        """Reduce the units that are left. Parts of the model that no backward used count as
        zero."""
        for unit in reversed(self.units):
            if any(p.grad is not None for p in unit.parameters) or (
                unit.shard.grad is None and unit not in self._reducing
            ):
                self._complete(unit)
        self._wait(0)

    def _accumulated(self, parameter: nn.Parameter) -> None:
        unit = self._unit_of[parameter]
        self._missing[unit].discard(parameter)
        if not self._missing[unit]:
            self._complete(unit)

    def _complete(self, unit: FlatUnit) -> None:
        self._wait(1)
        if unit in self._reducing:
            self._wait(0)
        unit.reduce()
        self._reducing.append(unit)
        self._missing[unit] = set(unit.parameters)

    def _wait(self, left: int) -> None:
        while len(self._reducing) > left:
            self._reducing.pop(0).reduced()


class Zero3(Zero2):
    """Parameters are sharded, too: those of a layer are gathered before its forward and freed after
    it, and so again in its backward. `InputError` where prefetch is no whole number of at least 0.

    prefetch: the number of layers that are gathered ahead, in the order of use, while one computes.
    0: each is gathered when it is needed, and everybody waits for it.

    The root is gathered once and stays until its backward is over, as FSDP2's does. A forward
    without gradients frees it at its end.
    """

    frees = True

    def __init__(
        self,
        module: nn.Module,
        layers: Sequence[nn.Module],
        group: Group,
        optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer],
        *,
        prefetch: int = 1,
        **options: Any,
    ) -> None:
        if not (isinstance(prefetch, int) and not isinstance(prefetch, bool) and prefetch >= 0):
            raise InputError(f"prefetch = {prefetch!r}: give a whole number of layers, at least 0")
        super().__init__(module, layers, group, optimizer, **options)
        self.prefetch, self._in_backward = prefetch, False
        self._layers = [unit for unit in self.units if unit.name != "root"]
        self._root = next((unit for unit in self.units if unit.name == "root"), None)
        with_parameters = [layer for layer in layers if next(layer.parameters(), None) is not None]
        module.register_forward_pre_hook(lambda module, inputs: self._begin())
        for at, layer in enumerate(with_parameters):
            layer.register_forward_pre_hook(lambda layer, inputs, at=at: self._before(at))
            layer.register_forward_hook(
                lambda layer, inputs, output, at=at: self._after(at, output)
            )
        module.register_forward_hook(lambda module, inputs, output: self._end(output))

    def _publish(self) -> None:
        """The next forward gathers what it needs."""

    def _begin(self) -> None:
        self._in_backward = False
        if self._root is not None:
            self._root.gathered()
        for unit in self._layers[: self.prefetch]:
            unit.gather()

    def _before(self, at: int) -> None:
        """Called ahead of a layer's forward. A recomputed forward (`recompute`) finds the layer
        gathered."""
        ahead = [] if self._in_backward else self._layers[at + 1 : at + 1 + self.prefetch]
        self._use(self._layers[at], ahead)

    def _use(self, unit: FlatUnit, ahead: Iterable[FlatUnit]) -> None:
        """Wait for `unit`. Those `ahead` are on their way before this returns."""
        unit.gather()
        for other in ahead:
            other.gather()
        unit.gathered()

    def _after(self, at: int, output: Tensor) -> None:
        if not self._in_backward:
            self._layers[at].free()
        if output.requires_grad:
            output.register_hook(lambda gradient: self._before_backward(at))

    def _before_backward(self, at: int) -> None:
        self._use(self._layers[at], self._layers[max(0, at - self.prefetch) : at][::-1])

    def _end(self, output: Tensor) -> None:
        if output.requires_grad:
            output.register_hook(lambda gradient: self._begin_backward())
        elif self._root is not None:
            self._root.free()

    def _begin_backward(self) -> None:
        self._in_backward = True
        if self._root is not None:  # another microbatch's backward may have freed it
            self._root.gathered()
        last = self._layers[-self.prefetch :][::-1] if self.prefetch else []
        for unit in last:
            unit.gather()

    def _complete(self, unit: FlatUnit) -> None:
        unit.free()
        super()._complete(unit)
