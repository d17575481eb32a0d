"""How many parameters a stage has on one tensor-parallel rank, before anything is sharded over data parallelism."""

from simlab.schedules import V_SHAPED


def stage_parameters(model, plan, layers, *, first=False, last=False):
    """Parameters of a stage on one tensor-parallel rank, before ZeRO: its layers (norms, router and what is added to a sum over the ranks
    whole), embedding, head.

    A tied head on another rank than the embedding is a copy of it; V-shaped schedules have both on one.
    """
    parts = model.layer_parameters
    whole = parts["router"] + parts["norms"] + 2 * model.bias * model.hidden
    count = layers * ((sum(parts.values()) - whole) / plan.tp + whole)
    if first:
        count += (model.vocab / plan.tp + model.positions) * model.hidden
    if last:
        count += model.hidden * (1 + model.bias)
        if not (model.tied_head and (first or plan.schedule in V_SHAPED)):
            count += model.vocab / plan.tp * model.hidden
    return count


def partial_parameters(model, plan, layers, *, first=False, last=False):
    """Of `stage_parameters`, those that every tensor-parallel rank has whole but that meet only its tokens under sequence parallelism, so
    that their gradients are to be summed over tp: norms, and biases that are added after a scatter."""
    if not plan.sequence_parallel:
        return 0
    return layers * (model.layer_parameters["norms"] + 2 * model.bias * model.hidden) + last * model.hidden * (1 + model.bias)


def unit_parameters(model, plan, unit, *, first=False):
    """Parameters of a 'layer', the 'embedding' or the 'head', of which a tied one has no matrix on the `first` stage."""
    if unit == "layer":
        return stage_parameters(model, plan, 1)
    embedding = stage_parameters(model, plan, 0, first=True)
    if unit == "embedding":
        return embedding
    return stage_parameters(model, plan, 0, first=first, last=True) - first * embedding
