"""An exercise on context parallelism: the backward of a ring."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from realrun.comm.mesh import Mesh
from realrun.lessons.practice.written import Facts, closest, written


def ring_backward(mesh: Mesh, text: str, tokens: int) -> Facts:
    """The learner's `backward(k, v, gradients, pass_on)`, for attention without a mask.

    k, v: (tokens, 4) float64, this rank's keys and values. gradients: (k, v) → (dq, dk, dv), what
    this rank's queries make of one block. pass_on: tensors → those of the rank before, in the same
    order; all ranks call it together. Asked are this rank's dq, dk and dv.
    """
    group = mesh["cp"]
    n, rank = group.size, group.place
    torch.manual_seed(0)
    q, k, v, dout = torch.randn(4, n * tokens, 4).double()
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    probabilities = torch.softmax(leaves[0] @ leaves[1].t() / 2, -1)
    right = torch.autograd.grad(probabilities @ leaves[2], leaves, dout)
    inner = (dout * (probabilities @ v).detach()).sum(-1, keepdim=True)
    total = (q @ k.t() / 2).logsumexp(-1, keepdim=True)
    passes: list[int] = []

    def block(of: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        rows = slice(of * tokens, (of + 1) * tokens)
        p = (q[rows] @ k.t() / 2 - total[rows]).exp()
        ds = p * (dout[rows] @ v.t() - inner[rows]) / 2
        return ds @ k, ds.t() @ q[rows], p.t() @ dout[rows]

    def pass_on(*tensors: Tensor) -> Any:
        passes.append(len(tensors))
        arrived = [torch.empty_like(x) for x in tensors]
        after, before = group.ranks[(rank + 1) % n], group.ranks[rank - 1]
        ops = [dist.P2POp(dist.isend, x.contiguous(), after) for x in tensors]
        ops += [dist.P2POp(dist.irecv, x, before) for x in arrived]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        return arrived[0] if len(arrived) == 1 else tuple(arrived)

    cut = [x.split(tokens) for x in (k, v)]
    own = [its[rank].clone() for its in cut]
    found = written(text)(*own, lambda k, v: block(rank, k, v), pass_on)
    if not isinstance(found, tuple | list) or len(found) != 3:
        return {"dq": "nothing", "dk": "nothing", "dv": "nothing"}
    wanted = [x.split(tokens) for x in right]
    made = [
        [block(queries, cut[0][keys], cut[1][keys]) for keys in range(n)] for queries in range(n)
    ]
    facts: Facts = {"dq": closest(found[0], wanted[0][rank], {"own_block": made[rank][rank][0]})}
    for at, name in ((1, "dk"), (2, "dv")):
        mistakes = {
            "stay": torch.stack([made[rank][keys][at] for keys in range(n)]).sum(0),
            "own_block": made[rank][rank][at],
            "one_short": wanted[at][(rank + 1) % n],
            "one_far": wanted[at][rank - 1],
            "last_only": made[rank - 1][rank][at],
        }
        facts[name] = closest(found[at], wanted[at][rank], mistakes)
    return facts
