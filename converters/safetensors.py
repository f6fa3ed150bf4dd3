"""Write safetensors files, one tensor in memory at a time: https://github.com/huggingface/safetensors

A file is the length of a JSON header (8 bytes, little-endian), the header with each tensor's dtype,
shape and place, and the elements in row-major order.
"""

from __future__ import annotations

import hashlib
import json
import mmap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from converters.errors import CheckpointError

Array = NDArray[Any]
_BLOCK = 16 << 20
# Where the elements begin is a multiple of this, so that a mapped file is aligned.
_ALIGNMENT = 8
_NAMES = {
    np.dtype(np.float64): "F64",
    np.dtype(np.float32): "F32",
    np.dtype(np.float16): "F16",
    np.dtype(ml_dtypes.bfloat16): "BF16",
    np.dtype(ml_dtypes.float8_e4m3fn): "F8_E4M3",
    np.dtype(ml_dtypes.float8_e5m2): "F8_E5M2",
    np.dtype(np.int64): "I64",
    np.dtype(np.int32): "I32",
    np.dtype(np.int16): "I16",
    np.dtype(np.int8): "I8",
    np.dtype(np.uint64): "U64",
    np.dtype(np.uint32): "U32",
    np.dtype(np.uint16): "U16",
    np.dtype(np.uint8): "U8",
    np.dtype(np.bool_): "BOOL",
}


@dataclass(frozen=True)
class Entry:
    """A tensor to be written.

    Attributes:
      name: in the file.
      shape, dtype: of the tensor.
      source: where it comes from, for the report.
      load: reads it.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    source: str
    load: Callable[[], Array]

    @property
    def bytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


def shards(entries: Sequence[Entry], limit: int) -> list[list[Entry]]:
    """Consecutive entries of at most ``limit`` bytes together; a larger one is alone."""
    found: list[list[Entry]] = []
    size = 0
    for entry in entries:
        if not found or size + entry.bytes > limit:
            found.append([])
            size = 0
        found[-1].append(entry)
        size += entry.bytes
    return found


def write_set(
    entries: Sequence[Entry],
    folder: Path,
    stem: str,
    limit: int,
    done: Callable[[str, Entry, str], None],
) -> None:
    """Write ``stem-00001-of-0000N.safetensors`` and ``stem.safetensors.index.json``.

    Args:
      entries: what to write, in order.
      folder: an existing folder.
      stem: first part of the names.
      limit: bytes of a shard.
      done: told of each file, an entry of it, and the sha256 of its elements.

    Raises:
      CheckpointError: a dtype that the format does not have, a name twice, or a read-back that
        differs.
    """
    names = [entry.name for entry in entries]
    for entry in entries:
        if entry.dtype not in _NAMES:
            raise CheckpointError(f"{entry.name}: safetensors has no {entry.dtype}")
    if len(set(names)) != len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise CheckpointError(f"two tensors would be called {twice[0]}")
    parts = shards(entries, limit)
    weight_map: dict[str, str] = {}
    for number, part in enumerate(parts, 1):
        file = f"{stem}-{number:05}-of-{len(parts):05}.safetensors"
        write_file(part, folder / file, partial(done, file))
        weight_map |= dict.fromkeys((entry.name for entry in part), file)
    index = {
        "metadata": {"total_size": sum(entry.bytes for entry in entries)},
        "weight_map": weight_map,
    }
    text = json.dumps(index, indent=2) + "\n"
    (folder / f"{stem}.safetensors.index.json").write_text(text)


def write_file(entries: Sequence[Entry], file: Path, done: Callable[[Entry, str], None]) -> None:
    """One file; every tensor is read back and compared."""
    header = _header(entries)
    start = len(header)
    with file.open("w+b") as stream:
        stream.write(header)
        for entry in entries:
            digest = _put(entry, stream)
            stream.flush()
            if _digest_of(stream, start, entry.bytes) != digest:
                raise CheckpointError(f"{file.name}: {entry.name} was read back differently")
            start += entry.bytes
            done(entry, digest)


def _header(entries: Sequence[Entry]) -> bytes:
    described: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    start = 0
    for entry in entries:
        described[entry.name] = {
            "dtype": _NAMES[entry.dtype],
            "shape": list(entry.shape),
            "data_offsets": [start, start + entry.bytes],
        }
        start += entry.bytes
    text = json.dumps(described, separators=(",", ":")).encode()
    text += b" " * (-(len(text)) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def _put(entry: Entry, stream: Any) -> str:
    array = entry.load()
    if array.shape != entry.shape or array.dtype != entry.dtype:
        raise CheckpointError(
            f"{entry.source}: {array.dtype} {list(array.shape)}, expected {entry.dtype} "
            f"{list(entry.shape)}"
        )
    state = hashlib.sha256()
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    for begin in range(0, flat.size, _BLOCK):
        block = flat[begin : begin + _BLOCK].data
        stream.write(block)
        state.update(block)
    return state.hexdigest()


def _digest_of(stream: Any, start: int, size: int) -> str:
    state = hashlib.sha256()
    if size:
        with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            for begin in range(start, start + size, _BLOCK):
                state.update(mapped[begin : min(begin + _BLOCK, start + size)])
    return state.hexdigest()
