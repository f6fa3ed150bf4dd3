"""Whether a float32 master is the weight that lies beside it, rounded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from converters.errors import CheckpointError
from converters.source import Array, Key, SourceTensor, State

_AT_ONCE = 1 << 22


def same_bits(one: Array, other: Array) -> bool:
    """Whether two arrays are equal bit for bit, NaN included."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    bits = np.dtype(f"u{one.dtype.itemsize}")
    pair = (np.ascontiguousarray(one).view(bits), np.ascontiguousarray(other).view(bits))
    return bool(np.array_equal(*pair))


def rounds_to(master: Array, weight: Array) -> bool:
    """Whether every entry of the master, rounded, is the weight's; compared a few rows at once."""
    if master.shape != weight.shape:
        return False
    master, weight = np.atleast_1d(master, weight)
    step = max(1, _AT_ONCE // max(1, master[:1].size))
    return all(
        same_bits(master[n : n + step].astype(weight.dtype), weight[n : n + step])
        for n in range(0, len(master), step)
    )


def with_matching_masters(table: Mapping[Key, SourceTensor]) -> dict[Key, SourceTensor]:
    """The table, whose masters are refused when they are read and are not their weight's.

    Megatron copies masters into weights after every step, so another weight is from another save.
    """
    checked = dict(table)
    for key, master in table.items():
        weight = table.get(Key(key.parameter, State.WEIGHT))
        if key.state is State.MASTER and weight is not None:
            checked[key] = replace(master, load=partial(_matching, key, master, weight))
    return checked


def _matching(key: Key, master: SourceTensor, weight: SourceTensor) -> Array:
    value = master.load()
    if not rounds_to(value, weight.load()):
        raise CheckpointError(
            f"{key} ({', '.join(master.origin)}) is not the float32 form of its weight "
            f"({', '.join(weight.origin)}): a file is of another iteration or another rank, or "
            "damaged; copy the checkpoint again"
        )
    return value
