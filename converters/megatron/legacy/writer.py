"""Write a legacy checkpoint that has another one's files and new values.

Everything that is no tensor of the model or its optimizer keeps its bytes, except for the counts of
a run that has gone on.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from converters.errors import CheckpointError
from converters.megatron import folders, zips
from converters.megatron.integrity import sound
from converters.megatron.progress import moved, position_of
from converters.megatron.publish import publish
from converters.source import Array, Key, SourceTensor, State

from . import groups, layer_wise
from .copying import copy_files
from .distributed import FLAT_FILE
from .kept import Kept
from .parameters import Parameter, parameters
from .ranks import MODEL_FILE, Ranks, open_ranks
from .reader import open_legacy, owned_of
from .split import keys_of, part_of

Values = Mapping[Key, Callable[[], Array]]
_BLOCK = 1 << 20


@dataclasses.dataclass(frozen=True)
class _Piece:
    """One tensor of one rank that is to be overwritten."""

    parameter: Parameter
    state: State
    kept: Kept


def write_legacy(
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
      root: an existing folder without that iteration; it appears complete or not at all.
      values: how to make every tensor of the table of ``like``; its shape, any floating dtype. A
        value is rounded to the dtype on disk.
      like_iteration: of ``like``, if not its latest.
      iteration: finished steps, if others than those of ``like``.
      adam_step: Adam's count; by default it moves as far as ``iteration`` does.
      opaque: as for ``open_legacy``.

    Returns:
      the iteration's folder.

    Raises:
      CheckpointError: ``like`` cannot be read or has another form, a value is missing, of another
        shape or not finite, or a folder is in the way.
    """
    source = open_legacy(folders.resolve(like, like_iteration), opaque)
    if source.format == "torch+layer_wise":
        raise CheckpointError(
            f"{source.folder}: files {layer_wise.FILES} have no names to write to: {groups.ADVICE}"
        )
    _require_values(source.tensors, values)
    now = position_of(source.run)
    position = moved(source.run, now.iteration if iteration is None else iteration, adam_step)

    def fill(growing: Path) -> None:
        ranks = open_ranks(source.folder, opaque)
        copy_files(ranks, growing, position, opaque)
        _overwrite(ranks, growing, source.tensors, values, opaque)

    return publish(root, position.iteration, fill)


def _require_values(tensors: Mapping[Key, SourceTensor], values: Values) -> None:
    missing, unknown = tensors.keys() - values.keys(), values.keys() - tensors.keys()
    for odd, what in ((missing, "no value for it"), (unknown, "no such tensor in the checkpoint")):
        if odd:
            raise CheckpointError(f"{min(odd)}: {what} ({len(odd)} such)")


def _overwrite(
    ranks: Ranks,
    target: Path,
    tensors: Mapping[Key, SourceTensor],
    values: Values,
    opaque: tuple[str, ...],
) -> None:
    """Put every value where the ranks keep it; each is made once."""
    by_keys = _pieces(ranks, opaque)
    starts = {file: _places(file, target / file.parent.name / file.name) for file in _files(ranks)}
    touched: dict[Path, set[str]] = {}
    for keys, pieces in by_keys.items():
        made = {key: _value(key, tensors[key], values) for key in keys}
        for piece in pieces:
            own = part_of(
                piece.parameter, piece.state, made.__getitem__, ranks.sizes, ranks.arguments
            )
            stored = piece.kept.stored
            name, start = starts[stored.file][stored.start]
            new = target / stored.file.parent.name / stored.file.name
            _put(piece.kept, new, start, own)
            touched.setdefault(new, set()).add(name)
    for file, names in touched.items():
        _sum(file, names)


def _pieces(ranks: Ranks, opaque: tuple[str, ...]) -> dict[tuple[Key, ...], list[_Piece]]:
    """All tensors of all ranks by the table's keys that they are made from."""
    found, _ = parameters(ranks)
    _, owned = owned_of(ranks, found, opaque)
    by_keys: dict[tuple[Key, ...], list[_Piece]] = {}
    for one in owned:
        for state, kept in {State.WEIGHT: one.parameter.tensor, **one.states}.items():
            keys = keys_of(one.parameter, state, ranks.arguments)
            by_keys.setdefault(keys, []).append(_Piece(one.parameter, state, kept))
    return by_keys


def _value(key: Key, like: SourceTensor, values: Values) -> Array:
    value = values[key]()
    if value.shape != like.shape:
        raise CheckpointError(f"{key}: a value of shape {value.shape} for {like.shape}")
    return sound(value, key, ("the value to write",))


def _files(ranks: Ranks) -> list[Path]:
    files = [rank.folder / name for rank in ranks.ranks for name in (MODEL_FILE, FLAT_FILE)]
    return [file for file in files if file.is_file()]


def _places(old: Path, new: Path) -> dict[int, tuple[str, int]]:
    """Entry and new first byte of every storage, by its first byte in the old file."""
    with old.open("rb") as before, new.open("rb") as after:
        moved_to = zips.slots(after)
        return {slot.start: (n, moved_to[n].start) for n, slot in zips.slots(before).items()}


def _put(kept: Kept, file: Path, start: int, value: Array) -> None:
    stored = kept.stored
    raw = np.memmap(file, np.uint8, "r+", start, (stored.size,))
    strides = tuple(s * stored.dtype.itemsize for s in stored.strides)
    offset = stored.offset * stored.dtype.itemsize
    place = np.ndarray(stored.shape, stored.dtype, raw.view(np.ndarray), offset, strides)
    if kept.shape == stored.shape:
        place[...] = value
    else:
        place[kept.first : kept.first + value.size] = value.reshape(-1)
    raw.flush()


def _sum(file: Path, names: Sequence[str] | set[str]) -> None:
    """Bring the sums of some entries up to date."""
    with file.open("r+b") as stream:
        slots = zips.slots(stream)
        for name in names:
            slot, total = slots[name], 0
            stream.seek(slot.start)
            left = slot.size
            while left and (block := stream.read(min(left, _BLOCK))):
                total, left = zlib.crc32(block, total), left - len(block)
            for position in slot.sums:
                stream.seek(position)
                stream.write(total.to_bytes(4, "little"))
