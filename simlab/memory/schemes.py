"""Data parallelism's part of the memory: which rank holds which states, and the buffers that come and go as they travel."""

from simlab.memory.gpt import block_tensors, root_tensors


class Scheme:
    """Where parameters come from and gradients go to: what happens between the groups (a block's index, or 'root')."""

    def forward_begins(self, group): ...
    def forward_ends(self, group): ...
    def backward_begins(self, group): ...
    def backward_ends(self, group): ...
    def step_ends(self): ...


class Replicated(Scheme):
    """DDP, ZeRO-1, ZeRO-2: every rank has all parameters.

    DDP holds its buckets, one copy of all gradients, between steps too; how large each is changes nothing. A gradient is copied into
    its bucket, reduced there and copied back. As a view of the bucket it lives there, and what autograd made ends with the copy.
    ZeRO-1: the same; the optimizer's part is 1/N (torch's ZeroRedundancyOptimizer deals out whole tensors: some ranks have more).
    ZeRO-2: a gradient is copied into a bucket that comes round again and again; 1/N of it stays (`shards` = N).
    """

    def __init__(self, ledger, states, bucket, as_view, shards):
        self.ledger, self.as_view, self.shards = ledger, as_view, shards
        ledger.held.update(parameters=states.parameters, optimizer=states.optimizer)
        ledger.held["gradients" if as_view else "buckets"] = bucket

    def accumulate(self, size):
        """A parameter's gradient, `size` bytes, is complete."""
        if self.shards is None:
            self.ledger.relabel("temporaries", "gradients", size)
            if self.as_view:
                self.ledger.free(("gradients", size))
        else:
            self.ledger.relabel("temporaries", "unsharded_gradients", size)
            self.ledger.op(("gradients", size / self.shards), free=[("unsharded_gradients", size)])


class Gathered(Scheme):
    """FSDP2: groups of parameters, each gathered for its forward and for its backward.

    Each tensor is cut in dimension 0 into N pieces of ceil(rows / N) rows, the last ones padded to that; so padded are gathered
    parameters, both buffers and sharded gradients. (Optimizer states are not, but rank 0, meant here, has no padding in its piece.)

    Gathering a group takes the all-gather's buffer, and the parameters that are copied out of it. In forward the buffer is kept so
    that the next all-gather may overlap the copy: it goes only when the next group has been copied out, so that two of them and the
    parameters are held at that moment, and the last one goes when the root's forward is over. In backward it goes at once, but the
    next group's all-gather is issued before this group's backward. A group that was not resharded is not gathered again.

    When a group's backward is over, its parameters go; so does the input of the previous reduce-scatter. The input of this one is
    made, the gradients are copied in and go (the last of them when the reduce-scatter is issued), its output stays: the shard's
    gradient. A single rank gathers without a buffer, but reduces with one.
    """

    def __init__(self, ledger, model, ranks, states, reshard):
        self.ledger, self.ranks, self.reshard, self.states = ledger, ranks, reshard, states
        self.order = [*range(model.layers), "root"]  # in which their forwards end
        tensors = dict.fromkeys(range(model.layers), block_tensors(model)) | {"root": root_tensors(model)}
        self.padded = {group: sum(-(-rows // ranks) * ranks * row for rows, row in shapes) for group, shapes in tensors.items()}
        self.whole = {group: sum(rows * row for rows, row in shapes) for group, shapes in tensors.items()}
        self.last = {group: shapes[-1][0] * shapes[-1][1] for group, shapes in tensors.items()}
        self.updated = sum(self.padded.values()) // ranks
        ledger.held.update(parameters=self.updated * states.parameters, optimizer=self.updated * states.optimizer)
        self.gathered, self.issued = set(), set()
        self.forward_buffer = self.reduce_buffer = 0

    def _buffer(self, group):
        return self.padded[group] * self.states.parameters if self.ranks > 1 else 0

    def _issue(self, group):
        self.ledger.op(("all_gather", self._buffer(group)))
        self.issued.add(group)

    def _gather(self, group):
        if group not in self.issued:
            self._issue(group)
        self.issued.remove(group)
        self.gathered.add(group)
        self.ledger.op(("unsharded_parameters", self.padded[group] * self.states.parameters))

    def _reshard(self, group):
        self.gathered.remove(group)
        self.ledger.free(("unsharded_parameters", self.padded[group] * self.states.parameters))

    def forward_begins(self, group):
        self._gather(group)
        self.ledger.free(("all_gather", self.forward_buffer))
        self.forward_buffer = self._buffer(group)

    def forward_ends(self, group):
        if self.reshard or (self.reshard is None and group != "root"):
            self._reshard(group)
        if group == "root":
            self.ledger.free(("all_gather", self.forward_buffer))

    def backward_begins(self, group):
        if group not in self.gathered:
            self._gather(group)
            self.ledger.free(("all_gather", self._buffer(group)))
        earlier = self.order.index(group) - 1
        if earlier >= 0 and earlier not in self.gathered:
            self._issue(earlier)

    def accumulate(self, size):
        """A parameter's gradient, `size` bytes, is complete."""
        self.ledger.relabel("temporaries", "unsharded_gradients", size)

    def backward_ends(self, group):
        size = self.states.gradients
        self._reshard(group)
        self.ledger.free(("reduce_scatter", self.reduce_buffer))
        self.reduce_buffer = self.padded[group] * size
        copied = (self.whole[group] - self.last[group]) * size
        self.ledger.op(("reduce_scatter", self.reduce_buffer), free=[("unsharded_gradients", copied)])
        self.ledger.op(("gradients", self.reduce_buffer // self.ranks), free=[("unsharded_gradients", self.last[group] * size)])

    def step_ends(self):
        self.ledger.free(("reduce_scatter", self.reduce_buffer))
