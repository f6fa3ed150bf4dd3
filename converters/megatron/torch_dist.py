"""Read Megatron's ``torch_dist`` checkpoints: names and shapes at once, values tensor by tensor.

Neither Megatron nor torch is imported, no pickle is executed and no process group is needed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from converters.errors import CheckpointError

from . import archives, folders, pickles


@dataclass(frozen=True)
class Piece:
    """One saved part of a tensor or one byte entry: where it belongs and where it lies."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    file: Path
    start: int
    length: int


@dataclass(frozen=True)
class Entry:
    """A tensor: torch's dtype name, global shape, and the pieces that cover it."""

    shape: tuple[int, ...]
    dtype: str
    pieces: tuple[Piece, ...]


@dataclass(frozen=True)
class Checkpoint:
    """An open checkpoint: nothing but ``.metadata`` has been read.

    Attributes:
      folder: ``iter_XXXXXXX``.
      tensors: by key, in the writer's order.
      blobs: byte entries (``common_state``, RNG, extra state) by key.
      opaque: qualified names that may be read as inert values beyond the known ones.
    """

    folder: Path
    tensors: Mapping[str, Entry]
    blobs: Mapping[str, Piece]
    opaque: tuple[str, ...] = ()


def open_checkpoint(path: Path, opaque: tuple[str, ...] = ()) -> Checkpoint:
    """Open ``iter_XXXXXXX``, or the folder above it at its latest iteration.

    Raises:
      CheckpointError: missing, another format, a pointer to a file that was not fetched, damaged,
        or a pickle that is refused.
    """
    folder = folders.resolve(path)
    folders.require_torch_dist(folder)
    index = folder / ".metadata"
    metadata = pickles.load(folders.read(index), str(index), opaque=opaque)
    if not pickles.is_record(metadata, "Metadata"):
        raise CheckpointError(f"{index}: not the metadata of a distributed checkpoint")
    try:
        tensors, blobs = _entries(folder, metadata.attributes)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise CheckpointError(f"{index}: fields are missing or of another kind: {error}") from error
    return Checkpoint(folder, tensors, blobs, opaque)


def read_tensor(checkpoint: Checkpoint, key: str) -> NDArray[Any]:
    """One whole tensor.

    Raises:
      CheckpointError: no such key, pieces that do not cover it, or damaged bytes.
    """
    if key not in checkpoint.tensors:
        raise CheckpointError(f"{checkpoint.folder}: no tensor {key}")
    entry = checkpoint.tensors[key]
    source = f"{checkpoint.folder}: {key}"
    if sum(math.prod(piece.sizes) for piece in entry.pieces) != math.prod(entry.shape):
        raise CheckpointError(f"{source}: the saved pieces do not cover shape {entry.shape}")
    whole = np.empty(entry.shape, archives.numpy_dtype(entry.dtype, source))
    for piece in entry.pieces:
        value = archives.load(read_piece(piece), f"{source} in {piece.file.name}")
        if not isinstance(value, np.ndarray) or value.size != math.prod(piece.sizes):
            raise CheckpointError(f"{source}: {piece.file.name} holds something else")
        if value.dtype != whole.dtype:
            raise CheckpointError(f"{source}: dtype {value.dtype}, .metadata says {whole.dtype}")
        spans = zip(piece.offsets, piece.sizes, strict=True)
        whole[tuple(slice(o, o + n) for o, n in spans)] = value.reshape(piece.sizes)
    return whole


def read_blob(checkpoint: Checkpoint, key: str) -> Any:
    """One byte entry, as containers, numbers, arrays and inert records."""
    if key not in checkpoint.blobs:
        raise CheckpointError(f"{checkpoint.folder}: no entry {key}")
    piece = checkpoint.blobs[key]
    source = f"{piece.file}: {key}"
    return archives.load(read_piece(piece), source, checkpoint.opaque)


def read_piece(piece: Piece) -> bytes:
    """Its bytes.

    Raises:
      CheckpointError: the file is missing, not fetched, or shorter than ``.metadata`` says.
    """
    folders.require_content(piece.file)
    size = piece.file.stat().st_size
    if piece.start < 0 or piece.length < 0 or piece.start + piece.length > size:
        raise CheckpointError(
            f"{piece.file}: cut short, {size} bytes where .metadata expects at least "
            f"{piece.start + piece.length}: copy it again"
        )
    with piece.file.open("rb") as file:
        file.seek(piece.start)
        return file.read(piece.length)


def _entries(folder: Path, metadata: dict[str, Any]) -> tuple[dict[str, Entry], dict[str, Piece]]:
    stored = _stored(folder, metadata["storage_data"])
    tensors: dict[str, Entry] = {}
    blobs: dict[str, Piece] = {}
    for key, described in metadata["state_dict_metadata"].items():
        if pickles.is_record(described, "BytesStorageMetadata"):
            blobs[key] = stored[key, ()]
            continue
        fields = described.attributes
        shape = tuple(fields["size"])
        pieces = tuple(_piece(key, shape, chunk.attributes, stored) for chunk in fields["chunks"])
        tensors[key] = Entry(shape, _dtype(fields["properties"]), pieces)
    return tensors, blobs


def _stored(folder: Path, storage: dict[Any, Any]) -> dict[tuple[str, tuple[int, ...]], Piece]:
    """Place of every piece by key and offset."""
    places = {}
    for index, place in storage.items():
        offsets = tuple(index.attributes.get("offset") or ())
        info = place.attributes
        file = folders.inside(folder, info["relative_path"])
        piece = Piece(offsets, (), file, int(info["offset"]), int(info["length"]))
        places[index.attributes["fqn"], offsets] = piece
    return places


def _piece(
    key: str,
    shape: tuple[int, ...],
    chunk: dict[str, Any],
    stored: dict[tuple[str, tuple[int, ...]], Piece],
) -> Piece:
    offsets, sizes = tuple(chunk["offsets"]), tuple(chunk["sizes"])
    spans = zip(offsets, sizes, shape, strict=True)
    if any(o < 0 or n < 0 or o + n > whole for o, n, whole in spans):
        raise ValueError(f"a piece of {key} lies outside its shape {shape}")
    place = stored[key, offsets]
    return Piece(offsets, sizes, place.file, place.start, place.length)


def _dtype(properties: pickles.Record) -> str:
    # TensorProperties pickles itself as a tuple that starts with the dtype.
    state = properties.state
    dtype = state["dtype"] if isinstance(state, dict) else state[0]
    return str(dtype.name)
