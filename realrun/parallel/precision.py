"""Mixed precision: compute in 16 bits, keep and update weights in 32 (Micikevicius et al. 2018, arXiv 1710.03740).

bf16 has fp32's range and needs no scaling. fp16's smallest number is 6e-8: gradients below it vanish, so the loss is multiplied by a scale
before the backward, and gradients divided by it after; when one overflows, the step is skipped and the scale halved.
"""

import torch

from simlab.errors import InputError

TYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}


class LossScaler:
    """Keeps `scale` as large as it can be (section 3.2; the defaults are those of torch's GradScaler).

    groups: the `Group`s over which a found infinity must be known: of every dimension in which ranks hold different gradients (tensor
    and pipeline parallel, sharded data parallel) or may differ. One rank that skips alone has other weights ever after.
    """

    def __init__(self, groups=(), *, scale=2.0**16, growth=2.0, backoff=0.5, interval=2000):
        for name, value, good in (("scale", scale, scale > 0), ("growth", growth, growth > 1), ("backoff", backoff, 0 < backoff < 1),
                                  ("interval", interval, interval >= 1)):  # fmt: skip
            if not good:
                valid = {"scale": "above 0", "growth": "above 1", "backoff": "between 0 and 1", "interval": "of at least 1"}[name]
                raise InputError(f"{name} = {value!r}: give a number {valid}")
        self.groups, self.scale = list(groups), float(scale)
        self.growth, self.backoff, self.interval = growth, backoff, interval
        self.good_steps = 0

    @property
    def state(self):
        """[scale, good steps since it changed]: what a checkpoint needs."""
        return [self.scale, self.good_steps]

    @state.setter
    def state(self, state):
        self.scale, self.good_steps = state

    def unscale(self, gradients):
        """Divide the gradients by the scale, in place; whether all are finite on all ranks. Adapts the scale.

        One all-reduce (maximum) of 4 bytes over each group in turn: over all dimensions of a mesh that reaches every rank of it. All ranks
        must call it, those without gradients too.
        """
        gradients = [gradient for gradient in gradients if gradient is not None]
        found = torch.zeros(1, device=gradients[0].device if gradients else None)
        for gradient in gradients:
            gradient /= self.scale
            found = torch.maximum(found, (~torch.isfinite(gradient)).any().float())
        for group in self.groups:
            group.all_reduce(found, "max").wait()
        finite = not found.item()
        self._adapt(finite)
        return finite

    def _adapt(self, finite):
        self.good_steps = self.good_steps + 1 if finite else 0
        if not finite:
            self.scale *= self.backoff
        elif self.good_steps == self.interval:
            self.scale, self.good_steps = self.scale * self.growth, 0


class MasterWeights:
    """`module` in `dtype` ('fp16', 'bf16', 'fp32'), its weights kept and updated in fp32 by `optimizer`: parameters → torch optimizer.

    For replicated weights; the ZeRO classes keep masters of their own shards. Norms are in `dtype` like all else: autocast's lists of
    ops that stay in fp32 are left out.
    """

    def __init__(self, module, dtype, optimizer):
        if dtype not in TYPES:
            raise InputError(f"precision {dtype!r}: give one of {', '.join(TYPES)}")
        self.masters = [torch.nn.Parameter(p.detach().to(torch.float32, copy=True)) for p in module.parameters()]
        self.module = module.to(TYPES[dtype])
        self.optimizer = optimizer(self.masters)

    def step(self, *, scaler=None, clip=None):
        """Update the masters from the module's gradients, and the module from them; whether it did, see `LossScaler`.

        clip: called with the masters' gradients in place, before the update.
        """
        for master, parameter in zip(self.masters, self.module.parameters()):
            master.grad = None if parameter.grad is None else parameter.grad.to(torch.float32)
            parameter.grad = None
        if finite := scaler is None or scaler.unscale([master.grad for master in self.masters]):
            if clip is not None:
                clip()
            self.optimizer.step()
            with torch.no_grad():
                for master, parameter in zip(self.masters, self.module.parameters()):
                    parameter.copy_(master)
        self.optimizer.zero_grad(set_to_none=True)
        return finite
