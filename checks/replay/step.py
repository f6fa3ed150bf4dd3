"""One step of the fork on MaxText-shaped arrays, from the state that Megatron saved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from muon_fork._muon import muon
from muon_fork.decay_mask import decays

from .leaves import Array, Leaf, Path
from .pair import Pair

Arrays = dict[Path, Array]


def replay(pair: Pair, leaves: tuple[Leaf, ...]) -> tuple[Arrays, Arrays]:
    """Weights and Adam's second moments after the step, by path, in Megatron's scale.

    In float64, so that the recovered gradient and the saved buffers enter without more rounding;
    Newton-Schulz still runs in the spec's dtype.
    """
    with jax.enable_x64(True):
        return _replay(pair, leaves)


def _replay(pair: Pair, leaves: tuple[Leaf, ...]) -> tuple[Arrays, Arrays]:
    by_path = {leaf.path: leaf for leaf in leaves}
    dims = _tree(leaves, lambda leaf: leaf.dims)
    options = pair.spec.muon_kwargs()
    optimizer = muon(
        pair.muon_rate,
        **options,
        adam_learning_rate=pair.adam_rate,
        muon_weight_dimension_numbers=lambda _: dims,
        adam_weight_decay_mask=lambda tree: _decay_mask(tree, pair),
    )
    params = _tree(leaves, lambda leaf: leaf.weight * leaf.scale)
    gradients = _tree(leaves, lambda leaf: leaf.gradient / leaf.scale)
    state = _restored(optimizer.init(params), by_path, pair.adam_count)
    updates, state = jax.jit(optimizer.update)(gradients, state, params)
    weights = {
        path: (np.asarray(leaf) + by_path[path].weight * by_path[path].scale) / by_path[path].scale
        for path, leaf in _by_path(updates).items()
    }
    adam = state.inner_states["adam"].inner_state[0]
    return weights, {path: np.asarray(nu) for path, nu in _by_path(adam.nu).items()}


def _restored(state: Any, by_path: dict[Path, Leaf], adam_count: int) -> Any:
    """The fresh state with Megatron's buffers and counts in it."""
    muon_state, *muon_rest = state.inner_states["muon"].inner_state
    adam_state, *adam_rest = state.inner_states["adam"].inner_state
    count = np.asarray(adam_count, np.int32)

    def filled(tree: Any, take: Callable[[Leaf], Array | None]) -> Any:
        def fill(path: Any, _leaf: Any) -> Array | None:
            return take(by_path[_names(path)])

        return jax.tree_util.tree_map_with_path(fill, tree)

    first = filled(muon_state.mu, lambda leaf: leaf.first)
    muon_state = muon_state._replace(count=count, mu=first)
    adam_state = adam_state._replace(
        count=count,
        mu=filled(adam_state.mu, lambda leaf: leaf.first),
        nu=filled(adam_state.nu, lambda leaf: leaf.second),
    )
    inner = dict(state.inner_states)
    for name, parts in (("muon", (muon_state, *muon_rest)), ("adam", (adam_state, *adam_rest))):
        inner[name] = inner[name]._replace(inner_state=parts)
    return state._replace(inner_states=inner)


def _decay_mask(tree: Any, pair: Pair) -> Any:
    def leaf_decays(path: Any, leaf: Any) -> bool:
        return decays(_names(path), np.shape(leaf), pair.spec)

    return jax.tree_util.tree_map_with_path(leaf_decays, tree)


def _tree(leaves: tuple[Leaf, ...], take: Callable[[Leaf], Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for leaf in leaves:
        node = tree
        for name in leaf.path[:-1]:
            node = node.setdefault(name, {})
        node[leaf.path[-1]] = take(leaf)
    return tree


def _by_path(tree: Any) -> Arrays:
    return {_names(path): leaf for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]}


def _names(path: Any) -> Path:
    return tuple(str(key.key) for key in path)
