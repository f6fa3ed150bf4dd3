"""The AdamW branch: optax's, with its own decay mask and leaves that are stored scaled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import optax

from .decay import decay_and_rate
from .spec import DecayStyle

# Maps a tree of gradients or updates to the same tree times each leaf's update_scale.
FoldFunction = Callable[[Any], Any]


def adamw_branch(
    learning_rate: Any,
    *,
    b1: Any,
    b2: Any,
    eps: Any,
    eps_root: Any,
    weight_decay: Any,
    weight_decay_mask: Any,
    decay_style: DecayStyle,
    mu_dtype: Any,
    nesterov: bool,
    fold: FoldFunction,
) -> optax.GradientTransformation:
    """AdamW with the state of ``optax.adamw``, whatever the mask, the decay and the folding.

    Args:
      weight_decay_mask: tree of bools (or a prefix), or a function of the parameters that returns
        one; None decays every leaf.
      decay_style: as ``adam_decay_style`` in ``muon``.
      fold: applied to the gradients on entry, so that the moments are those of the source weights,
        and to the updates before the decay is added.
    """
    adam = optax.scale_by_adam(b1, b2, eps, eps_root, mu_dtype, nesterov=nesterov)
    links = decay_and_rate(
        learning_rate,
        weight_decay,
        weight_decay_mask,
        decay_style,
        "adam_decay_style",
        _decayed_weights,
    )
    return optax.chain(_folded(adam, fold), *links)


def _folded(adam: optax.GradientTransformation, fold: FoldFunction) -> optax.GradientTransformation:
    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        updates, new = adam.update(fold(updates), state, params)
        # optax widens a bfloat16 first moment when the gradients are float32.
        mu = jax.tree.map(lambda m, old: m.astype(old.dtype), new.mu, state.mu)
        return fold(updates), new._replace(mu=mu)

    return optax.GradientTransformation(adam.init, update)


def _decayed_weights(weight_decay: Any, mask: Any) -> optax.GradientTransformation:
    """``optax.add_decayed_weights`` whose state does not show whether there is a mask."""
    decay = optax.add_decayed_weights(weight_decay, mask)
    if mask is None:
        return decay

    def init(params: Any) -> Any:
        return decay.init(params).inner_state

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        updates, new = decay.update(updates, optax.MaskedState(state), params)
        return updates, new.inner_state

    return optax.GradientTransformation(init, update)
