"""Megatron's gradient clipping, on the gradients of the source weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp


def global_norm(leaves: Sequence[jax.Array], folds: Sequence[float]) -> jax.Array:
    """L2 norm over all leaves, each multiplied by its ``update_scale``; at least float32."""
    squares = [jnp.zeros([], jnp.float32)]
    for leaf, fold in zip(leaves, folds, strict=True):
        wide = leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32))
        squares.append(fold**2 * jnp.sum(jnp.real(wide * wide.conj())))
    return jnp.sqrt(sum(squares[1:], squares[0]))


def clip_factor(norm: jax.Array, clip_grad: Any) -> jax.Array:
    """``min(1, clip_grad / (norm + 1e-6))``, Megatron's ``--clip-grad``."""
    return jnp.minimum(1.0, clip_grad / (norm + 1e-6))
