"""Parameter trees to time: a transformer, and trees of plain matrices that batch well or not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

Axes = tuple[Any, Any]  # reduction axes, output axes
Leaves = dict[str, tuple[tuple[int, ...], Axes]]

MATRIX: Axes = (0, 1)
PER_HEAD: Axes = ((0,), (-1,))


def transformer(layers: int, width: int = 256, heads: int = 8, hidden: int = 704) -> Leaves:
    """Unscanned layers, one matrix per head of query, key and value."""
    projection = ((width, heads, width // heads), PER_HEAD)
    one: Leaves = dict.fromkeys(("query", "key", "value"), projection)
    one["out"] = ((heads, width // heads, width), ((0, 1), (2,)))
    one |= dict.fromkeys(("wi_0", "wi_1"), ((width, hidden), MATRIX))
    one["wo"] = ((hidden, width), MATRIX)
    return {f"layer_{i}/{name}": leaf for i in range(layers) for name, leaf in one.items()}


def distinct(count: int) -> Leaves:
    """No two matrices of one shape: nothing to batch."""
    return {f"m{i}": ((96 + 8 * i, 160 + 8 * i), MATRIX) for i in range(count)}


def huge(size: int) -> Leaves:
    """One large matrix."""
    return {"m": ((size, 2 * size), MATRIX)}


def tiny(count: int) -> Leaves:
    """Many small matrices of one shape."""
    return {f"m{i}": ((16, 24), MATRIX) for i in range(count)}


TREES: dict[str, Callable[[int], Leaves]] = {
    "transformer": transformer,
    "distinct": distinct,
    "huge": huge,
    "tiny": tiny,
}
SIZES = {"transformer": 24, "distinct": 24, "huge": 1024, "tiny": 400}


def draw(leaves: Leaves) -> dict[str, Any]:
    """Standard normal float32 arrays."""
    rng = np.random.default_rng(0)
    return {
        name: jnp.asarray(rng.standard_normal(shape), jnp.float32)
        for name, (shape, _) in leaves.items()
    }
