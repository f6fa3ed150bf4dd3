"""What happens to one array on its way from Megatron to MaxText, and back.

Steps have a class, which says what they do to the optimizer's tensors:

    P    a permutation of entries: bit-exact, the same for weights, momentum and moments
    S    a stored scale, W_target = c W_source: weights only
    O    a stored offset, W_target = W_source + 1: weights only
    PAD  rows of the vocabulary that the target does not keep: every state

The migrated optimizer unfolds stored scales itself and keeps momentum and moments of the source's
weights, so S and O leave these alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from converters.errors import CheckpointError
from converters.splits import Array, Shape

Kind = Literal["P", "S", "O", "PAD"]

# Elements that a step with a wider intermediate dtype takes at a time.
_BLOCK = 1 << 20


class Step:
    """One array to one array; subclasses are frozen dataclasses of plain sizes."""

    kind: ClassVar[Kind] = "P"

    def shape(self, source: Shape) -> Shape:
        """Shape of ``apply``'s result. Raises CheckpointError if the source does not fit."""
        raise NotImplementedError

    def apply(self, source: Array) -> Array:
        raise NotImplementedError

    def undo(self, target: Array, like: Array | None) -> Array:
        """The source; ``like`` is a source whose unchanged entries are to come back exactly."""
        raise NotImplementedError


@dataclass(frozen=True)
class Transpose(Step):
    """Swap the last two axes."""

    def shape(self, source: Shape) -> Shape:
        require(len(source) >= 2, source, "a matrix")
        return (*source[:-2], source[-1], source[-2])

    def apply(self, source: Array) -> Array:
        return np.swapaxes(source, -1, -2)

    def undo(self, target: Array, like: Array | None) -> Array:
        return np.swapaxes(target, -1, -2)


@dataclass(frozen=True)
class Axes(Step):
    """Reorder all axes, as ``numpy.transpose``."""

    order: tuple[int, ...]

    def shape(self, source: Shape) -> Shape:
        require(len(source) == len(self.order), source, f"{len(self.order)} axes")
        return tuple(source[axis] for axis in self.order)

    def apply(self, source: Array) -> Array:
        return source.transpose(self.order)

    def undo(self, target: Array, like: Array | None) -> Array:
        return target.transpose(np.argsort(self.order))


@dataclass(frozen=True)
class Heads(Step):
    """``[heads * size, ...]`` as ``[heads, size, ...]``."""

    heads: int

    def shape(self, source: Shape) -> Shape:
        rows = source[0] if source else 0
        require(rows % self.heads == 0, source, f"rows in {self.heads} heads")
        return (self.heads, rows // self.heads, *source[1:])

    def apply(self, source: Array) -> Array:
        return source.reshape(self.shape(source.shape))

    def undo(self, target: Array, like: Array | None) -> Array:
        return target.reshape(-1, *target.shape[2:])


@dataclass(frozen=True)
class Flip(Step):
    """Reverse one axis."""

    axis: int

    def shape(self, source: Shape) -> Shape:
        return source

    def apply(self, source: Array) -> Array:
        return np.flip(source, self.axis)

    def undo(self, target: Array, like: Array | None) -> Array:
        return np.flip(target, self.axis)


@dataclass(frozen=True)
class RopeOrder(Step):
    """Rotary channels ``start:`` of one axis, from halves to interleaved pairs or back.

    Halves rotate channel i with i + n/2, pairs 2i with 2i + 1.
    """

    axis: int
    to: Literal["pairs", "halves"]
    start: int = 0

    def shape(self, source: Shape) -> Shape:
        require(len(source) > self.axis, source, f"an axis {self.axis}")
        channels = source[self.axis] - self.start
        require(channels > 0 and channels % 2 == 0, source, "an even number of rotary channels")
        return source

    def apply(self, source: Array) -> Array:
        return self._reordered(source, self.to)

    def undo(self, target: Array, like: Array | None) -> Array:
        return self._reordered(target, "halves" if self.to == "pairs" else "pairs")

    def _reordered(self, array: Array, to: str) -> Array:
        size = array.shape[self.axis]
        channels = np.arange(self.start, size).reshape((2, -1) if to == "pairs" else (-1, 2))
        order = np.concatenate([np.arange(self.start), channels.T.reshape(-1)])
        return np.take(array, order, axis=self.axis)


@dataclass(frozen=True)
class Rows(Step):
    """The first ``count`` rows: the vocabulary without its padding."""

    kind: ClassVar[Kind] = "PAD"
    count: int

    def shape(self, source: Shape) -> Shape:
        require(bool(source) and source[0] >= self.count, source, f"at least {self.count} rows")
        return (self.count, *source[1:])

    def apply(self, source: Array) -> Array:
        return source[: self.count]

    def undo(self, target: Array, like: Array | None) -> Array:
        """Rows that were dropped come from ``like``; without it they are gone."""
        return target if like is None else np.concatenate([target, like[self.count :]])


@dataclass(frozen=True)
class Scale(Step):
    """Times ``factor``, rounded once."""

    kind: ClassVar[Kind] = "S"
    factor: float

    def shape(self, source: Shape) -> Shape:
        return source

    def apply(self, source: Array) -> Array:
        return _rounded(source, lambda block: block * self.factor)

    def undo(self, target: Array, like: Array | None) -> Array:
        return _kept(_rounded(target, lambda block: block / self.factor), target, like, self.apply)


@dataclass(frozen=True)
class Offset(Step):
    """Plus ``value``, rounded once."""

    kind: ClassVar[Kind] = "O"
    value: float

    def shape(self, source: Shape) -> Shape:
        return source

    def apply(self, source: Array) -> Array:
        return _rounded(source, lambda block: block + self.value)

    def undo(self, target: Array, like: Array | None) -> Array:
        return _kept(_rounded(target, lambda block: block - self.value), target, like, self.apply)


def _rounded(array: Array, function: Callable[[Array], Array]) -> Array:
    """``function`` in float64, rounded to float32 (float64 stays), a block at a time."""
    wide = array.dtype == np.float64
    result = np.empty(array.shape, np.float64 if wide else np.float32)
    if not array.ndim:
        result[...] = function(array.astype(np.float64))
        return result
    rows = max(1, _BLOCK // max(1, array[0].size)) if len(array) else 1
    for start in range(0, len(array), rows):
        block = array[start : start + rows].astype(np.float64)
        result[start : start + rows] = function(block)
    return result


def _kept(
    quotient: Array, target: Array, like: Array | None, apply: Callable[[Array], Array]
) -> Array:
    """``like`` where it leads to the target's bits, else the quotient in like's dtype."""
    if like is None:
        return quotient
    forward = apply(like)
    same = forward.astype(target.dtype) == target
    # Zeros of both signs are equal, and are told apart by their bits.
    same &= np.signbit(forward) == np.signbit(target)
    return np.where(same, like, quotient.astype(like.dtype))


def require(fits: bool, shape: Shape, expected: str) -> None:
    if not fits:
        raise CheckpointError(f"shape {list(shape)}: expected {expected}")
