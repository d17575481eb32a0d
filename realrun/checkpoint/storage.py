"""What torch.distributed.checkpoint (DCP) calls to plan a save, and to write and read our files.

DCP decides which rank writes which part, and which rank reads it. Its own storage is not used,
because its reader unpickles the file `.metadata`.
"""

import dataclasses
import json
import mmap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.distributed.checkpoint import (
    ChunkStorageMetadata,
    Metadata,
    StorageReader,
    StorageWriter,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    LoadPlanner,
    SavePlan,
    SavePlanner,
    WriteItem,
)
from torch.distributed.checkpoint.storage import WriteResult
from torch.distributed.tensor import DTensor
from torch.futures import Future

from realrun.checkpoint.errors import CheckpointError
from realrun.checkpoint.files import (
    DTYPES,
    TORCH_DTYPES,
    regular_file,
    tensor_text,
    write_safetensors,
)


class Staged(DefaultSavePlanner):
    """DCP's plan of what to write, with copies of this rank's parts. What cannot be saved is told
    when all ranks can hear it."""

    def __init__(self, tensors: Mapping[str, torch.Tensor], extra: Any) -> None:
        super().__init__(flatten_state_dict=False)
        self._problem: CheckpointError | None = None
        self._copies: dict[MetadataIndex, torch.Tensor] = {}
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
                self._copies[item.index] = part.to("cpu", copy=True)
            self.state_dict: dict[str, Any] = {}

    def set_up_planner(
        self, state_dict: dict[str, Any], storage_meta: Any = None, is_coordinator: bool = False
    ) -> None:
        """The planner was set up when the tensors were copied."""

    def create_local_plan(self) -> SavePlan:
        if self._problem:
            raise self._problem
        return self.plan

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        first: dict[str, tuple[int, str]] = {}
        for rank, plan in enumerate(all_plans):
            for item in plan.items:
                data: Any = item.tensor_data
                text = (
                    f"{item.type.name.lower()} of {tensor_text(data.size, data.properties.dtype)}"
                )
                there, other = first.setdefault(item.index.fqn, (rank, text))
                if text != other:
                    raise CheckpointError(
                        f"{item.index.fqn!r} is a {other} on rank {there}, a {text} on rank {rank}"
                    )
        return super().create_global_plan(all_plans)

    def resolve_data(self, write_item: WriteItem) -> torch.Tensor:
        return self._copies[write_item.index]


def _check_savable(name: Any, tensor: Any) -> None:
    if not (isinstance(name, str) and isinstance(tensor, torch.Tensor)):
        raise CheckpointError(
            f"{name!r} is {type(tensor).__name__} {tensor!r:.60}, not a name and a tensor"
        )
    if tensor.dtype not in DTYPES:
        raise CheckpointError(
            f"{name!r} is {tensor.dtype}; a checkpoint can hold {', '.join(DTYPES.values())}"
        )
    if isinstance(tensor, DTensor) and any(
        placement.is_partial() for placement in tensor.placements
    ):
        raise CheckpointError(
            f"{name!r} is placed as {tensor.placements}: reduce what is partial before saving it"
        )


class Stored(NamedTuple):
    """Where a part of a tensor is."""

    file: str
    start_byte: int


class Writer(StorageWriter):
    """Each rank's parts in one file of `folder`. When all are there, `publish(manifest)` is called
    on the group's first rank.

    prepare: called on that rank before anything is written.
    """

    def __init__(
        self, folder: Path, prepare: Callable[[], None], publish: Callable[[dict[str, Any]], None]
    ) -> None:
        self.folder, self.prepare, self.publish = folder, prepare, publish

    def reset(self, checkpoint_id: Any = None) -> None:
        """Nothing is kept from one save to the next."""

    def set_up_storage_writer(self, is_coordinator: bool, *arguments: Any, **options: Any) -> None:
        if is_coordinator:  # the others write only when it has heard from all
            self.prepare()
            self.folder.mkdir(parents=True)

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        return [
            dataclasses.replace(plan, storage_data=f"rank-{rank:05d}.safetensors")
            for rank, plan in enumerate(plans)
        ]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        if not plan.items:
            return _done([])
        # wide numbers first: each starts at a multiple of its size
        items = sorted(plan.items, key=_number_bytes, reverse=True)
        tensors: list[Any] = [planner.resolve_data(item) for item in items]
        name = plan.storage_data
        starts, file = write_safetensors(
            self.folder / name, [item.index.fqn for item in items], tensors
        )
        return _done(
            [
                WriteResult(i.index, t.nbytes, (Stored(name, start), file))
                for i, t, start in zip(items, tensors, starts)
            ]
        )

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        stored = {result.index: result.storage_data for of_rank in results for result in of_rank}
        tensors = {}
        for name, entry in metadata.state_dict_metadata.items():
            tensor: Any = entry  # no bytes are saved
            places = [stored[MetadataIndex(name, part.offsets)][0] for part in tensor.chunks]
            parts = [
                {"offsets": list(part.offsets), "shape": list(part.sizes), **place._asdict()}
                for part, place in zip(tensor.chunks, places)
            ]
            tensors[name] = {
                "shape": list(tensor.size),
                "dtype": DTYPES[tensor.properties.dtype],
                "parts": parts,
            }
        self.publish(
            {
                "files": dict(sorted((place.file, file) for place, file in stored.values())),
                "tensors": tensors,
            }
        )

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return True


class Reader(StorageReader):
    """The parts that `manifest` says are in the files of `folder`. A file is mapped, so only what
    is needed is read."""

    def __init__(self, folder: Path, manifest: dict[str, Any]) -> None:
        self.folder, self.manifest = folder, manifest
        self._maps: dict[str, mmap.mmap] = {}
        self._tensors: dict[str, TensorStorageMetadata] = {}
        self._stored: dict[MetadataIndex, tuple[Stored, torch.dtype, torch.Size]] = {}
        for name, tensor in manifest["tensors"].items():
            parts = [
                ChunkStorageMetadata(torch.Size(part["offsets"]), torch.Size(part["shape"]))
                for part in tensor["parts"]
            ]
            dtype = TORCH_DTYPES[tensor["dtype"]]
            self._tensors[name] = TensorStorageMetadata(
                TensorProperties(dtype=dtype), torch.Size(tensor["shape"]), parts
            )
            for part, chunk in zip(tensor["parts"], parts):
                self._stored[MetadataIndex(name, chunk.offsets)] = (
                    Stored(part["file"], part["start_byte"]),
                    dtype,
                    chunk.sizes,
                )

    def reset(self, checkpoint_id: Any = None) -> None:
        """Nothing is kept from one load to the next."""

    def read_metadata(self, *arguments: Any, **options: Any) -> Metadata:
        return Metadata(dict(self._tensors), storage_data=self._stored)

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *arguments: Any, **options: Any
    ) -> None:
        """The reader was set up when it was made."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        for item in plan.items:
            there = tuple(
                slice(start, start + size)
                for start, size in zip(item.storage_offsets, item.lengths)
            )
            planner.resolve_tensor(item).detach().copy_(
                self._part(*self._stored[item.storage_index])[there]
            )
        return _done(None)

    def _part(self, place: Stored, dtype: torch.dtype, shape: torch.Size) -> torch.Tensor:
        if place.file not in self._maps:
            with regular_file(self.folder / place.file) as file:
                # torch has no read-only tensors
                self._maps[place.file] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        return torch.frombuffer(
            self._maps[place.file], dtype=dtype, count=shape.numel(), offset=place.start_byte
        ).view(shape)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return True


def _number_bytes(item: WriteItem) -> int:
    """The size of one number of the tensor that `item` writes."""
    data: Any = item.tensor_data
    return data.properties.dtype.itemsize


def _done(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future
