"""The matrices inside one leaf: axes, components, and the way back.

Everything but the two array functions works on static shapes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from .dimension_numbers import MuonDimensionNumbers


@dataclass(frozen=True)
class Part:
    """One component of a leaf: columns ``start:stop`` of its last output axis."""

    start: int
    stop: int
    fan_out: int


@dataclass(frozen=True)
class MatrixView:
    """A leaf of ``shape`` as ``batch`` matrices of ``fan_in`` rows, for each of its parts.

    The axes are non-negative; each group is in the order in which it is flattened.
    """

    shape: tuple[int, ...]
    batch_axes: tuple[int, ...]
    reduction_axes: tuple[int, ...]
    output_axes: tuple[int, ...]
    parts: tuple[Part, ...]

    def sizes(self, axes: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(self.shape[axis] for axis in axes)

    @property
    def batch_shape(self) -> tuple[int, ...]:
        return self.sizes(self.batch_axes)

    @property
    def order(self) -> tuple[int, ...]:
        return self.batch_axes + self.reduction_axes + self.output_axes

    @property
    def fan_in(self) -> int:
        return math.prod(self.sizes(self.reduction_axes))


def matrix_view(shape: Sequence[int], dims: MuonDimensionNumbers) -> MatrixView:
    """Resolve dimension numbers for a leaf.

    Raises:
      ValueError: rank below two, an axis out of range, named twice or on both sides, or component
        sizes that do not add up to the last output axis.
    """
    shape = tuple(shape)
    if len(shape) < 2:
        raise ValueError(f"Muon needs parameters of rank >= 2, got shape {shape}")
    reduction = _axes(dims.reduction_axis, shape, dims)
    output = _axes(dims.output_axis, shape, dims)
    if len({*reduction, *output}) < len(reduction) + len(output):
        raise ValueError(
            f"reduction axes {reduction} and output axes {output} must be disjoint and without "
            f"repetition: {dims} for shape {shape}"
        )
    batch = tuple(axis for axis in range(len(shape)) if axis not in (*reduction, *output))
    return MatrixView(shape, batch, reduction, output, _parts(shape, output, dims))


def _axes(
    axes: Sequence[int] | int, shape: tuple[int, ...], dims: MuonDimensionNumbers
) -> tuple[int, ...]:
    axes = (axes,) if isinstance(axes, int) else tuple(axes)
    rank = len(shape)
    if not axes or any(not -rank <= axis < rank for axis in axes):
        raise ValueError(f"axes {axes} do not fit shape {shape}: {dims}")
    return tuple(axis % rank for axis in axes)


def _parts(
    shape: tuple[int, ...], output: tuple[int, ...], dims: MuonDimensionNumbers
) -> tuple[Part, ...]:
    last = shape[output[-1]]
    sizes = tuple(dims.component_splits) or (last,)
    if sum(sizes) != last or min(sizes) < 0:
        raise ValueError(
            f"component_splits {sizes} must add up to {last}, the size of axis {output[-1]} of "
            f"shape {shape}"
        )
    if dims.component_splits and dims.join is not None:
        raise ValueError(f"component_splits and join exclude each other: {dims}")
    others = math.prod(shape[axis] for axis in output[:-1])
    ends = tuple(itertools.accumulate(sizes))
    starts = (0, *ends[:-1])
    return tuple(Part(a, b, (b - a) * others) for a, b in zip(starts, ends, strict=True))


def to_matrices(x: jax.Array, view: MatrixView, index: int) -> jax.Array:
    """Part ``index`` as [batch, fan_in, fan_out]."""
    part = view.parts[index]
    if len(view.parts) > 1:
        x = jax.lax.slice_in_dim(x, part.start, part.stop, axis=view.output_axes[-1])
    return x.transpose(view.order).reshape(math.prod(view.batch_shape), view.fan_in, part.fan_out)


def from_matrices(parts: Sequence[jax.Array], view: MatrixView) -> jax.Array:
    """The leaf back from the matrices of each of its parts, in order."""
    pieces = []
    for x, part in zip(parts, view.parts, strict=True):
        shape = list(view.shape)
        shape[view.output_axes[-1]] = part.stop - part.start
        x = x.reshape([shape[axis] for axis in view.order])
        pieces.append(x.transpose(_inverse(view.order)))
    if len(pieces) == 1:
        return pieces[0]
    return jnp.concatenate(pieces, axis=view.output_axes[-1])


def _inverse(order: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted(range(len(order)), key=order.__getitem__))


def per_part(view: MatrixView, values: Sequence[Any]) -> Any:
    """One scalar per part as something that broadcasts against the leaf: a scalar if it is one."""
    if all(value is values[0] for value in values):
        return values[0]
    shape = [1] * len(view.shape)
    columns = []
    for value, part in zip(values, view.parts, strict=True):
        shape[view.output_axes[-1]] = part.stop - part.start
        columns.append(jnp.broadcast_to(value, shape))
    return jnp.concatenate(columns, axis=view.output_axes[-1])
