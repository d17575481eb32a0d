"""ZeRO: what data parallelism keeps n times, each of n ranks keeps an n-th of (Rajbhandari et al. 2020, arXiv 1910.02054, section 5).

    stage            kept in n parts               a step of m backwards sends, per rank, of Ψ bytes of parameters or gradients
    naive 1          optimizer                     3 (n-1)/n Ψ      all-reduce, all-gather
    1                optimizer                     2 (n-1)/n Ψ      reduce-scatter, all-gather: as plain data parallelism
    2                and gradients                 (m+1) (n-1)/n Ψ  a reduce-scatter after each backward, all-gather
    3                and parameters                3m (n-1)/n Ψ     all-gather in the forward and again in the backward, reduce-scatter

(Section 7 has m = 1.) As rings; padding not counted. Every class takes

    layers:    the modules whose parameters travel together; what is in none of them travels as the root.
    optimizer: shards → a torch optimizer that treats each number by itself (Adam, SGD; not LAMB, Adafactor, Muon, which look at matrices).
    master:    the type of the shards; with a narrower model this is mixed precision with fp32 master weights.
    reduce:    the type in which gradients travel; None: the parameters'.

Leaves out: frozen parameters, offload, hybrid sharding, ranks whose backwards reach different parameters.
"""

import torch

from realrun.parallel.flat import FlatUnit
from simlab.errors import InputError


class Zero1:
    """The optimizer is sharded. Backwards add up in `parameter.grad` as always; `step` does the rest."""

    frees = False

    def __init__(self, module, layers, group, optimizer, *, master=torch.float32, reduce=None):
        self.module, self.group = module, group
        of_layers = {p for layer in layers for p in layer.parameters()}
        parts = {"root": [p for p in module.parameters() if p not in of_layers]}
        parts |= {f"layer {number}": list(layer.parameters()) for number, layer in enumerate(layers)}
        options = {"master": master, "reduce": reduce, "frees": self.frees}
        self.units = [FlatUnit(name, part, group, **options) for name, part in parts.items() if part]
        self.optimizer = optimizer([unit.shard for unit in self.units])

    @property
    def shards(self):
        """[this rank's part of each unit], with their gradients after `reduce`."""
        return [unit.shard for unit in self.units]

    def reduce(self):
        """After the last backward: make the shards' gradients complete."""
        for unit in reversed(self.units):
            unit.reduce()
        for unit in self.units:
            unit.reduced()

    def step(self, *, scaler=None, clip=None):
        """Reduce, update the shards, make the parameters whole again. Returns whether it updated.

        scaler: a `precision.LossScaler`, whose groups must have this one among them; clip: called before the update, see `clipping`.
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

    def _publish(self):
        for unit in self.units:
            unit.gather()
        for unit in self.units:
            unit.gathered()

    def state_bytes(self):
        """{"parameters", "gradients", "optimizer": bytes on this rank now}; without the optimizer's counters of steps.

        A shard of its own counts as the optimizer's where parameters are kept whole (master weights), as parameters where they are not.
        """
        own = sum(unit.shard.nbytes for unit in self.units if not unit.is_view)
        gradients = [tensor.grad for unit in self.units for tensor in (unit.shard, *unit.parameters)]
        states = [value for state in self.optimizer.state.values() for value in state.values() if value.dim()]
        return {
            "parameters": sum(unit.whole_bytes for unit in self.units) + own * self.frees,
            "gradients": sum(gradient.nbytes for gradient in gradients if gradient is not None),
            "optimizer": sum(value.nbytes for value in states) + own * (not self.frees),
        }


class NaiveZero1(Zero1):
    """All-reduces whole gradients, of which each rank then uses an n-th: half as many bytes again as needed."""

    def reduce(self):
        for unit in reversed(self.units):
            flat = self.group.all_reduce(unit.flat_gradient()).wait()
            unit.add_gradient(self.group.own(flat, 0))


class Zero2(Zero1):
    """Gradients are sharded too: a layer's are reduced, and dropped, as soon as the backward has made them all.

    One layer's reduction runs beside the next layer's backward, and must have ended before a third's begins: so at most two layers' whole
    gradients exist at a time.
    """

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self._missing = {unit: set(unit.parameters) for unit in self.units}
        self._unit_of = {p: unit for unit in self.units for p in unit.parameters}
        self._reducing = []
        for parameter in self._unit_of:
            parameter.register_post_accumulate_grad_hook(self._accumulated)

    def reduce(self):
        """Of units that parts of the model did not use, too: those count as zero."""
        for unit in reversed(self.units):
            if any(p.grad is not None for p in unit.parameters) or (unit.shard.grad is None and unit not in self._reducing):
                self._complete(unit)
        self._wait(0)

    def _accumulated(self, parameter):
        unit = self._unit_of[parameter]
        self._missing[unit].discard(parameter)
        if not self._missing[unit]:
            self._complete(unit)

    def _complete(self, unit):
        self._wait(1)
        if unit in self._reducing:
            self._wait(0)
        unit.reduce()
        self._reducing.append(unit)
        self._missing[unit] = set(unit.parameters)

    def _wait(self, left):
        while len(self._reducing) > left:
            self._reducing.pop(0).reduced()


class Zero3(Zero2):
    """Parameters are sharded too: a layer's are gathered before its forward, freed after it, and so again in its backward.

    prefetch: layers gathered ahead, in the order of use, while one computes; 0: each when it is needed, and everybody waits for it.

    The root is gathered once and stays until its backward is over, as FSDP2's does. A forward without gradients frees it at its end.
    """

    frees = True

    def __init__(self, module, layers, group, optimizer, *, prefetch=1, **options):
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
            layer.register_forward_hook(lambda layer, inputs, output, at=at: self._after(at, output))
        module.register_forward_hook(lambda module, inputs, output: self._end(output))

    def _publish(self):
        """The next forward gathers what it needs."""

    def _begin(self):
        self._in_backward = False
        if self._root is not None:
            self._root.gathered()
        for unit in self._layers[: self.prefetch]:
            unit.gather()

    def _before(self, at):
        """Ahead of a layer's forward; a recomputed one (`recompute`) finds it gathered."""
        self._use(self._layers[at], [] if self._in_backward else self._layers[at + 1 : at + 1 + self.prefetch])

    def _use(self, unit, ahead):
        """Wait for `unit`; those `ahead` are on their way before this returns."""
        unit.gather()
        for other in ahead:
            other.gather()
        unit.gathered()

    def _after(self, at, output):
        if not self._in_backward:
            self._layers[at].free()
        if output.requires_grad:
            output.register_hook(lambda gradient: self._before_backward(at))

    def _before_backward(self, at):
        self._use(self._layers[at], self._layers[max(0, at - self.prefetch) : at][::-1])

    def _end(self, output):
        if output.requires_grad:
            output.register_hook(lambda gradient: self._begin_backward())
        elif self._root is not None:
            self._root.free()

    def _begin_backward(self):
        self._in_backward = True
        if self._root is not None:  # another microbatch's backward may have freed it
            self._root.gathered()
        for unit in self._layers[len(self._layers) - self.prefetch :][::-1] if self.prefetch else []:
            unit.gather()

    def _complete(self, unit):
        unit.free()
        super()._complete(unit)
