"""From the keys of a distributed checkpoint to its table of parameters."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from converters.errors import CheckpointError
from converters.source import Key, SetAside, SourceTensor, State

from . import archives, names
from .integrity import sound
from .names import Name
from .pieces import Entry, Piece, read
from .torch_dist import Checkpoint

Array = NDArray[Any]

_LAYER = re.compile(r"(decoder|mtp)\.layers\.(\d+)\..+")


class Part(NamedTuple):
    """Where a parameter's state lies, or one expert or half of it.

    Attributes:
      key: on disk.
      entry: with the pieces that matter.
      layer: index of its first axis that is the parameter's; None if the whole tensor is.
      name: what the key means.
    """

    key: str
    entry: Entry
    layer: int | None
    name: Name

    @property
    def shape(self) -> tuple[int, ...]:
        return self.entry.shape if self.layer is None else self.entry.shape[1:]


def table(checkpoint: Checkpoint, keys: Mapping[str, tuple[State, str]]) -> dict[Key, SourceTensor]:
    """Every parameter and state that ``keys`` name, layer by layer.

    Args:
      checkpoint: open.
      keys: state and model key by key on disk.

    Raises:
      CheckpointError: two keys hold the same, or parts of a parameter are missing or disagree.
    """
    parts: dict[Key, list[Part]] = {}
    for disk, (state, model_key) in keys.items():
        for key, part in _parts(checkpoint, disk, state, names.parse(model_key)):
            parts.setdefault(key, []).append(part)
    seen = {key.parameter: n for n, key in reversed(list(enumerate(parts)))}
    ordered = sorted(parts, key=lambda key: (_order(key.parameter), seen[key.parameter]))
    return {key: _tensor(key, parts[key], checkpoint) for key in ordered}


def _parts(
    checkpoint: Checkpoint, disk: str, state: State, name: Name
) -> Iterator[tuple[Key, Part]]:
    entry = checkpoint.tensors[disk]
    if not name.is_stacked:
        yield Key(name.parameter, state), Part(disk, entry, None, name)
        return
    if not entry.shape:
        raise CheckpointError(f"{checkpoint.folder}: {disk}: no axis of layers in a scalar")
    pieces: list[list[Piece]] = [[] for _ in range(entry.shape[0])]
    for piece in entry.pieces:
        for layer in range(piece.offsets[0], piece.offsets[0] + piece.sizes[0]):
            pieces[layer].append(piece)
    for layer, own in enumerate(pieces):
        part = Entry(entry.shape, entry.dtype, tuple(own))
        yield Key(name.of_layer(layer), state), Part(disk, part, layer, name)


def _order(parameter: str) -> tuple[int, int]:
    """Embedding, layers by number, the rest, multi-token prediction."""
    match = _LAYER.fullmatch(parameter)
    if match is None:
        return (0 if parameter.startswith("embedding.") else 2), 0
    return (1 if match[1] == "decoder" else 3), int(match[2])


def _tensor(key: Key, parts: list[Part], checkpoint: Checkpoint) -> SourceTensor:
    first = parts[0]
    origin = tuple(dict.fromkeys(_described(part) for part in parts))
    dtypes = {part.entry.dtype for part in parts}
    if len(dtypes) != 1:
        raise CheckpointError(f"{checkpoint.folder}: {key}: parts of dtypes {sorted(dtypes)}")
    if len(parts) == 1 and first.name.expert is None and first.name.half is None:
        shape, load = first.shape, _reader(first, checkpoint)
    else:
        shape, load = _joined(key, parts, checkpoint)
    dtype = archives.numpy_dtype(first.entry.dtype, f"{checkpoint.folder}: {first.key}")
    return SourceTensor(shape, dtype, origin, lambda: sound(load(), key, origin))


def _described(part: Part) -> str:
    files = sorted({piece.file.name for piece in part.entry.pieces})
    where = "" if part.layer is None else f"[{part.layer}]"
    return f"{part.key}{where} in {', '.join(files[:3])}{', ...' if len(files) > 3 else ''}"


def _reader(part: Part, checkpoint: Checkpoint) -> Callable[[], Array]:
    source = f"{checkpoint.folder}: {part.key}"
    return lambda: read(part.entry, source, part.layer)


def _joined(
    key: Key, parts: list[Part], checkpoint: Checkpoint
) -> tuple[tuple[int, ...], Callable[[], Array]]:
    """Experts stacked in their order, gate above up."""
    places = {(part.name.expert, part.name.half): part for part in parts}
    experts = sorted({part.name.expert for part in parts}, key=lambda e: -1 if e is None else e)
    halves = sorted({part.name.half for part in parts}, key=lambda h: -1 if h is None else h)
    known = experts in ([None], list(range(len(experts)))) and halves in ([None], [0, 1])
    if not known or len(places) != len(parts) or len(parts) != len(experts) * len(halves):
        found = ", ".join(sorted(part.key for part in parts)[:6])
        raise CheckpointError(
            f"{checkpoint.folder}: {key} cannot be put together from {found}: an expert, a gate or "
            "an up half is missing or is there twice"
        )
    if len({part.shape for part in parts}) != 1:
        raise CheckpointError(f"{checkpoint.folder}: {key}: parts of different shapes")
    axis = -1 if key.parameter.endswith(".bias") else -2
    piece = list(parts[0].shape)
    piece[axis] *= len(halves)
    shape = tuple(piece) if experts == [None] else (len(experts), *piece)
    dtype = archives.numpy_dtype(parts[0].entry.dtype, str(key))

    def load() -> Array:
        whole = np.empty(shape, dtype)
        for i, expert in enumerate(experts):
            target = whole if expert is None else whole[i]
            rows = np.split(target, len(halves), axis=axis)
            for half, place in zip(halves, rows, strict=True):
                place[...] = _reader(places[expert, half], checkpoint)()
        whole.flags.writeable = False
        return whole

    return shape, load


def leftovers(checkpoint: Checkpoint, keys: Collection[str]) -> tuple[SetAside, ...]:
    """Everything in the checkpoint that is in no table, with the reason."""
    left = [key for key in (*checkpoint.tensors, *checkpoint.blobs) if key not in keys]
    return tuple(SetAside(key, reason) for key in left if (reason := _reason(key)))


def _reason(key: str) -> str:
    for pattern, reason in _REASONS:
        if re.search(pattern, key):
            return reason
    return "not known to this tool"


# What is known of keys that hold no parameter; an empty reason marks what the Run is read from.
_REASONS: tuple[tuple[str, str], ...] = (
    (r"(^|\.)_extra_state(/|$)", "scales of Transformer Engine; MaxText keeps its own"),
    (r"^rng_state[./]", "random numbers; MaxText seeds its own"),
    (r"^rerun_state_machine_state/", "Megatron's watch for hardware faults"),
    (r"^num_floating_point_operations_so_far$", "a statistic"),
    (r"^(common_state/|args$|checkpoint_version$|iteration$|opt_param_scheduler\.)", ""),
    (r"^optimizer\.(param_groups|param_to_group_meta)\.|\.step$", ""),
    (r"optimizer\.distributed\..*\.(optimizer|per_bucket_numel(_unpadded)?)/", ""),
    (r"optimizer\.state\.", "a kind of optimizer state that is neither Muon's nor Adam's"),
)
