"""The distributed optimizer's state in ``torch_dist`` checkpoints that are ``dp_reshardable``.

Every rank's buckets are tensors of one axis, under keys that number ranks, buffers and buckets.
Beside the layer-wise optimizer, which names Muon's matrices, they hold what it leaves to Adam.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from converters.errors import CheckpointError
from converters.megatron import archives, pieces
from converters.megatron.pieces import Entry
from converters.megatron.torch_dist import Checkpoint
from converters.source import Array, Key, SourceTensor, State

from . import flat
from .enumeration import Local, listed
from .merge import Part, merged
from .ranks import Place, Sizes, sizes_of
from .table import verified

_BUCKET = re.compile(
    r"(?:chained_(?P<child>\d+)\.)?optimizer\.distributed\.dp_group_idx_(?P<group>\d+)"
    r"\.gbuf_idx_(?P<buffer>\d+)\.dtype_\(.*\)\.bucket_idx_(?P<bucket>\d+)\.(?P<state>\w+)"
)


class _Buffer(NamedTuple):
    """Of one optimizer of the chain, of one model-parallel rank."""

    child: int
    group: int
    number: int


Buckets = dict[_Buffer, dict[str, dict[int, str]]]


def read_reshardable(
    checkpoint: Checkpoint, arguments: Mapping[str, Any], weights: Mapping[Key, SourceTensor]
) -> dict[Key, SourceTensor]:
    """Masters and Adam's moments of every parameter without named state, whole; nothing is read.

    Args:
      checkpoint: open.
      arguments: of the run.
      weights: the table's, by canonical name, and with them the optimizer's state that has names.

    Returns:
      MASTER, EXP_AVG and EXP_AVG_SQ of each trained parameter. Loading a master compares it with
      its weight, which proves the decoding of the place it is from.

    Raises:
      CheckpointError: the buckets are not those that the weights call for.
    """
    source = str(checkpoint.folder)
    sizes = sizes_of(arguments, checkpoint.folder / ".metadata")
    own = {key.parameter: tensor for key, tensor in weights.items() if key.state is State.WEIGHT}
    named = {key.parameter for key in weights if key.state is not State.WEIGHT}
    # Of a chain the layer-wise optimizer is the first.
    first = 1 if named else 0
    buckets = _buckets(checkpoint, source)
    used: set[_Buffer] = set()
    parts: dict[Key, list[Part]] = {}
    of_stage = [listed(own, sizes, stage, arguments) for stage in range(sizes.pipeline)]
    for place in _places(sizes):
        local = [one for one in of_stage[place.pipeline] if one.name not in named]
        for expert in (False, True):
            chosen = [
                one for one in local if (one.expert is not None and sizes.expert > 1) == expert
            ]
            for number, members in enumerate(_buffers(chosen)):
                buffer = _Buffer(first + expert, _group(place, sizes, expert), number)
                if buffer not in buckets:
                    raise CheckpointError(f"{source}: no flat state {buffer}: {flat.ADVICE}")
                used.add(buffer)
                _add(parts, buckets[buffer], members, place, sizes, checkpoint)
    if set(buckets) != used:
        raise CheckpointError(f"{source}: {sorted(set(buckets) - used)[0]} is of no known rank")
    experts = arguments.get("num_experts") or 0
    whole = {
        key: merged(
            key.parameter,
            found,
            sizes.tensor if found[0].expert is None else sizes.expert_tensor,
            experts,
            arguments,
        )
        for key, found in parts.items()
    }
    checked = verified(whole | {Key(n, State.WEIGHT): t for n, t in own.items()})
    return {key: checked[key] for key in whole}


def _buckets(checkpoint: Checkpoint, source: str) -> Buckets:
    """Keys by buffer, state and bucket."""
    found: Buckets = {}
    for key in checkpoint.tensors:
        if ".gbuf_idx_" not in key:
            continue
        match = _BUCKET.fullmatch(key)
        if match is None or match["state"] not in flat.FLAT_STATES:
            raise CheckpointError(f"{source}: {key}: only Adam's state is decoded; {flat.ADVICE}")
        buffer = _Buffer(int(match["child"] or 0), int(match["group"]), int(match["buffer"]))
        states = found.setdefault(buffer, {})
        states.setdefault(match["state"], {})[int(match["bucket"])] = key
    return found


def _places(sizes: Sizes) -> list[Place]:
    """One rank for every part of the model: dense parts by tensor rank, experts by expert rank."""
    writers = range(max(sizes.tensor, sizes.expert_tensor * sizes.expert))
    return [
        Place(rank % sizes.tensor, stage, rank // sizes.expert_tensor % sizes.expert)
        for stage in range(sizes.pipeline)
        for rank in writers
    ]


def _group(place: Place, sizes: Sizes, expert: bool) -> int:
    """Number of a rank's model-parallel group, tensor parallelism running fastest."""
    if not expert:
        return place.pipeline * sizes.tensor + place.tensor
    rank = place.pipeline * sizes.expert + place.expert
    return rank * sizes.expert_tensor + sizes.expert_part(place)


def _buffers(members: list[Local]) -> list[list[Local]]:
    """One for each dtype of each model chunk, as they first appear."""
    found: dict[tuple[int, str], list[Local]] = {}
    for one in members:
        found.setdefault((one.chunk, one.dtype), []).append(one)
    return [found[key] for key in sorted(found, key=lambda k: k[0])]


def _add(
    parts: dict[Key, list[Part]],
    states: Mapping[str, Mapping[int, str]],
    members: list[Local],
    place: Place,
    sizes: Sizes,
    checkpoint: Checkpoint,
) -> None:
    """Cut every member's states out of a buffer's buckets."""
    source = str(checkpoint.folder)
    if set(states) != set(flat.FLAT_STATES):
        raise CheckpointError(f"{source}: flat state {sorted(states)}, expected param and moments")
    for name, keys in states.items():
        entries = [checkpoint.tensors[keys[number]] for number in sorted(keys)]
        lengths = [entry.shape[0] for entry in entries]
        slots = flat.fit([math.prod(one.shape) for one in members], lengths, f"{source}: {keys[0]}")
        for one, slot in zip(members, slots, strict=True):
            tensor = _tensor(entries[slot.bucket], keys[slot.bucket], slot.start, one, source)
            cut, expert = place.tensor, None
            if one.expert is not None:
                here = _local_experts(members)
                cut, expert = sizes.expert_part(place), place.expert * here + one.expert
            key = Key(one.name, flat.FLAT_STATES[name])
            parts.setdefault(key, []).append(Part(cut, expert, tensor))


def _local_experts(members: list[Local]) -> int:
    return 1 + max(one.expert or 0 for one in members)


def _tensor(entry: Entry, key: str, start: int, one: Local, source: str) -> SourceTensor:
    load = partial(_load, entry, f"{source}: {key}", start, one.shape)
    dtype = archives.numpy_dtype(entry.dtype, f"{source}: {key}")
    return SourceTensor(one.shape, dtype, (f"{key}[{start}:]",), load)


def _load(entry: Entry, source: str, start: int, shape: tuple[int, ...]) -> Array:
    """A range of a bucket, from the pieces that it lies in and no others."""
    stop = start + math.prod(shape)
    inside = [
        piece
        for piece in entry.pieces
        if piece.offsets[0] < stop and start < piece.offsets[0] + piece.sizes[0]
    ]
    whole = np.empty(stop - start, archives.numpy_dtype(entry.dtype, source))
    for piece in inside:
        alone = Entry(piece.sizes, entry.dtype, (dataclasses.replace(piece, offsets=(0,)),))
        first, last = max(start, piece.offsets[0]), min(stop, piece.offsets[0] + piece.sizes[0])
        value = pieces.read(alone, source)
        whole[first - start : last - start] = value[
            first - piece.offsets[0] : last - piece.offsets[0]
        ]
    whole.flags.writeable = False
    return whole.reshape(shape)
