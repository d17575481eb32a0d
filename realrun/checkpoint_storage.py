"""What torch.distributed.checkpoint (DCP) calls to plan a save and to write and read our files.

DCP decides which rank writes and which one reads which part. Its own storage is not used: its reader unpickles the file `.metadata`.
"""

import dataclasses
import json
import mmap
from typing import NamedTuple

import torch
from torch.distributed.checkpoint import ChunkStorageMetadata, Metadata, StorageReader, StorageWriter, TensorStorageMetadata
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import MetadataIndex, TensorProperties
from torch.distributed.checkpoint.storage import WriteResult
from torch.distributed.tensor import DTensor
from torch.futures import Future

from realrun.checkpoint_files import DTYPES, TORCH_DTYPES, CheckpointError, tensor_text, write_safetensors


class Staged(DefaultSavePlanner):
    """DCP's plan of what to write, with copies of this rank's parts. What cannot be saved is told when all ranks can hear it."""

    def __init__(self, tensors, extra):
        super().__init__(flatten_state_dict=False)
        self._problem, self._copies, self.plan = None, {}, None
        try:
            self.extra = json.loads(json.dumps(extra))
            for name, tensor in tensors.items():
                _check_savable(name, tensor)
        except CheckpointError as error:
            self._problem = error
        except (TypeError, ValueError) as error:
            self._problem = CheckpointError(f"extra is not JSON: {error}")
        else:
            super().set_up_planner(dict(tensors))
            self.plan = super().create_local_plan()
            for item in self.plan.items:
                part = self.lookup_object(item.index).detach()
                self._copies[item.index] = part.to("cpu", copy=True, memory_format=torch.contiguous_format)
            self.state_dict = {}

    def set_up_planner(self, state_dict, storage_meta=None, is_coordinator=False):
        """It was set up when the tensors were copied."""

    def create_local_plan(self):
        if self._problem:
            raise self._problem
        return self.plan

    def create_global_plan(self, all_plans):
        first = {}
        for rank, plan in enumerate(all_plans):
            for item in plan.items:
                data = item.tensor_data
                text = f"{item.type.name.lower()} of {tensor_text(data.size, data.properties.dtype)}"
                there, other = first.setdefault(item.index.fqn, (rank, text))
                if text != other:
                    raise CheckpointError(f"{item.index.fqn!r} is a {other} on rank {there}, a {text} on rank {rank}")
        return super().create_global_plan(all_plans)

    def resolve_data(self, write_item):
        return self._copies[write_item.index]


def _check_savable(name, tensor):
    if not (isinstance(name, str) and isinstance(tensor, torch.Tensor)):
        raise CheckpointError(f"{name!r} is {type(tensor).__name__} {tensor!r:.60}, not a name and a tensor")
    if tensor.dtype not in DTYPES:
        raise CheckpointError(f"{name!r} is {tensor.dtype}; a checkpoint can hold {', '.join(DTYPES.values())}")
    if isinstance(tensor, DTensor) and any(placement.is_partial() for placement in tensor.placements):
        raise CheckpointError(f"{name!r} is placed as {tensor.placements}: reduce what is partial before saving it")


class Stored(NamedTuple):
    """Where a part of a tensor is."""

    file: str
    start_byte: int


class Writer(StorageWriter):
    """Each rank's parts in one file of `folder`; when all are there, `publish(manifest)` is called on the group's first rank.

    prepare: called on that rank before anything is written.
    """

    def __init__(self, folder, prepare, publish):
        self.folder, self.prepare, self.publish = folder, prepare, publish

    def reset(self, checkpoint_id=None):
        """Nothing is kept from one save to the next."""

    def set_up_storage_writer(self, is_coordinator, *arguments, **options):
        if is_coordinator:  # the others write only when it has heard from all
            self.prepare()
            self.folder.mkdir(parents=True)

    def prepare_local_plan(self, plan):
        return plan

    def prepare_global_plan(self, plans):
        return [dataclasses.replace(plan, storage_data=f"rank-{rank:05d}.safetensors") for rank, plan in enumerate(plans)]

    def write_data(self, plan, planner):
        if not plan.items:
            return _done([])
        # wide numbers first: each starts at a multiple of its size
        items = sorted(plan.items, key=lambda item: -item.tensor_data.properties.dtype.itemsize)
        tensors, name = [planner.resolve_data(item) for item in items], plan.storage_data
        starts, file = write_safetensors(self.folder / name, [item.index.fqn for item in items], tensors)
        return _done([WriteResult(i.index, t.nbytes, (Stored(name, start), file)) for i, t, start in zip(items, tensors, starts)])

    def finish(self, metadata, results):
        stored = {result.index: result.storage_data for of_rank in results for result in of_rank}
        tensors = {}
        for name, tensor in metadata.state_dict_metadata.items():
            places = [stored[MetadataIndex(name, part.offsets)][0] for part in tensor.chunks]
            parts = [
                {"offsets": list(part.offsets), "shape": list(part.sizes), **place._asdict()} for part, place in zip(tensor.chunks, places)
            ]
            tensors[name] = {"shape": list(tensor.size), "dtype": DTYPES[tensor.properties.dtype], "parts": parts}
        self.publish({"files": dict(sorted((place.file, file) for place, file in stored.values())), "tensors": tensors})

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id):
        return True


class Reader(StorageReader):
    """The parts that `manifest` says are in the files of `folder`; a file is mapped, so only what is needed is read."""

    def __init__(self, folder, manifest):
        self.folder, self.manifest, self._maps = folder, manifest, {}
        self._tensors, self._stored = {}, {}
        for name, tensor in manifest["tensors"].items():
            parts = [ChunkStorageMetadata(torch.Size(part["offsets"]), torch.Size(part["shape"])) for part in tensor["parts"]]
            dtype = TORCH_DTYPES[tensor["dtype"]]
            self._tensors[name] = TensorStorageMetadata(TensorProperties(dtype=dtype), torch.Size(tensor["shape"]), parts)
            for part, chunk in zip(tensor["parts"], parts):
                if part["file"] not in manifest["files"]:
                    raise CheckpointError(f"{name!r} is in {part['file']!r}, which is not a file of this checkpoint")
                self._stored[MetadataIndex(name, chunk.offsets)] = Stored(part["file"], part["start_byte"]), dtype, chunk.sizes

    def reset(self, checkpoint_id=None):
        """Nothing is kept from one load to the next."""

    def read_metadata(self):
        return Metadata(self._tensors, storage_data=self._stored)

    def set_up_storage_reader(self, metadata, is_coordinator, *arguments, **options):
        """It was set up when it was made."""

    def prepare_local_plan(self, plan):
        return plan

    def prepare_global_plan(self, plans):
        return plans

    def read_data(self, plan, planner):
        for item in plan.items:
            there = tuple(slice(start, start + size) for start, size in zip(item.storage_offsets, item.lengths))
            planner.resolve_tensor(item).detach().copy_(self._part(*self._stored[item.storage_index])[there])
        return _done(None)

    def _part(self, place, dtype, shape):
        if place.file not in self._maps:
            with open(self.folder / place.file, "rb") as file:
                self._maps[place.file] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)  # torch has no read-only tensors
        return torch.frombuffer(self._maps[place.file], dtype=dtype, count=shape.numel(), offset=place.start_byte).view(shape)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id):
        return True


def _done(value):
    future = Future()
    future.set_result(value)
    return future
