"""A rank's part of a tensor, and where it lies: to be read, or to be overwritten."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

from converters.megatron.archives import Stored
from converters.source import Array, SourceTensor


@dataclass(frozen=True)
class Kept(SourceTensor):
    """A tensor of one rank.

    Attributes:
      stored: the tensor in the file that it is, or is a part of.
      first: its first element there, counted through the flattened tensor.
    """

    stored: Stored
    first: int


def kept(stored: Stored, origin: str) -> Kept:
    """The whole of a saved tensor."""
    return Kept(stored.shape, stored.dtype, (origin,), stored.read, stored, 0)


def part(stored: Stored, first: int, shape: tuple[int, ...], origin: str) -> Kept:
    """Consecutive elements of a flat one."""
    return Kept(shape, stored.dtype, (origin,), partial(_part, stored, first, shape), stored, first)


def _part(stored: Stored, first: int, shape: tuple[int, ...]) -> Array:
    return stored.read()[first : first + math.prod(shape)].reshape(shape)
