"""Newton-Schulz on one CPU: a matrix fits the cache, a stack of them does not.

Everything here is about the time that XLA's CPU backend takes to compile and to run.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .packing import concatenate, split

# Matrices that may be worked on at the same time; more of them only take longer to compile.
_SIDE_BY_SIDE = 2

# JAX leaves it untyped.
barrier: Any = jax.lax.optimization_barrier


def on_one_cpu(
    prepare: Callable[[Any], Any], function: Callable[[Any], Any]
) -> Callable[..., list[Any]]:
    """A function of arrays [n, rows, columns] that maps each of their matrices alone.

    Args:
      prepare: maps matrices to matrices of the same shape.
      function: maps one matrix, as ``prepare`` left it.
    """

    def run(*arrays: jax.Array) -> list[Any]:
        # Each array in its own layout: the sum of a norm then has optax's order, to the bit.
        once = jax.jit(prepare)
        stack = concatenate([once(array) for array in arrays], axis=0)
        return _unstack(_each(function, stack), [array.shape[0] for array in arrays])

    return run


def _each(function: Callable[[Any], Any], stack: jax.Array) -> Any:
    """``function`` over the matrices of a stack, a few at a time."""
    total = stack.shape[0]
    if total == 0:
        return stack
    if total == 1:
        return function(stack[0])[None]

    def replace(carry: Any) -> Any:
        count, whole = carry
        # An unsigned index spares the kernels that would wrap a negative one.
        index = count.astype(jnp.uint32)
        some = jax.lax.dynamic_slice_in_dim(whole, index, _SIDE_BY_SIDE)
        done = jnp.stack([function(matrix) for matrix in some])
        return count + _SIDE_BY_SIDE, jax.lax.dynamic_update_slice_in_dim(whole, done, index, 0)

    full = total // _SIDE_BY_SIDE * _SIDE_BY_SIDE
    start = (jnp.int32(0), stack)
    _, stack = jax.lax.while_loop(lambda carry: carry[0] < full, replace, start)
    for index in range(full, total):
        stack = jax.lax.dynamic_update_index_in_dim(stack, function(stack[index]), index, 0)
    return stack


def _unstack(stack: jax.Array, sizes: Sequence[int]) -> list[Any]:
    """Consecutive pieces of these sizes along the first axis."""
    if len(sizes) == 1:
        return split(stack, sizes, axis=0)
    # XLA's CPU backend compiles equal kernels once. An offset written into the kernel makes each of
    # them different, and hundreds of them take longer to compile than all the rest; an offset that
    # arrives as an operand does not. What XLA can compute, a scalar, a uniform or an arithmetic
    # sequence, would be written in again: hence the triple.
    starts = itertools.accumulate(sizes[:-1], initial=0)
    triples: Any = [np.asarray([start, start + 1, 0], np.uint32) for start in starts]
    pairs = zip(barrier(triples), sizes, strict=True)
    return [_piece(stack, triple, size) for triple, size in pairs]


@functools.partial(jax.jit, static_argnames="size")
def _piece(stack: jax.Array, place: jax.Array, size: int) -> jax.Array:
    return jax.lax.dynamic_slice_in_dim(stack, place[0], size, axis=0)
