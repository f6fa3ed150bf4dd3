"""Leaves to few stacks of equally shaped matrices, and back.

Newton-Schulz runs once per stack instead of once per leaf: fewer and larger matrix products, and
far less to compile. The plan depends on static shapes only; nothing here waits for the device.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .dimension_numbers import MuonDimensionNumbers
from .matrix_view import MatrixView, from_matrices, matrix_view, per_part, to_matrices
from .sharding import explicit_sharding, gathered, placed_like, stack_layout

# A function of a stack [k, rows, columns] that treats each matrix alone.
StackFunction = Callable[[Any], Any]


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


def map_matrices(
    function: StackFunction,
    leaves: Sequence[jax.Array],
    plan: Plan,
    *,
    batch_update: bool = True,
    batch_update_size: int = 0,
    shardings: Sequence[Any] | None = None,
    use_all_to_all: bool = False,
) -> list[jax.Array]:
    """Apply ``function`` to every matrix of every leaf.

    Args:
      function: maps a stack [k, fan_in, fan_out] to one of the same shape.
      leaves: arrays in the order of ``plan.views``.
      plan: from ``make_plan``.
      batch_update: stack equally shaped matrices of all leaves; otherwise one call per unit.
      batch_update_size: matrices per call of ``function``, at most; 0 is no limit. One CPU
        takes one matrix at a time.
      shardings: ``NamedSharding`` or None per leaf; None if no leaf's is known.
      use_all_to_all: see ``sharding.distribute``.

    Returns:
      The leaves with their matrices mapped, in their own dtypes.
    """
    shardings = [None] * len(leaves) if shardings is None else shardings
    known = [s or explicit_sharding(x) for s, x in zip(shardings, leaves, strict=True)]
    whole_leaves = [gathered(leaf) for leaf in leaves]
    packed = [_pack(unit, whole_leaves, plan.views) for unit in plan.units]
    mapped: list[Any] = [None] * len(packed)
    for group in _groups(plan.units, packed, batch_update):
        units = [plan.units[index] for index in group]
        stack = _concatenate([packed[index] for index in group], axis=0)
        layout = stack_layout([known[unit.members[0].leaf] for unit in units])
        if layout is None and jax.default_backend() == "cpu":
            result = _one_by_one(function, stack)
        elif layout is None:
            result = _in_chunks(function, stack, batch_update_size)
        else:
            whole = layout.distribute(stack, use_all_to_all)
            size = layout.round_up(batch_update_size)
            result = _in_chunks(function, whole, size, layout.constrain)
            result = gathered(result)[: stack.shape[0]]
        for index, part in zip(group, _unstack(result, [u.batch for u in units]), strict=True):
            mapped[index] = part
    outputs = _unpack(mapped, plan)
    pairs = zip(outputs, leaves, strict=True)
    return [placed_like(new.astype(old.dtype), old) for new, old in pairs]


def _pack(unit: Unit, leaves: Sequence[jax.Array], views: Sequence[MatrixView]) -> jax.Array:
    parts = [
        to_matrices(leaves[member.leaf], views[member.leaf], member.part) for member in unit.members
    ]
    return _concatenate(parts, axis=2)


def _groups(
    units: Sequence[Unit], packed: Sequence[jax.Array], batch_update: bool
) -> list[list[int]]:
    """Indices of the units that share a stack.

    Tall and wide matrices do not, even where one is the other's transpose: the norm before
    Newton-Schulz would then be summed in another order than optax sums it.
    """
    if not batch_update:
        return [[index] for index in range(len(units))]
    groups: dict[Any, list[int]] = {}
    for index, unit in enumerate(units):
        groups.setdefault((unit.fan_in, unit.fan_out, packed[index].dtype), []).append(index)
    return list(groups.values())


def _one_by_one(function: StackFunction, stack: jax.Array) -> Any:
    """``function`` over each matrix alone: on a CPU a matrix fits the cache, a stack does not."""
    if stack.shape[0] == 1:
        return function(stack[0])[None]

    def replace(index: Any, whole: Any) -> Any:
        matrix = jax.lax.dynamic_index_in_dim(whole, index, keepdims=False)
        return jax.lax.dynamic_update_index_in_dim(whole, function(matrix), index, 0)

    # Unsigned indices spare the kernels that would wrap negative ones.
    return jax.lax.fori_loop(np.uint32(0), np.uint32(stack.shape[0]), replace, stack)


def _in_chunks(
    function: StackFunction, stack: jax.Array, size: int, constrain: StackFunction = lambda x: x
) -> Any:
    """``function`` over at most ``size`` matrices at a time, one after the other."""
    total = stack.shape[0]
    if not 0 < size < total:
        return constrain(function(constrain(stack)))
    stack = gathered(stack)
    full = total // size * size
    chunks = stack[:full].reshape(full // size, size, *stack.shape[1:])
    done = jax.lax.map(lambda chunk: constrain(function(constrain(chunk))), chunks)
    done = gathered(done).reshape(full, *stack.shape[1:])
    if full == total:
        return done
    return jnp.concatenate([done, function(stack[full:])])


def _unpack(mapped: Sequence[jax.Array], plan: Plan) -> list[jax.Array]:
    parts: list[list[Any]] = [[None] * len(view.parts) for view in plan.views]
    for unit, array in zip(plan.units, mapped, strict=True):
        widths = [member.fan_out for member in unit.members]
        for member, piece in zip(unit.members, _split(array, widths, axis=2), strict=True):
            parts[member.leaf][member.part] = piece
    return [from_matrices(row, view) for row, view in zip(parts, plan.views, strict=True)]


def _concatenate(arrays: Sequence[jax.Array], axis: int) -> jax.Array:
    return arrays[0] if len(arrays) == 1 else jnp.concatenate(arrays, axis=axis)


def _split(array: jax.Array, sizes: Sequence[int], axis: int) -> list[jax.Array]:
    ends = itertools.accumulate(sizes)
    return [
        jax.lax.slice_in_dim(array, end - size, end, axis=axis)
        for size, end in zip(sizes, ends, strict=True)
    ]


_barrier: Any = jax.lax.optimization_barrier


def _unstack(stack: jax.Array, sizes: Sequence[int]) -> list[Any]:
    """Consecutive pieces of these sizes along the first axis."""
    if len(sizes) == 1 or jax.default_backend() != "cpu":
        return _split(stack, sizes, axis=0)
    # XLA's CPU backend compiles equal kernels once. An offset written into the kernel makes each of
    # them different, and hundreds of them take longer to compile than all the rest; an offset that
    # arrives as an operand does not. A scalar or uniform constant would be written in again: hence
    # the pair.
    starts = itertools.accumulate(sizes[:-1], initial=0)
    pairs: Any = [np.asarray([start, start + 1], np.uint32) for start in starts]
    offsets = [pair[0] for pair in _barrier(pairs)]
    return [
        jax.lax.dynamic_slice_in_dim(stack, offset, size, axis=0)
        for offset, size in zip(offsets, sizes, strict=True)
    ]
