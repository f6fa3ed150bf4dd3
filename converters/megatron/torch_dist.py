"""Read Megatron's ``torch_dist`` checkpoints: names and shapes at once, values tensor by tensor.

Neither Megatron nor torch is imported, no pickle is executed and no process group is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from converters.errors import CheckpointError

from . import archives, folders, pickles
from .pieces import Entry, Piece, read, require_whole, stored


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
    return open_index(folder, opaque)


def open_index(folder: Path, opaque: tuple[str, ...] = ()) -> Checkpoint:
    """Open the folder of an iteration, of this format or another with a ``.metadata`` file."""
    index = folder / ".metadata"
    names = pickles.Names(str(index), opaque=opaque)
    metadata = pickles.load(folders.read(index), names)
    if not pickles.is_record(metadata, "Metadata"):
        raise CheckpointError(f"{index}: not the metadata of a distributed checkpoint")
    try:
        tensors, blobs = _entries(folder, metadata.attributes)
    except (KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
        raise CheckpointError(f"{index}: fields are missing or of another kind: {error}") from error
    return Checkpoint(folder, tensors, blobs, opaque)


def read_tensor(checkpoint: Checkpoint, key: str) -> NDArray[Any]:
    """One whole tensor, which may be a read-only view of the mapped file.

    Raises:
      CheckpointError: no such key, pieces that do not cover it, or damaged bytes.
    """
    if key not in checkpoint.tensors:
        raise CheckpointError(f"{checkpoint.folder}: no tensor {key}")
    source = f"{checkpoint.folder}: {key}"
    require_whole(checkpoint.tensors[key], source)
    return read(checkpoint.tensors[key], source)


def read_blob(checkpoint: Checkpoint, key: str) -> Any:
    """One byte entry, as containers, numbers, arrays and inert records."""
    if key not in checkpoint.blobs:
        raise CheckpointError(f"{checkpoint.folder}: no entry {key}")
    piece = checkpoint.blobs[key]
    source = f"{piece.file}: {key}"
    return archives.values(stored(piece, source, checkpoint.opaque), source)


def _entries(folder: Path, metadata: dict[str, Any]) -> tuple[dict[str, Entry], dict[str, Piece]]:
    stored = _stored(folder, metadata["storage_data"])
    tensors: dict[str, Entry] = {}
    blobs: dict[str, Piece] = {}
    for key, described in metadata["state_dict_metadata"].items():
        if pickles.is_record(described, "BytesStorageMetadata"):
            blobs[key] = stored[key, ()]
            continue
        fields = described.attributes
        shape = _whole(fields["size"])
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
    offsets, sizes = _whole(chunk["offsets"]), _whole(chunk["sizes"])
    spans = zip(offsets, sizes, shape, strict=True)
    if any(o < 0 or n < 0 or o + n > whole for o, n, whole in spans):
        raise ValueError(f"a piece of {key} lies outside its shape {shape}")
    place = stored[key, offsets]
    return Piece(offsets, sizes, place.file, place.start, place.length)


def _whole(numbers: Any) -> tuple[int, ...]:
    if any(type(n) is not int or n < 0 for n in numbers):
        raise ValueError(f"{tuple(numbers)} where sizes are expected")
    return tuple(numbers)


def _dtype(properties: pickles.Record) -> str:
    # TensorProperties pickles itself as a tuple that starts with the dtype.
    state = properties.state
    dtype = state["dtype"] if isinstance(state, dict) else state[0]
    return str(dtype.name)
