"""RFC-0023's Muon by hand, and steps of the optimizer as a migrated MaxText builds it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from muon_fork import muon
from muon_fork.maxtext import adam_weight_decay_mask, dimension_rules, muon_kwargs
from muon_fork.presets import preset
from muon_fork.spec import MuonSpec
from tests.fork.param_trees import config

LEARNING_RATE, DECAY = 0.02, 0.1
# The RFC's Megatron, in float64 so that only the arithmetic counts.
RFC = preset("megatron_rfc").replace(
    ns_dtype="float64", weight_decay=DECAY, adam_weight_decay=DECAY
)
SIMPLE = (3.4445, -4.7750, 2.0315)
ATTENTION = "decoder/layers/self_attention"

# A matrix that no rule cuts.
MATRIX = {"decoder/layers_0/mlp/wo/kernel": (8, 12)}

Tree = dict[str, np.ndarray]


def newton_schulz(x: np.ndarray, eps: float = 1e-7, steps: int = 5) -> np.ndarray:
    wide = x.shape[0] <= x.shape[1]
    y = x if wide else x.T
    y = y / (np.linalg.norm(y) + eps)
    a, b, c = SIMPLE
    for _ in range(steps):
        gram = y @ y.T
        y = a * y + (b * gram + c * gram @ gram) @ y
    return y if wide else y.T


def matrix_update(u: np.ndarray) -> np.ndarray:
    """Orthogonalised and scaled as the RFC's Megatron scales: its fans are those of ``u``."""
    return 0.2 * np.sqrt(max(u.shape)) * newton_schulz(u)


def nest(tree: Mapping[str, Any]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for path, leaf in tree.items():
        *parents, name = path.split("/")
        node = nested
        for parent in parents:
            node = node.setdefault(parent, {})
        node[name] = jnp.asarray(leaf)
    return {"params": nested}


def flat(tree: Any) -> Tree:
    rows = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {"/".join(k.key for k in path[1:]): np.asarray(leaf) for path, leaf in rows}


def build(family: str, spec: MuonSpec, params: Any) -> Any:
    """The optimizer as a migrated checkout builds it."""
    cfg = config(family, spec)
    rules = dimension_rules(cfg)
    dims = jax.tree_util.tree_map_with_path(
        lambda path, leaf: rules(tuple(k.key for k in path), leaf.shape), params
    )
    return muon(
        LEARNING_RATE,
        muon_weight_dimension_numbers=dims,
        **muon_kwargs(cfg),
        adam_weight_decay_mask=adam_weight_decay_mask(cfg),
    )


def run(
    family: str, spec: MuonSpec, params: Tree, gradients: Callable[[int], Tree], steps: int = 1
) -> tuple[Tree, Any]:
    """Parameters and optimizer state after some steps."""
    tree = nest(params)
    optimizer = build(family, spec, tree)
    state, update = optimizer.init(tree), jax.jit(optimizer.update)
    for step in range(steps):
        updates, state = update(nest(gradients(step)), state, tree)
        tree = jax.tree.map(jnp.add, tree, updates)
    return flat(tree), state


def zeros_like(tree: Tree) -> Callable[[int], Tree]:
    return lambda _: {path: np.zeros_like(leaf) for path, leaf in tree.items()}


def random_tree(shapes: Mapping[str, tuple[int, ...]], seed: int) -> Tree:
    generator = np.random.default_rng(seed)
    return {path: generator.standard_normal(shape) for path, shape in shapes.items()}


def relative(got: np.ndarray, expected: np.ndarray) -> float:
    return float(np.max(np.abs(got - expected)) / np.max(np.abs(expected)))


def muon_state(state: Any) -> Any:
    return state.inner_states["muon"].inner_state[0]


def first_direction(shapes: Mapping[str, tuple[int, ...]]) -> Tree:
    """What Newton-Schulz sees at the first step: g + b * g."""
    return {path: 1.95 * g for path, g in random_tree(shapes, 1).items()}


def one_step(family: str, spec: MuonSpec, shapes: Mapping[str, tuple[int, ...]]) -> Tree:
    """Updates of the first step, divided by ``-lr``; without decay."""
    return _one_step(family, spec, tuple(shapes.items()))


@functools.cache
def _one_step(family: str, spec: MuonSpec, rows: tuple[tuple[str, tuple[int, ...]], ...]) -> Tree:
    zeros = {path: np.zeros(shape) for path, shape in rows}
    after, _ = run(family, spec, zeros, lambda _: random_tree(dict(rows), 1))
    return {path: -value / LEARNING_RATE for path, value in after.items()}
