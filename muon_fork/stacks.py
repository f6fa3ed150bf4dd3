"""Newton-Schulz over few stacks of matrices instead of over many leaves.

Fewer and larger matrix products, and far less to compile. Tall matrices travel transposed,
f(X^T) = f(X)^T, so that one stack serves a shape and its transpose. Nothing waits for the device.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .packing import Plan, Unit, concatenate, pack, split, unpack
from .sharding import StackLayout, explicit_sharding, gathered, placed_like, stack_layout

# A function of matrices [..., rows, columns] that treats each of them alone.
StackFunction = Callable[[Any], Any]
Run = Callable[[jax.Array, StackLayout | None], Any]


def map_matrices(
    prepare: StackFunction,
    function: StackFunction,
    leaves: Sequence[jax.Array],
    plan: Plan,
    *,
    batch_update: bool = True,
    batch_update_size: int = 0,
    shardings: Sequence[Any] | None = None,
    use_all_to_all: bool = False,
) -> list[jax.Array]:
    """Apply ``function`` to every matrix of every leaf, after ``prepare``.

    Args:
      prepare: maps matrices to matrices of the same shape, in any dtype.
      function: the same; it only sees matrices with rows <= columns.
      leaves: arrays in the order of ``plan.views``.
      plan: from ``make_plan``.
      batch_update: stack equally shaped matrices of all leaves; otherwise one call per unit.
      batch_update_size: matrices per call of ``function``, at most; 0 is no limit. One CPU takes
        one matrix at a time.
      shardings: ``NamedSharding`` or None per leaf; None if no leaf's is known.
      use_all_to_all: see ``sharding.distribute``.

    Returns:
      The leaves with their matrices mapped, in their own dtypes.
    """
    shardings = [None] * len(leaves) if shardings is None else shardings
    known = [s or explicit_sharding(x) for s, x in zip(shardings, leaves, strict=True)]
    whole_leaves = [gathered(leaf) for leaf in leaves]
    packed = [pack(unit, whole_leaves, plan.views) for unit in plan.units]
    wide = [_wide(unit, matrices) for unit, matrices in zip(plan.units, packed, strict=True)]
    if stack_layout(known) is None and jax.default_backend() == "cpu":
        # Each leaf in its own layout: the sum of a norm then has optax's order, to the bit.
        once = jax.jit(prepare)
        wide = [once(matrices) for matrices in wide]
        run = _one_by_one(function)
    else:
        run = _spread_or_chunked(lambda x: function(prepare(x)), batch_update_size, use_all_to_all)
    mapped: list[Any] = [None] * len(wide)
    for group in _groups(wide, batch_update):
        units = [plan.units[index] for index in group]
        stack = concatenate([wide[index] for index in group], axis=0)
        result = run(stack, stack_layout([known[unit.members[0].leaf] for unit in units]))
        parts = _unstack(result, [unit.batch for unit in units])
        for index, unit, part in zip(group, units, parts, strict=True):
            mapped[index] = _wide(unit, part)
    pairs = zip(unpack(mapped, plan), leaves, strict=True)
    return [placed_like(new.astype(old.dtype), old) for new, old in pairs]


def _wide(unit: Unit, matrices: jax.Array) -> jax.Array:
    """Tall matrices transposed, on the way in and on the way out."""
    return matrices if unit.fan_in <= unit.fan_out else jnp.swapaxes(matrices, 1, 2)


def _groups(stacks: Sequence[jax.Array], batch_update: bool) -> list[list[int]]:
    """Indices of those that share a stack."""
    if not batch_update:
        return [[index] for index in range(len(stacks))]
    groups: dict[Any, list[int]] = {}
    for index, matrices in enumerate(stacks):
        groups.setdefault((matrices.shape[1:], matrices.dtype), []).append(index)
    return list(groups.values())


def _one_by_one(function: StackFunction) -> Run:
    """``function`` over each matrix alone: on a CPU a matrix fits the cache, a stack does not."""

    def replace(carry: Any) -> Any:
        count, whole = carry
        # An unsigned index spares the kernels that would wrap a negative one.
        index = count.astype(jnp.uint32)
        matrix = jax.lax.dynamic_index_in_dim(whole, index, keepdims=False)
        return count + 1, jax.lax.dynamic_update_index_in_dim(whole, function(matrix), index, 0)

    def run(stack: jax.Array, _layout: StackLayout | None) -> Any:
        if stack.shape[0] == 1:
            return function(stack[0])[None]
        start = (jnp.int32(0), stack)
        return jax.lax.while_loop(lambda carry: carry[0] < stack.shape[0], replace, start)[1]

    return run


def _spread_or_chunked(function: StackFunction, size: int, use_all_to_all: bool) -> Run:
    """``function`` over a stack: spread over a mesh where there is one, in chunks if wanted."""

    def run(stack: jax.Array, layout: StackLayout | None) -> Any:
        if layout is None:
            return _in_chunks(function, stack, size)
        whole = layout.distribute(stack, use_all_to_all)
        result = _in_chunks(function, whole, layout.round_up(size), layout.constrain)
        return gathered(result)[: stack.shape[0]]

    return run


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


_barrier: Any = jax.lax.optimization_barrier


def _unstack(stack: jax.Array, sizes: Sequence[int]) -> list[Any]:
    """Consecutive pieces of these sizes along the first axis."""
    if len(sizes) == 1 or jax.default_backend() != "cpu":
        return split(stack, sizes, axis=0)
    # XLA's CPU backend compiles equal kernels once. An offset written into the kernel makes each of
    # them different, and hundreds of them take longer to compile than all the rest; an offset that
    # arrives as an operand does not. What XLA can compute, a scalar, a uniform or an arithmetic
    # sequence, would be written in again: hence the triple.
    starts = itertools.accumulate(sizes[:-1], initial=0)
    triples: Any = [np.asarray([start, start + 1, 0], np.uint32) for start in starts]
    pairs = zip(_barrier(triples), sizes, strict=True)
    return [_piece(stack, triple, size) for triple, size in pairs]


@functools.partial(jax.jit, static_argnames="size")
def _piece(stack: jax.Array, place: jax.Array, size: int) -> jax.Array:
    return jax.lax.dynamic_slice_in_dim(stack, place[0], size, axis=0)
