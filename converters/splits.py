"""How one source tensor holds several targets: whole, in halves, or in groups of attention rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from converters.errors import CheckpointError

Array = NDArray[Any]
Shape = tuple[int, ...]


class Split:
    """One array to several; subclasses are frozen dataclasses of plain sizes."""

    def shapes(self, source: Shape) -> tuple[Shape, ...]:
        """Shapes of the parts. Raises CheckpointError if the source does not fit."""
        raise NotImplementedError

    def part(self, source: Array, index: int) -> Array:
        raise NotImplementedError

    def join(self, parts: Sequence[Array]) -> Array:
        raise NotImplementedError

    def describe(self, index: int) -> str:
        raise NotImplementedError


@dataclass(frozen=True)
class Whole(Split):
    """One part."""

    def shapes(self, source: Shape) -> tuple[Shape, ...]:
        return (source,)

    def part(self, source: Array, index: int) -> Array:
        return source

    def join(self, parts: Sequence[Array]) -> Array:
        return parts[0]

    def describe(self, index: int) -> str:
        return "whole"


@dataclass(frozen=True)
class Halves(Split):
    """Two parts, one after the other along ``axis`` (negative): gate and up of linear_fc1."""

    axis: int

    def shapes(self, source: Shape) -> tuple[Shape, ...]:
        if len(source) < -self.axis or source[self.axis] % 2:
            raise CheckpointError(
                f"shape {list(source)}: expected gate and up, two halves along axis {self.axis}"
            )
        half = list(source)
        half[self.axis] //= 2
        return (tuple(half),) * 2

    def part(self, source: Array, index: int) -> Array:
        half = source.shape[self.axis] // 2
        span: list[slice] = [slice(None)] * source.ndim
        span[self.axis] = slice(index * half, (index + 1) * half)
        return source[tuple(span)]

    def join(self, parts: Sequence[Array]) -> Array:
        return np.concatenate(parts, axis=self.axis)

    def describe(self, index: int) -> str:
        return ("first", "second")[index] + " half"


@dataclass(frozen=True)
class GroupedHeads(Split):
    """Rows of linear_qkv, per query group: its queries, one key, one value.

    Parts are ``[heads, head_dim, ...]``: query, key, value.
    """

    groups: int
    queries_per_group: int
    head_dim: int

    @property
    def rows(self) -> int:
        return self.groups * (self.queries_per_group + 2) * self.head_dim

    def shapes(self, source: Shape) -> tuple[Shape, ...]:
        if not source or source[0] != self.rows:
            raise CheckpointError(
                f"shape {list(source)}: expected {self.rows} rows: {self.groups} groups of "
                f"{self.queries_per_group} queries, a key and a value of {self.head_dim}"
            )
        heads = (self.groups * self.queries_per_group, self.groups, self.groups)
        return tuple((count, self.head_dim, *source[1:]) for count in heads)

    def part(self, source: Array, index: int) -> Array:
        grouped = self._grouped(source)
        r = self.queries_per_group
        if index:
            return grouped[:, r + index - 1]
        return grouped[:, :r].reshape(-1, self.head_dim, *source.shape[1:])

    def join(self, parts: Sequence[Array]) -> Array:
        query, key, value = parts
        rest = query.shape[2:]
        grouped = query.reshape(self.groups, self.queries_per_group, self.head_dim, *rest)
        return np.concatenate([grouped, key[:, None], value[:, None]], axis=1).reshape(
            self.rows, *rest
        )

    def _grouped(self, source: Array) -> Array:
        shape = (self.groups, self.queries_per_group + 2, self.head_dim, *source.shape[1:])
        return source.reshape(shape)

    def describe(self, index: int) -> str:
        return ("query", "key", "value")[index] + " rows"
