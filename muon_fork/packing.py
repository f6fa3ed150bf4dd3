"""Leaves as units of equally shaped matrices, split into components or joined, and back.

The plan depends on static shapes only; ``stacks`` runs Newton-Schulz over the units.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from .dimension_numbers import MuonDimensionNumbers
from .matrix_view import MatrixView, from_matrices, matrix_view, per_part, to_matrices


@dataclass(frozen=True)
class Member:
    """Part ``part`` of leaf ``leaf``, and its size along the output side."""

    leaf: int
    part: int
    fan_out: int


@dataclass(frozen=True)
class Unit:
    """``batch`` matrices ``fan_in`` x ``fan_out``: a part of a leaf, or several leaves joined."""

    members: tuple[Member, ...]
    batch: int
    fan_in: int
    fan_out: int


@dataclass(frozen=True)
class Plan:
    """Every leaf's view and the units that Newton-Schulz will see, in tree order."""

    views: tuple[MatrixView, ...]
    units: tuple[Unit, ...]


def make_plan(
    shapes: Sequence[tuple[int, ...]], dimension_numbers: Sequence[MuonDimensionNumbers]
) -> Plan:
    """Plan for leaves of these shapes.

    Raises:
      ValueError: dimension numbers that do not fit a shape, or joined leaves whose fan-in or batch
        shapes differ.
    """
    views = tuple(
        matrix_view(shape, dims) for shape, dims in zip(shapes, dimension_numbers, strict=True)
    )
    names = [dims.join for dims in dimension_numbers]
    joined: dict[str, list[int]] = {}
    for leaf, name in enumerate(names):
        if name is not None:
            joined.setdefault(name, []).append(leaf)
    units: list[Unit] = []
    for leaf, name in enumerate(names):
        if name is None:
            units.extend(_units_of_leaf(leaf, views[leaf]))
        elif joined[name][0] == leaf:
            units.append(_joined_unit(name, joined[name], views))
    return Plan(views, tuple(units))


def _units_of_leaf(leaf: int, view: MatrixView) -> list[Unit]:
    batch = math.prod(view.batch_shape)
    return [
        Unit((Member(leaf, index, part.fan_out),), batch, view.fan_in, part.fan_out)
        for index, part in enumerate(view.parts)
    ]


def _joined_unit(name: str, leaves: Sequence[int], views: Sequence[MatrixView]) -> Unit:
    first = views[leaves[0]]
    for view in (views[leaf] for leaf in leaves[1:]):
        if (view.fan_in, view.batch_shape) != (first.fan_in, first.batch_shape):
            raise ValueError(
                f"leaves joined as {name!r} disagree: shapes {first.shape} and {view.shape} have "
                f"fan-in {first.fan_in} and {view.fan_in}, batch {first.batch_shape} and "
                f"{view.batch_shape}"
            )
    members = tuple(Member(leaf, 0, views[leaf].parts[0].fan_out) for leaf in leaves)
    fan_out = sum(member.fan_out for member in members)
    return Unit(members, math.prod(first.batch_shape), first.fan_in, fan_out)


def scale_per_leaf(plan: Plan, factor: Callable[[int, int], Any]) -> list[Any]:
    """``factor(fan_in, fan_out)`` of each leaf's matrices, broadcastable to the leaf."""
    values: list[list[Any]] = [[None] * len(view.parts) for view in plan.views]
    known: dict[tuple[int, int], Any] = {}
    for unit in plan.units:
        fans = (unit.fan_in, unit.fan_out)
        if fans not in known:
            known[fans] = factor(*fans)
        for member in unit.members:
            values[member.leaf][member.part] = known[fans]
    return [per_part(view, row) for view, row in zip(plan.views, values, strict=True)]


def pack(unit: Unit, leaves: Sequence[jax.Array], views: Sequence[MatrixView]) -> jax.Array:
    """The unit's matrices, [batch, fan_in, fan_out]; ``leaves`` in the order of ``views``."""
    parts = tuple((views[member.leaf], member.part) for member in unit.members)
    packed: jax.Array = _packed([leaves[member.leaf] for member in unit.members], parts)
    return packed


# Under jit units of equal shape are traced once.
@functools.partial(jax.jit, static_argnames="parts")
def _packed(leaves: Sequence[jax.Array], parts: tuple[tuple[MatrixView, int], ...]) -> jax.Array:
    pairs = zip(leaves, parts, strict=True)
    return concatenate([to_matrices(leaf, *part) for leaf, part in pairs], axis=2)


def unpack(mapped: Sequence[jax.Array], plan: Plan) -> list[jax.Array]:
    """The leaves back from the matrices of each unit, in the order of ``plan.units``."""
    parts: list[list[Any]] = [[None] * len(view.parts) for view in plan.views]
    for unit, array in zip(plan.units, mapped, strict=True):
        widths = [member.fan_out for member in unit.members]
        for member, piece in zip(unit.members, split(array, widths, axis=2), strict=True):
            parts[member.leaf][member.part] = piece
    return [_unpacked(row, view) for row, view in zip(parts, plan.views, strict=True)]


_unpacked = jax.jit(from_matrices, static_argnames="view")


def concatenate(arrays: Sequence[jax.Array], axis: int) -> jax.Array:
    return arrays[0] if len(arrays) == 1 else jnp.concatenate(arrays, axis=axis)


def split(array: jax.Array, sizes: Sequence[int], axis: int) -> list[jax.Array]:
    """Consecutive pieces of these sizes."""
    if len(sizes) == 1:
        return [array]
    ends = itertools.accumulate(sizes)
    return [
        jax.lax.slice_in_dim(array, end - size, end, axis=axis)
        for size, end in zip(sizes, ends, strict=True)
    ]
