"""Exercises on what all ranks must know alike: the norm of all gradients, and whether to skip a
step."""

import torch
from torch import Tensor

from realrun.comm.mesh import Mesh
from realrun.lessons.practice.written import Facts, closest, written


def global_norm(mesh: Mesh, text: str, size: int) -> Facts:
    """The learner's `norm(parts, copies, all_reduce)` over tp: the Euclidean norm of the whole
    gradient. parts: this rank's parts of gradients. copies: gradients that every rank holds whole.
    """
    group = mesh["tp"]
    torch.manual_seed(0)
    whole = [torch.randn(size * group.size).double() for _ in range(3)]
    copies = [torch.randn(size).double() for _ in range(2)]
    parts = [group.own(one, 0).clone() for one in whole]
    calls: list[int] = []

    def all_reduce(x: Tensor) -> Tensor:
        calls.append(x.numel())
        return group.all_reduce(torch.as_tensor(x, dtype=torch.float64).clone()).wait()

    found = written(text)(parts, [one.clone() for one in copies], all_reduce)
    if found is not None:
        found = torch.as_tensor(found, dtype=torch.float64).reshape(())
    local = _norm([*parts, *copies])
    mistakes = {
        "local": local,
        "copies_again": _norm([*whole, *[one * group.size**0.5 for one in copies]]),
        "sum_of_norms": group.all_reduce(local.clone()).wait(),
        "no_copies": _norm(whole),
    }
    return {"norm": closest(found, _norm([*whole, *copies]), mistakes)}


def _norm(tensors: list[Tensor]) -> Tensor:
    return torch.cat([one.flatten() for one in tensors]).norm()


def agreement(mesh: Mesh, text: str) -> Facts:
    """The learner's `skip(infinite, all_reduce)` for tp 2 × pp 2: whether a rank skips the step.

    infinite: whether a gradient of this rank is. all_reduce: (number, "sum" | "max", over "tp" |
    "pp") → number. Each rank is once the one that overflows, and once none is. A call that meets one
    of another time, because not all ranks make the same calls, is told.
    """
    decide = written(text)
    skipped: list[float] = []
    unlike = False

    def all_reduce(x: float, op: str, over: str) -> float:
        nonlocal unlike
        own = torch.tensor([[float(x), len(skipped)]], dtype=torch.float64)
        values, times = mesh[over].all_gather(own).wait().T
        unlike |= bool((times != len(skipped)).any())
        return float({"sum": values.sum(), "max": values.max()}[op])

    for overflowing in (*range(4), None):
        answer = decide(mesh.rank == overflowing, all_reduce)
        if answer is None:
            return {"skipped": "nothing"}
        skipped.append(float(bool(answer)))
    votes = torch.tensor(skipped, dtype=torch.float64)
    for over in ("tp", "pp"):
        votes = mesh[over].all_reduce(votes.clone()).wait()
    *with_one, without = (round(vote) for vote in votes.tolist())
    return {
        "calls": "unlike_calls" if unlike else "right",
        "skipped_with_one": min(with_one),
        "skipped_without": without,
    }
