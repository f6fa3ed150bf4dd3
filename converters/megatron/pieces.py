"""A tensor saved in pieces: whether they make it up exactly; reading it or one of its layers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from converters.errors import CheckpointError

from . import archives, folders

Array = NDArray[Any]
Box = tuple[tuple[int, ...], tuple[int, ...]]


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


def require_whole(entry: Entry, source: str) -> None:
    """Raise CheckpointError unless each element is in exactly one piece."""
    boxes = [(piece.offsets, piece.sizes) for piece in entry.pieces]
    if any(0 in sizes for _, sizes in boxes) and 0 not in entry.shape:
        raise CheckpointError(f"{source}: a saved piece is empty")
    saved, needed = sum(math.prod(s) for _, s in boxes), math.prod(entry.shape)
    if not _apart(boxes, 0):
        raise CheckpointError(
            f"{source}: saved pieces overlap: .metadata is damaged or of two saves; copy it again"
        )
    if saved != needed:
        raise CheckpointError(
            f"{source}: the saved pieces hold {saved} of the {needed} elements of shape "
            f"{entry.shape}: the checkpoint is incomplete, copy it again"
        )


def read(entry: Entry, source: str, layer: int | None = None) -> Array:
    """The tensor, or one index of its first axis; a read-only view where it lies in one piece.

    Raises:
      CheckpointError: a file is missing, cut short, damaged, or holds something else.
    """
    shape = entry.shape if layer is None else entry.shape[1:]
    pieces = [piece for piece in entry.pieces if layer is None or _has_layer(piece, layer)]
    if len(pieces) == 1:
        part = _part(pieces[0], entry, source, layer)
        if part.shape == shape:
            return part
    whole = np.empty(shape, archives.numpy_dtype(entry.dtype, source))
    first = 0 if layer is None else 1
    for piece in pieces:
        spans = zip(piece.offsets[first:], piece.sizes[first:], strict=True)
        place = tuple(slice(o, o + n) for o, n in spans)
        whole[place] = _part(piece, entry, source, layer)
    whole.flags.writeable = False
    return whole


def stored(piece: Piece, source: str, opaque: tuple[str, ...] = ()) -> Any:
    """What a piece's archive holds, its tensors unread.

    Raises:
      CheckpointError: the file is missing, not fetched, or shorter than ``.metadata`` says; or the
        archive is damaged or refused.
    """
    folders.require_content(piece.file)
    size = piece.file.stat().st_size
    if piece.start < 0 or piece.length < 0 or piece.start + piece.length > size:
        raise CheckpointError(
            f"{piece.file}: cut short, {size} bytes where .metadata expects at least "
            f"{piece.start + piece.length}: copy it again"
        )
    return archives.index(piece.file, source, piece.start, piece.length, opaque)


def _has_layer(piece: Piece, layer: int) -> bool:
    return piece.offsets[0] <= layer < piece.offsets[0] + piece.sizes[0]


def _part(piece: Piece, entry: Entry, source: str, layer: int | None) -> Array:
    source = f"{source} in {piece.file.name}"
    value = stored(piece, source)
    dtype = archives.numpy_dtype(entry.dtype, source)
    if not isinstance(value, archives.Stored):
        raise CheckpointError(f"{source}: no tensor; the file belongs to another checkpoint")
    if value.shape != piece.sizes or value.dtype != dtype:
        raise CheckpointError(
            f"{source}: a {value.dtype} tensor of shape {value.shape}, .metadata says {dtype} of "
            f"{piece.sizes}: the file belongs to another checkpoint, copy it again"
        )
    part = value.read()
    return part if layer is None else part[layer - piece.offsets[0]]


def _apart(boxes: Sequence[Box], axis: int) -> bool:
    """Whether no two boxes share an element; ``boxes`` agree on all axes before ``axis``."""
    if len(boxes) < 2:
        return True
    if axis == len(boxes[0][0]):
        return False
    spans: dict[tuple[int, int], list[Box]] = {}
    for box in boxes:
        spans.setdefault((box[0][axis], box[1][axis]), []).append(box)
    ordered = sorted(spans)
    if all(a + n <= b for (a, n), (b, _) in itertools.pairwise(ordered)):
        return all(_apart(group, axis + 1) for group in spans.values())
    return _pairwise_apart(boxes)


def _pairwise_apart(boxes: Sequence[Box]) -> bool:
    """As ``_apart``, for boxes that are not cut axis by axis."""
    begin = np.array([offsets for offsets, _ in boxes])
    end = begin + np.array([sizes for _, sizes in boxes])
    for i in range(len(boxes) - 1):
        shared = (begin[i] < end[i + 1 :]) & (begin[i + 1 :] < end[i])
        if shared.all(axis=1).any():
            return False
    return True
