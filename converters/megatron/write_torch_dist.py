"""Write a torch_dist checkpoint that has another one's entries and new values.

Names, pieces, arguments, random numbers and everything else that MaxText has no idea of come from
the checkpoint that it is like; only tensors, their checksums and the run's counts are new.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from converters.errors import CheckpointError
from converters.source import Key, Source, State

from . import archives, folders, names, numbers, pickles, zips
from .integrity import sound
from .keys import torch_dist_keys
from .open import open_source
from .pieces import Piece
from .progress import Position, moved, position_of, set_position
from .publish import publish
from .run import COMMON_ENTRY, COMMON_FILE, is_distributed_groups
from .stored import Window
from .torch_dist import Checkpoint, open_index

Array = NDArray[Any]
Values = Mapping[Key, Callable[[], Array]]

# Counts of Megatron-Bridge, in a form that is not known here.
_FOREIGN_COUNTS = "train_state.pt"
# SHA-256 of every file, where Megatron was asked for it.
_MANIFEST = "integrity.json"
_BLOCK = 1 << 20


@dataclass
class _Job:
    """One checkpoint being written, with the last value, whose pieces follow each other."""

    source: Source
    checkpoint: Checkpoint
    keys: Mapping[str, tuple[State, str]]
    values: Values
    position: Position
    last: dict[Key, Array] = field(default_factory=dict)

    def value(self, key: Key) -> Array:
        if key not in self.last:
            self.last.clear()
            value = self.values[key]()
            if value.shape != self.source.tensors[key].shape:
                raise CheckpointError(
                    f"{key}: a value of shape {value.shape} for {self.source.tensors[key].shape}"
                )
            self.last[key] = sound(value, key, ("the value to write",))
        return self.last[key]


def write_torch_dist(
    like: Path,
    root: Path,
    values: Values,
    *,
    like_iteration: int | None = None,
    iteration: int | None = None,
    adam_step: int | None = None,
    opaque: tuple[str, ...] = (),
) -> Path:
    """Write ``iter_XXXXXXX`` into ``root``, and then the tracker file that makes it the latest.

    Args:
      like: checkpoint to take everything but the values from, folder of an iteration or above.
      root: an existing folder without that iteration. The iteration appears in it complete or not
        at all.
      values: how to make every tensor of ``open_source(like)``; its shape, any floating dtype. A
        value is rounded to the dtype on disk. Each is called once, parameter by parameter, if no
        piece on disk holds more than one layer.
      like_iteration: of ``like``, if not its latest.
      iteration: finished steps, if others than those of ``like``.
      adam_step: Adam's count; by default it moves as far as ``iteration`` does.
      opaque: as for ``open_source``.

    Returns:
      the iteration's folder.

    Raises:
      CheckpointError: ``like`` cannot be read or is of another format, a value is missing, of
        another shape or not finite, or a folder is in the way.
    """
    job = _job(like, like_iteration, values, iteration, adam_step, opaque)
    return publish(root, job.position.iteration, lambda growing: _write(job, growing))


def _job(
    like: Path,
    like_iteration: int | None,
    values: Values,
    iteration: int | None,
    adam_step: int | None,
    opaque: tuple[str, ...],
) -> _Job:
    source = open_source(like, iteration=like_iteration, opaque=opaque)
    if source.format != "torch_dist":
        raise CheckpointError(
            f"{source.folder}: format {source.format}, only torch_dist can be written: pass a "
            "checkpoint saved with --ckpt-format torch_dist (a distributed optimizer's with "
            "--dist-ckpt-optim-fully-reshardable)"
        )
    missing, unknown = source.tensors.keys() - values.keys(), values.keys() - source.tensors.keys()
    for odd, what in ((missing, "no value for it"), (unknown, "no such tensor in the checkpoint")):
        if odd:
            raise CheckpointError(f"{min(odd, key=str)}: {what} ({len(odd)} such): {source.folder}")
    now = position_of(source.run)
    position = moved(source.run, now.iteration if iteration is None else iteration, adam_step)
    if position != now and (source.folder / _FOREIGN_COUNTS).exists():
        raise CheckpointError(
            f"{source.folder / _FOREIGN_COUNTS}: holds counts of iteration {now.iteration} that "
            f"are not known here: write iteration {now.iteration}, or take a checkpoint without it"
        )
    checkpoint = open_index(source.folder, opaque)
    return _Job(source, checkpoint, torch_dist_keys(checkpoint, True), values, position)


def _write(job: _Job, folder: Path) -> None:
    """Every file; ``.metadata`` follows the places of entries whose size has changed."""
    places: dict[tuple[str, tuple[int, ...]], tuple[int, int]] = {}
    by_file: dict[Path, list[tuple[Piece, str]]] = {}
    entries = [(p, key) for key, e in job.checkpoint.tensors.items() for p in e.pieces]
    for piece, key in entries + [(p, key) for key, p in job.checkpoint.blobs.items()]:
        by_file.setdefault(piece.file, []).append((piece, key))
    for file, held in by_file.items():
        with file.open("rb") as old, (folder / file.name).open("wb") as new:
            for piece, key in sorted(held, key=lambda pair: pair[0].start):
                start = new.tell()
                _entry(job, piece, key, old, new)
                places[key, piece.offsets] = start, new.tell() - start
    for key, piece in _in_order(job):
        with (folder / piece.file.name).open("r+b") as new:
            _put(job, piece, key, new, places[key, piece.offsets][0])
    common = job.source.folder / COMMON_FILE
    if common.is_file():
        data = set_position(
            common.read_bytes(), (common, str(common), 0), job.checkpoint.opaque, job.position
        )
        (folder / COMMON_FILE).write_bytes(data)
    (folder / ".metadata").write_bytes(_index(job, places))
    written = {file.name for file in folder.iterdir()}
    for file in job.source.folder.iterdir():
        if file.is_file() and file.name not in (*written, _MANIFEST):
            shutil.copyfile(file, folder / file.name)
    if (job.source.folder / _MANIFEST).is_file():
        _write_manifest(folder)


def _entry(job: _Job, piece: Piece, key: str, old: BinaryIO, new: BinaryIO) -> None:
    """Append one entry to the file, a tensor with its old values."""
    if key == COMMON_ENTRY or is_distributed_groups(key):
        old.seek(piece.start)
        archive = old.read(piece.length)
        place = piece.file, f"{piece.file}: {key}", piece.start
        new.write(set_position(archive, place, job.checkpoint.opaque, job.position))
    else:
        _copy(old, piece, new)


def _in_order(job: _Job) -> list[tuple[str, Piece]]:
    """Pieces of all files, parameter by parameter: each value is made once for all its pieces."""

    def parameter(item: tuple[str, Piece]) -> tuple[str, str, int]:
        key, piece = item
        state, model_key = job.keys[key]
        name = names.parse(model_key)
        if name.is_stacked:
            return name.of_layer(piece.offsets[0]), state.value, name.expert or 0
        return name.parameter, state.value, name.expert or 0

    entries = job.checkpoint.tensors
    return sorted(((k, p) for k in job.keys for p in entries[k].pieces), key=parameter)


def _copy(old: BinaryIO, piece: Piece, new: BinaryIO) -> None:
    old.seek(piece.start)
    left = piece.length
    while left:
        block = old.read(min(left, _BLOCK))
        if not block:
            raise CheckpointError(f"{piece.file}: cut short while it was copied")
        new.write(block)
        left -= len(block)


def _put(job: _Job, piece: Piece, key: str, new: BinaryIO, start: int) -> None:
    """Overwrite the storage of a copied tensor, and its checksums."""
    source = f"{piece.file}: {key}"
    stored = archives.index(piece.file, source, piece.start, piece.length)
    if not isinstance(stored, archives.Stored) or stored.shape != piece.sizes:
        raise CheckpointError(f"{source}: no tensor of shape {piece.sizes}")
    window = cast(BinaryIO, Window(new, start, piece.length))
    slot = next(s for s in zips.slots(window).values() if s.start == stored.start - piece.start)
    content = stored.with_values(_piece_values(job, piece, key, stored.dtype))
    new.seek(start + slot.start)
    new.write(content)
    for position in slot.sums:
        new.seek(start + position)
        new.write(zips.checksum(content))


def _piece_values(job: _Job, piece: Piece, key: str, dtype: np.dtype[Any]) -> Array:
    """What a piece of a tensor is to hold, in the dtype on disk."""
    state, model_key = job.keys[key]
    name = names.parse(model_key)
    whole = np.empty(piece.sizes, dtype)
    if not name.is_stacked:
        whole[...] = _cut(job.value(Key(name.parameter, state)), name, piece, 0)
        return whole
    for i in range(piece.sizes[0]):
        layer = Key(name.of_layer(piece.offsets[0] + i), state)
        whole[i] = _cut(job.value(layer), name, piece, 1)
    return whole


def _cut(value: Array, name: names.Name, piece: Piece, first: int) -> Array:
    """The part of a parameter that a key and then a piece of it hold."""
    if name.expert is not None:
        value = value[name.expert]
    if name.half is not None:
        value = np.split(value, 2, axis=-1 if name.parameter.endswith(".bias") else -2)[name.half]
    spans = zip(piece.offsets[first:], piece.sizes[first:], strict=True)
    return value[tuple(slice(o, o + n) for o, n in spans)]


def _index(job: _Job, places: Mapping[tuple[str, tuple[int, ...]], tuple[int, int]]) -> bytes:
    """``.metadata``, byte for byte unless an entry has moved."""
    file = job.source.folder / ".metadata"
    program = folders.read(file)
    unframed = numbers.without_frames(program, str(file))
    read = numbers.locate(unframed, pickles.Names(str(file), opaque=job.checkpoint.opaque))
    changes: list[tuple[numbers.Number, float]] = []
    for index, info in read.attributes["storage_data"].items():
        key, offsets = index.attributes["fqn"], tuple(index.attributes.get("offset") or ())
        found = info.attributes["offset"], info.attributes["length"]
        changes += [
            (old, new)
            for old, new in zip(found, places.get((key, offsets), found), strict=True)
            if old != new
        ]
    return numbers.replaced(unframed, changes) if changes else program


def _write_manifest(folder: Path) -> None:
    files = {}
    for file in sorted(folder.iterdir()):
        with file.open("rb") as stream:
            files[file.name] = hashlib.file_digest(stream, "sha256").hexdigest()
    content = json.dumps({"algorithm": "sha256", "files": files}, indent=2)
    (folder / _MANIFEST).write_text(content)
