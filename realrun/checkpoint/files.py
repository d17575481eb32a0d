"""A checkpoint's files: safetensors and one JSON manifest. No pickle is written, and nothing is
unpickled.

    manifest.json            written last: the size and SHA-256 of each file, where each part of
                             each tensor is, and what the caller adds
    rank-00003.safetensors   the parts that rank 3 wrote: the length of the header (8 bytes), the
                             header (JSON), the numbers

A file that the manifest does not name is never opened.
"""

import errno
import hashlib
import json
import math
import os
import struct
from collections.abc import Iterable, Mapping, Sequence
from io import BufferedReader
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from realrun.checkpoint.errors import CheckpointError
from simlab.errors import shortened

MANIFEST, FORMAT = "manifest.json", 1
MOST_MANIFEST_BYTES = 2**28
"""Of a manifest that is read: that of thousands of ranks has a few megabytes."""
DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
TORCH_DTYPES = {name: dtype for dtype, name in DTYPES.items()}


Manifest = dict[str, Any]
"""A manifest as JSON has it."""


def write_safetensors(
    path: Path, names: Iterable[str], tensors: Sequence[Tensor]
) -> tuple[list[int], dict[str, Any]]:
    """([first byte of each tensor in the file], {"size_bytes", "sha256"}) of a new file at `path`,
    which is on the disk when this returns. The tensors lie on the CPU."""
    header: dict[str, dict[str, Any]] = {}
    start = 0
    for name, tensor in zip(names, tensors):
        header[name] = {
            "dtype": DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, start + tensor.nbytes],
        }
        start += tensor.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    digest, size_bytes = hashlib.sha256(), 0
    with open(path, "xb") as file:
        parts: Iterable[Any] = (struct.pack("<Q", len(text)), text, *map(_bytes, tensors))
        for data in parts:
            file.write(data)
            digest.update(data)
            size_bytes += len(data)
        file.flush()
        os.fsync(file.fileno())
    starts = [8 + len(text) + entry["data_offsets"][0] for entry in header.values()]
    return starts, {"size_bytes": size_bytes, "sha256": digest.hexdigest()}


def _bytes(tensor: Tensor) -> memoryview:
    numbers: Any = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
    return memoryview(numbers)


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the manifest of `folder` with a checksum of its own, and wait until it and the names of
    all files are on the disk."""
    with open(folder / MANIFEST, "x", encoding="utf-8") as file:
        json.dump({**manifest, "sha256": _checksum(manifest)}, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    sync_folder(folder)


def read_manifest(folder: Path) -> Manifest:
    """The manifest of the checkpoint in `folder`. `CheckpointError` if there is none, or if it is
    not as it was written."""
    try:
        manifest = json.loads(_manifest_text(folder / MANIFEST))
        written = manifest.pop("sha256")
    except FileNotFoundError:
        raise CheckpointError(f"no checkpoint in {str(folder)!r}: {MANIFEST} is missing") from None
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, OSError) as error:
        raise CheckpointError(
            f"{str(folder / MANIFEST)!r} is not a checkpoint's manifest: {error}"
        ) from None
    if written != _checksum(manifest):
        raise CheckpointError(
            f"{str(folder / MANIFEST)!r} is corrupt: its checksum is {_checksum(manifest)}, expected {written}"
        )
    if manifest.get("format") != FORMAT:
        raise CheckpointError(
            f"{str(folder / MANIFEST)!r} has format {manifest.get('format')!r}, this version reads {FORMAT}"
        )
    _check_shape(folder / MANIFEST, manifest)
    return manifest


def _manifest_text(path: Path) -> bytes:
    """What the file has, which is bounded: it may not be one of ours."""
    with regular_file(path) as file:
        text = file.read(MOST_MANIFEST_BYTES + 1)
    if len(text) > MOST_MANIFEST_BYTES:
        raise ValueError(f"it has more than {MOST_MANIFEST_BYTES} bytes")
    return text


def regular_file(path: Path) -> BufferedReader:
    """The file at `path`, open for reading; `OSError` for what is none: opening a pipe would wait for
    whoever writes into it."""
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is no regular file")
    return path.open("rb")


def _check_shape(path: Path, manifest: Manifest) -> None:
    """`CheckpointError` unless the manifest has the parts that a save writes. Its checksum is no
    proof: whoever writes it can compute one."""
    files = manifest.get("files")
    if not isinstance(files, dict):
        raise CheckpointError(f"{str(path)!r} has a forged manifest: files = {shortened(files)}")
    for name, file in files.items():
        if Path(name).name != name:
            raise CheckpointError(
                f"{str(path)!r} names {shortened(name)}, which is not in this folder"
            )
        if "\0" in name or not (
            isinstance(file, dict)
            and file.keys() == {"size_bytes", "sha256"}
            and type(file["size_bytes"]) is int
            and isinstance(file["sha256"], str)
        ):
            raise CheckpointError(
                f"{str(path)!r} has a forged manifest: the file {shortened(name)} is {shortened(file)}"
            )
    for name in ("tensors", "extra"):
        if name not in manifest:
            raise CheckpointError(f"{str(path)!r} has a forged manifest: it has no {name}")
    try:
        lacking = _not_in_its_file(files, manifest["tensors"])
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{str(path)!r} has a forged manifest: {error!r}") from None
    if lacking is not None:
        raise CheckpointError(
            f"{str(path)!r} has a forged manifest: a part of {shortened(lacking)} is not within its file"
        )


def _not_in_its_file(files: Manifest, tensors: Manifest) -> str | None:
    """The first tensor of which a part is not within the bytes that its file has; None: all are."""
    for name, tensor in tensors.items():
        number_bytes = TORCH_DTYPES[tensor["dtype"]].itemsize
        for part in tensor["parts"]:
            if part["file"] not in files:
                raise CheckpointError(
                    f"{name!r} is in {part['file']!r}, which is not a file of this checkpoint"
                )
            ends_byte = part["start_byte"] + math.prod(part["shape"]) * number_bytes
            if not 0 <= part["start_byte"] <= ends_byte <= files[part["file"]]["size_bytes"]:
                return str(name)
    return None


def _checksum(manifest: Manifest) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def check_file(path: Path, size_bytes: int, sha256: str) -> None:
    """`CheckpointError` unless the file has that many bytes and that SHA-256."""
    try:
        with regular_file(path) as file:
            actual_bytes = os.fstat(file.fileno()).st_size
            if actual_bytes != size_bytes:
                what = "truncated" if actual_bytes < size_bytes else "too long"
                raise CheckpointError(
                    f"{str(path)!r} is {what}: size {actual_bytes} bytes, expected {size_bytes}"
                )
            actual = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        what = (
            "missing" if isinstance(error, FileNotFoundError) else f"not readable: {error.strerror}"
        )
        raise CheckpointError(f"{str(path)!r} is {what}") from None
    if actual != sha256:
        raise CheckpointError(f"{str(path)!r} is corrupt: checksum {actual}, expected {sha256}")


def tensor_text(shape: Iterable[int], dtype: torch.dtype | str | None) -> str:
    """A tensor in words: 'F32 [4, 8]'. dtype: torch's, or its name in a file."""
    name = DTYPES.get(dtype, dtype) if isinstance(dtype, torch.dtype) else dtype
    return f"{name} {list(shape)}"


def check_tensors(path: Path, saved: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """`CheckpointError` unless the checkpoint at `path`, whose manifest says `saved` of its tensors,
    has each of `tensors` with its shape and dtype."""
    if missing := sorted(set(tensors) - set(saved)):
        raise CheckpointError(f"{str(path)!r} does not hold {names_text(missing)}")
    for name, tensor in tensors.items():
        there = saved[name]["shape"], saved[name]["dtype"]
        here = list(tensor.shape), DTYPES.get(tensor.dtype)
        if there != here:
            raise CheckpointError(
                f"{name!r} is {tensor_text(*there)} in {str(path)!r}, {tensor_text(tensor.shape, tensor.dtype)} here"
            )


def names_text(names: Sequence[str]) -> str:
    """The first five names, and how many more there are."""
    return ", ".join(map(repr, names[:5])) + (
        f" and {len(names) - 5} more" if len(names) > 5 else ""
    )


def sync_folder(folder: Path) -> None:
    """Wait until the names of the files in `folder` are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
