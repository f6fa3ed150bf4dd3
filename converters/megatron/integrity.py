"""Whether a checkpoint is whole and of one piece: files, iteration, parameters, values."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from converters.errors import CheckpointError
from converters.source import Key, SourceTensor, State

from . import archives, folders, names
from .pieces import Piece, require_whole
from .run import Run
from .torch_dist import Checkpoint

# Elements that are looked at together.
_BLOCK = 1 << 18
_LAYER = re.compile(r"decoder\.layers\.(\d+)\..+")


def require_files(checkpoint: Checkpoint) -> None:
    """Raise CheckpointError unless the files are exactly those that the metadata accounts for.

    Every byte of a ``.distcp`` file belongs to one entry, every file is mentioned, every tensor is
    covered.
    """
    used: dict[Path, list[tuple[Piece, str]]] = {}
    for key, entry in checkpoint.tensors.items():
        source = f"{checkpoint.folder}: {key}"
        require_whole(entry, source)
        size = archives.numpy_dtype(entry.dtype, source).itemsize
        for piece in entry.pieces:
            if math.prod(piece.sizes) * size > piece.length:
                raise CheckpointError(
                    f"{source}: {piece.length} bytes in {piece.file.name} cannot hold "
                    f"{piece.sizes} of {entry.dtype}: .metadata is damaged, copy it again"
                )
            used.setdefault(piece.file, []).append((piece, key))
    for key, blob in checkpoint.blobs.items():
        used.setdefault(blob.file, []).append((blob, key))
    for file, held in used.items():
        _require_there(file, held)
    extra = sorted(set(checkpoint.folder.glob("*.distcp")) - set(used))
    if extra:
        raise CheckpointError(
            f"{extra[0]}: .metadata does not mention this file: two saves are mixed in one folder, "
            "copy the checkpoint again into an empty one"
        )
    for file, held in used.items():
        _require_filled(file, held)


def _require_there(file: Path, held: list[tuple[Piece, str]]) -> None:
    if not file.is_file():
        raise CheckpointError(
            f"{file}: missing, it holds {held[0][1]} and {len(held) - 1} more: the copy of the "
            "checkpoint is incomplete"
        )
    folders.require_content(file)


def _require_filled(file: Path, held: list[tuple[Piece, str]]) -> None:
    size, end, last = file.stat().st_size, 0, ""
    for piece, key in sorted(held, key=lambda pair: pair[0].start):
        if piece.start != end:
            what = f"shares bytes with {last}" if piece.start < end else "does not follow the last"
            raise CheckpointError(
                f"{file}: {key} at byte {piece.start} {what}: .metadata is damaged or of another "
                "save, copy the checkpoint again"
            )
        end, last = piece.start + piece.length, key
    if size < end:
        raise CheckpointError(
            f"{file}: cut short, {size} bytes where .metadata expects {end} ({last} is the last "
            "entry): copy it again"
        )
    if size > end:
        raise CheckpointError(
            f"{file}: {size} bytes where .metadata expects {end}: the file is of another save, "
            "copy the checkpoint again"
        )


def require_one_iteration(folder: Path, run: Run) -> None:
    """Raise CheckpointError if the folder and the state inside it name different iterations."""
    match = re.fullmatch(r"iter_(\d+)", folder.name)
    if match and int(match[1]) != run.iteration:
        raise CheckpointError(
            f"{folder}: the common state inside is of iteration {run.iteration}: files of two "
            "saves are mixed, or the folder was renamed"
        )


def require_model(tensors: Mapping[Key, SourceTensor], run: Run) -> None:
    """Raise CheckpointError unless layers and experts are those of the run's arguments."""
    seen = {int(m[1]) for key in tensors if (m := _LAYER.fullmatch(key.parameter))}
    layers = run.arguments.get("num_layers")
    if isinstance(layers, int) and seen != set(range(layers)):
        odd = min(seen ^ set(range(layers)))
        raise CheckpointError(
            f"num_layers={layers} in the arguments, but decoder.layers.{odd} is "
            f"{'not saved' if odd < layers else 'saved too'}: the checkpoint is incomplete or of "
            "another model"
        )
    experts = run.arguments.get("num_experts")
    for key, tensor in tensors.items():
        if ".mlp.experts." in key.parameter and tensor.shape[:1] != (experts,):
            raise CheckpointError(
                f"{key}: num_experts={experts} in the arguments, but the tensor has shape "
                f"{tensor.shape}: the checkpoint is incomplete or of another model"
            )


def require_states(tensors: Mapping[Key, SourceTensor]) -> None:
    """Raise CheckpointError unless every parameter has the whole state of one optimizer, or none
    has any.
    """
    states: dict[str, set[State]] = {}
    for key, tensor in tensors.items():
        states.setdefault(key.parameter, set()).add(key.state)
        weight = tensors.get(Key(key.parameter, State.WEIGHT))
        if weight is None:
            raise CheckpointError(
                f"{key}: there is no such weight, so the key {tensor.origin[0]} was renamed or the "
                "model's was"
            )
        if tensor.shape != weight.shape:
            raise CheckpointError(
                f"{key}: shape {tensor.shape}, but the weight's is {weight.shape}: the files are "
                "of two models, or an older distributed optimizer flattened its state (save it "
                "again with --dist-ckpt-optim-fully-reshardable)"
            )
    if any(len(held) > 1 for held in states.values()):
        _require_complete(states, tensors)


def _require_complete(
    states: Mapping[str, set[State]], tensors: Mapping[Key, SourceTensor]
) -> None:
    bare = [name for name, held in states.items() if held == {State.WEIGHT} and not _buffer(name)]
    if bare:
        raise CheckpointError(
            f"{bare[0]}: no optimizer state, as {len(bare)} of {len(states)} parameters, while "
            "others have it: one optimizer of the chain is missing, a key was renamed, or the "
            "parameter was frozen. Convert the weights alone (--no-optimizer) or save it again"
        )
    masters = any(State.MASTER in held for held in states.values())
    for name, held in states.items():
        kept = held - {State.WEIGHT, State.MASTER}
        if kept not in (set(), {State.MOMENTUM}, {State.EXP_AVG, State.EXP_AVG_SQ}):
            found = ", ".join(sorted(state.value for state in kept))
            raise CheckpointError(
                f"{name}: optimizer state {found} is neither Muon's momentum_buffer nor Adam's "
                "exp_avg with exp_avg_sq: a key is missing or was renamed, or another optimizer "
                "trained it"
            )
        if not kept and not _buffer(name):
            raise CheckpointError(f"{name}: a master weight, but no optimizer state: incomplete")
        low = tensors[Key(name, State.WEIGHT)].dtype.itemsize < 4
        if masters and low and State.MASTER not in held and not _buffer(name):
            raise CheckpointError(f"{name}: no master weight, while others have it: incomplete")


def _buffer(parameter: str) -> bool:
    return any(parameter.endswith("." + name) for name in names.BUFFERS)


def sound(values: NDArray[Any], key: Key, origin: Iterable[str]) -> NDArray[Any]:
    """The values, if they can be continued from.

    Raises:
      CheckpointError: NaN or infinity, or a negative second moment; names the tensor and the index.
    """
    place = _first_wrong(values, key.state is State.EXP_AVG_SQ)
    if place is None:
        return values
    raise CheckpointError(
        f"{key}: {values[place]} at index {list(map(int, place))} ({', '.join(origin)}): the run "
        "had diverged or the file is damaged; convert an earlier iteration (--iteration)"
    )


def _first_wrong(values: NDArray[Any], positive: bool) -> tuple[Any, ...] | None:
    if values.dtype.kind not in "fV" or not values.size:
        return None
    for first in range(0, len(values) if values.ndim else 1, rows := _rows(values)):
        block = values[first : first + rows] if values.ndim else values
        if values.dtype.kind == "f" and _sound(block, positive):
            continue
        wrong = ~np.isfinite(block)
        if positive:
            wrong |= block < 0
        if wrong.any():
            place = np.unravel_index(int(np.argmax(wrong)), block.shape)
            return (first + place[0], *place[1:]) if values.ndim else ()
    return None


def _sound(block: NDArray[Any], positive: bool) -> bool:
    """Seen from the extremes alone, which needs no second array; a NaN is both of them."""
    with np.errstate(invalid="ignore"):
        low, high = block.min(), block.max()
    return bool(np.isfinite(low) and np.isfinite(high) and (low >= 0 or not positive))


def _rows(values: NDArray[Any]) -> int:
    return max(1, _BLOCK // max(1, values.size // len(values))) if values.ndim else 1
