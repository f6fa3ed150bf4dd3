"""Newton-Schulz over few stacks of matrices instead of over many leaves.

Fewer and larger matrix products, and far less to compile. Tall matrices travel transposed,
f(X^T) = f(X)^T, so that one stack serves a shape and its transpose. Nothing waits for the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from .one_cpu import on_one_cpu
from .packing import Plan, Unit, concatenate, pack, split, unpack
from .sharding import StackLayout, explicit_sharding, gathered, placed_like, stack_layout

# A function of matrices [..., rows, columns] that treats each of them alone.
StackFunction = Callable[[Any], Any]


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
    mesh: Any = None,
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
      mesh: where stacks live of whose leaves no sharding is known.

    Returns:
      The leaves with their matrices mapped, in their own dtypes.
    """
    shardings = [None] * len(leaves) if shardings is None else shardings
    known = [s or explicit_sharding(x) for s, x in zip(shardings, leaves, strict=True)]
    whole_leaves = [gathered(leaf) for leaf in leaves]
    packed = [pack(unit, whole_leaves, plan.views) for unit in plan.units]
    wide = [_wide(unit, matrices) for unit, matrices in zip(plan.units, packed, strict=True)]
    mapped: list[Any] = [None] * len(wide)
    for group in _groups(wide, batch_update):
        units = [plan.units[index] for index in group]
        layout = stack_layout([known[unit.members[0].leaf] for unit in units], mesh)
        on_devices = _on_devices(prepare, function, layout, batch_update_size, use_all_to_all)
        matrices = [wide[index] for index in group]
        if layout is None:
            parts = jax.lax.platform_dependent(
                *matrices, cpu=on_one_cpu(prepare, function), default=on_devices
            )
        else:
            parts = on_devices(*matrices)
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


def _on_devices(
    prepare: StackFunction,
    function: StackFunction,
    layout: StackLayout | None,
    size: int,
    use_all_to_all: bool,
) -> Callable[..., list[Any]]:
    """Arrays of equally shaped matrices mapped as one stack, over a mesh where there is one."""

    def both(stack: Any) -> Any:
        return function(prepare(stack))

    def run(*arrays: jax.Array) -> list[Any]:
        stack = concatenate(arrays, axis=0)
        if layout is None:
            result = _in_chunks(both, stack, size)
        else:
            whole = layout.distribute(stack, use_all_to_all)
            result = _in_chunks(both, whole, layout.round_up(size), layout.constrain)
            result = gathered(result)[: stack.shape[0]]
        return split(result, [array.shape[0] for array in arrays], axis=0)

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
