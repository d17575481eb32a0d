"""What torch's own memory tracker sees of one training step, under a process group that only
pretends to communicate.

MemTracker reads after each op what all tensors hold, by category. Here it gets each label at once
instead of an op or a step later, where
that can be known: buffers of FSDP when they are made (it files them under activations and
temporaries until the collective), unsharded gradients when autograd accumulates them (it does so
for DDP, for FSDP only after the layer's backward), the scratch of the optimizer as temporary (it
says optimizer state), DDP's buckets as buffers (it says activations, or temporaries). No tensor is
added or left out.
"""

from contextlib import contextmanager, nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker, _FSDPRefType, _FSDPState
from torch.distributed._tools.mem_tracker import MemTracker, _MemRefType
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining.stage import PipelineStage
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import loss_parallel
from torch.nn.functional import cross_entropy
from torch.testing._internal.distributed.fake_pg import FakeStore

from realrun.model.gpt import Stage, loss

OURS = {
    _MemRefType.PARAM: "parameters", _MemRefType.GRAD: "gradients", _MemRefType.OPT: "optimizer", _MemRefType.ACT: "activations",
    _MemRefType.TEMP: "temporaries", _MemRefType.OTH: "inputs", _MemRefType.BUFFER: "buckets",
    _FSDPRefType.SHARDED_PARAM: "parameters", _FSDPRefType.UNSHARDED_PARAM: "unsharded_parameters", _FSDPRefType.BUFFER: "buckets",
    _FSDPRefType.SHARDED_GRAD: "gradients", _FSDPRefType.UNSHARDED_GRAD: "unsharded_gradients", _FSDPRefType.ACT: "activations",
    _FSDPRefType.TEMP: "temporaries", _FSDPRefType.ALL_GATHER: "all_gather", _FSDPRefType.REDUCE_SCATTER: "reduce_scatter",
    _FSDPRefType.OPT: "optimizer", _FSDPRefType.INP: "inputs",
}  # fmt: skip


def saved_by(function, local=lambda tensor: tensor):
    """(what `function` returns, {address: bytes} of the storages that autograd keeps of it). local: of a
    tensor, the one that this rank has of it."""
    kept = {}

    def pack(tensor):
        storage = local(tensor).untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        return function(), kept


class _Reading:
    """Of a tracker: what was held when most was (the first time), and the most of each category."""

    def start(self):
        """Forget what was read."""
        self.peak, self.largest, self.phase = {}, {}, ""

    def _update_peak_stats(self, peak_state):  # the tracker calls it after each op
        (held,) = self._curr_mem_snap.values()
        held = {OURS[label]: size for label, size in held.items() if label != "Total"}
        self.largest = {
            category: max(size, self.largest.get(category, 0)) for category, size in held.items()
        }
        if sum(held.values()) > sum(self.peak.values()):
            self.peak, self.phase = (
                held,
                "optimizer"
                if self._in_opt
                else "backward"
                if self._mod_tracker.is_bw
                else "forward",
            )

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.op = func
        return super().__torch_dispatch__(func, types, args, kwargs)

    def _track(self, label, tensor):
        super()._track(type(label).TEMP if self._in_opt else label, tensor)


class _Tracker(_Reading, MemTracker):
    def label_bucket(self, bucket, as_view):
        """A hook of DDP: the bucket is at hand."""
        self._update_and_maybe_create_winfos(
            bucket.buffer(), _MemRefType.GRAD if as_view else _MemRefType.BUFFER
        )
        reduced = torch.futures.Future()
        # a pretended all-reduce: the pretended one of the fake group gives no result
        reduced.set_result(bucket.buffer())
        return reduced


class _GatheringTracker(_Reading, FSDPMemTracker):
    reduced = False

    def _track(self, label, tensor):
        if self.op is torch.ops.aten.empty.memory_format and not self._in_opt:
            if self._fsdp_state in (_FSDPState.PRE_FW, _FSDPState.PRE_BW):
                label = _FSDPRefType.ALL_GATHER
            elif (
                self._fsdp_state is _FSDPState.POST_BW
            ):  # the reduce-scatter's input, then its output
                label = _FSDPRefType.SHARDED_GRAD if self.reduced else _FSDPRefType.REDUCE_SCATTER
                self.reduced = not self.reduced
        super()._track(label, tensor)

    def label_gradients(self, model):
        """From now on, gradients of gathered parameters as soon as autograd has accumulated
        them."""

        def label(parameter):
            self._update_and_maybe_create_winfos(parameter.grad, _FSDPRefType.UNSHARDED_GRAD)

        for module in [model, *model.blocks]:
            for parameter in module._get_fsdp_state()._fsdp_param_group.fsdp_params:
                parameter._unsharded_param.register_post_accumulate_grad_hook(label)


@contextmanager
def pretended_group(ranks):
    """A default process group of `ranks`, of which this process is rank 0 and no other exists."""
    dist.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


def measured(
    sizes,
    ranks,
    batch,
    sharding,
    *,
    as_view=False,
    reshard=True,
    tied=False,
    fake=False,
    bf16=False,
    build=None,
    microbatches=1,
):
    """A tracker that has read one step of rank 0 of `ranks`, with its `peak`, `largest` and
    `phase`.

    bf16: FSDP2 computes in bf16 and reduces gradients in fp32; DDP computes under autocast.
    build: makes another model than the GPT of `sizes`; its layers are its `blocks`.
    fake: FSDP2 on fake tensors. DDP cannot run on them: its reducer asks for the address of their
    data.
    """
    autocast = bf16 and sharding == "ddp"
    with pretended_group(ranks):
        mesh = init_device_mesh("cpu", (ranks,))
        with FakeTensorMode() if fake else nullcontext():
            model = build() if build else Stage(sizes, 0, 1)
            if tied:
                model.head.weight = model.embed.weight
            tokens, targets = (
                torch.zeros(batch, sizes["seq"], dtype=torch.int64) for _ in range(2)
            )
            if sharding == "ddp":
                model = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=as_view)
                optimizer = torch.optim.Adam(model.parameters(), foreach=True)
                tracker = _Tracker()
                tracker.track_external(model, optimizer, tokens, targets)
                model.register_comm_hook(
                    None, lambda _, bucket: tracker.label_bucket(bucket, as_view)
                )
            else:
                optimizer, tracker = _sharded(model, mesh, reshard, bf16)
                tracker.track_inputs((tokens, targets))
            with tracker:
                # states are made in the first; DDP makes new buckets in the second
                for step in range(3 if sharding == "ddp" else 2):
                    tracker.start()
                    for _ in range(microbatches):
                        tracker.reset_mod_stats()
                        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                            value = loss(model(tokens), targets)
                        value.backward()
                    optimizer.step()
                    optimizer.zero_grad()
                    if sharding == "fsdp" and not step:
                        tracker.label_gradients(model)
            return tracker


def _sharded(model, mesh, reshard, bf16):
    """(optimizer, tracker) of `model`, to which FSDP2 is applied in place."""
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16 if bf16 else None, reduce_dtype=torch.float32
    )
    for module in [*model.blocks, model]:
        fully_shard(module, mesh=mesh, reshard_after_forward=reshard, mp_policy=policy)
    optimizer = torch.optim.Adam(model.parameters(), foreach=True)
    return optimizer, _GatheringTracker(model, optimizer)


def measured_first_stage(sizes, ranks, ops, *, reshard, bf16):
    """A tracker that has read one step of the first of two pipeline stages on rank 0 of `ranks`.

    FSDP2 is told what torch's runtime of pipelines tells it, and the end of the step is the
    runtime's own code. ops: [(kind, microbatch)] of the stage, kinds F and B.
    """
    with pretended_group(ranks):
        mesh = init_device_mesh("cpu", (ranks,))
        with FakeTensorMode():
            model = Stage(sizes, 0, 2)
            optimizer, tracker = _sharded(model, mesh, reshard, bf16)
            stage = PipelineStage.__new__(PipelineStage)
            stage.submod = model
            tokens = torch.zeros(1, sizes["seq"], dtype=torch.int64)
            tracker.track_inputs((tokens,))
            with tracker:
                for _ in range(2):
                    tracker.start()
                    held = {}
                    for kind, microbatch in ops:
                        if kind == "F":
                            tracker.reset_mod_stats()
                            held[microbatch] = model(tokens)
                            continue
                        model.set_is_last_backward(False)
                        model.set_reshard_after_backward(False)
                        model.set_requires_gradient_sync(False)
                        output = held.pop(microbatch)
                        output.backward(torch.zeros_like(output))
                        del output
                    stage.perform_reduce_grad(1)
                    optimizer.step()
                    optimizer.zero_grad()
            return tracker


def measured_loss(tokens, vocabulary, ranks):
    """Bytes that rank 0 holds at the peak of the backward of torch's cross-entropy, without the
    logits that came in: over the whole `vocabulary`, or over a part of it on each of `ranks`."""
    with pretended_group(max(2, ranks)):
        mesh = init_device_mesh("cpu", (max(2, ranks),))
        weight = nn.Parameter(torch.zeros(1))
        local = torch.zeros(tokens, vocabulary // ranks)
        targets = torch.zeros(tokens, dtype=torch.int64)
        tracker = MemTracker()
        with tracker:
            logits = local + weight
            if ranks == 1:
                value = cross_entropy(logits, targets)
                del logits
                value.backward()
            else:
                cut = DTensor.from_local(logits, mesh, [Shard(1)], run_check=False)
                whole = DTensor.from_local(targets, mesh, [Replicate()], run_check=False)
                with loss_parallel():
                    value = cross_entropy(cut, whole)
                    del logits, cut
                    value.backward()
        (held,) = tracker.get_tracker_snapshot("peak").values()
        return held["Total"]
