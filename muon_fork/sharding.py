"""Where the matrices of a stack live on a mesh.

Newton-Schulz needs whole matrices. A stack whose *batch* axis is spread over the devices needs one
redistribution on the way in and one on the way out, and no communication inside the iteration.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec

# JAX leaves these two untyped.
_partition_spec: Any = PartitionSpec
_constrain: Any = jax.lax.with_sharding_constraint
_reshard: Any = jax.sharding.reshard


@dataclass(frozen=True)
class StackLayout:
    """A mesh over all of whose axes the first axis of a stack is spread."""

    mesh: Any
    explicit: bool = False

    @property
    def devices(self) -> int:
        return int(self.mesh.size)

    def round_up(self, size: int) -> int:
        """The least multiple of the device count that is at least ``size``; 0 stays 0."""
        return -(-size // self.devices) * self.devices

    def constrain(self, stack: jax.Array) -> Any:
        return self._spread(stack, 0)

    def distribute(self, stack: jax.Array, use_all_to_all: bool) -> Any:
        """The stack padded with zero matrices to a multiple of the device count, and spread.

        Args:
          stack: shape [k, rows, columns].
          use_all_to_all: collect the stack along an axis of the matrices first, so that the
            redistribution is one all-to-all of it rather than an all-gather per leaf. Needs a side
            that the devices divide; without one this has no effect.
        """
        missing = self.round_up(stack.shape[0]) - stack.shape[0]
        if missing:
            stack = jnp.pad(stack, ((0, missing), (0, 0), (0, 0)))
        if use_all_to_all:
            stack = self._split_sides(stack)
        return self.constrain(stack)

    def _split_sides(self, stack: jax.Array) -> Any:
        for axis in (1, 2):
            if stack.shape[axis] % self.devices == 0:
                return self._spread(stack, axis)
        return stack

    def _spread(self, stack: jax.Array, axis: int) -> Any:
        spec = _partition_spec(*[None] * axis, tuple(self.mesh.axis_names))
        place = _reshard if self.explicit else _constrain
        return place(stack, NamedSharding(self.mesh, spec))


def stack_layout(shardings: Sequence[Any], mesh: Any = None) -> StackLayout | None:
    """The layout for a stack of leaves with these shardings, or else on that mesh.

    None on one device, and where neither is known.
    """
    meshes = [s.mesh for s in shardings if isinstance(s, NamedSharding)]
    if not meshes and mesh is not None:
        meshes = [mesh]
    if not meshes or meshes[0].size == 1:
        return None
    return StackLayout(meshes[0], _is_explicit(meshes[0]))


def _is_explicit(mesh: Any) -> bool:
    return any(kind == AxisType.Explicit for kind in mesh.axis_types)


def explicit_sharding(leaf: jax.Array) -> Any:
    """The sharding in the leaf's type, on a mesh whose axes are explicit; else None."""
    sharding = getattr(jax.typeof(leaf), "sharding", None)
    if not isinstance(sharding, NamedSharding) or not _is_explicit(sharding.mesh):
        return None
    return sharding


def gathered(leaf: jax.Array) -> Any:
    """The leaf whole on every device if its type is sharded: reshapes need that to be said."""
    sharding = explicit_sharding(leaf)
    if sharding is None or not any(sharding.spec):
        return leaf
    return _reshard(leaf, NamedSharding(sharding.mesh, _partition_spec()))


def placed_like(new: jax.Array, old: jax.Array) -> Any:
    """``new`` with the explicit sharding of ``old``, if that has one."""
    sharding = explicit_sharding(old)
    return new if sharding is None else _reshard(new, sharding)
