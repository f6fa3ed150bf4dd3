"""Decoupled weight decay and the learning rate, the last two links of either branch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import jax
import jax.numpy as jnp
import optax

from .newton_schulz import check_choice
from .spec import DecayStyle

Links = tuple[optax.GradientTransformation, optax.GradientTransformation]


def decay_and_rate(
    learning_rate: Any,
    weight_decay: Any,
    mask: Any,
    style: DecayStyle,
    name: str,
    decayed_weights: Callable[..., optax.GradientTransformation] = optax.add_decayed_weights,
) -> Links:
    """Two links of a chain, with the state that optax's have.

    Args:
      learning_rate: scalar or schedule.
      mask: tree of bools (or a prefix), or a function of the parameters that returns one; None
        decays every leaf.
      style: as ``decay_style`` in ``muon``.
      name: of the argument that says the style, for the error.
      decayed_weights: stands for ``optax.add_decayed_weights``.

    Raises:
      ValueError: a style that is none, or a scheduled decay with ``factor``.
    """
    check_choice(name, style, get_args(DecayStyle))
    if style == "factor" and callable(weight_decay):
        raise ValueError(f"{name}='factor' takes a weight decay that is a number, not a schedule")
    rate = optax.scale_by_learning_rate(learning_rate)
    if style == "subtract":
        return decayed_weights(weight_decay, mask), rate
    # The first link only keeps optax's place in the state: the decay needs the rate.
    return decayed_weights(0.0, mask), _multiplied(rate, learning_rate, weight_decay, mask)


def _multiplied(
    rate: optax.GradientTransformation, learning_rate: Any, weight_decay: Any, mask: Any
) -> optax.GradientTransformation:
    """The learning rate, then a decay that multiplies parameters by ``1 - lr wd``."""

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        now = learning_rate(state.count) if callable(learning_rate) else learning_rate
        updates, new = rate.update(updates, state, params)
        decay: Any = optax.stateless(_multiply_by(1 - now * weight_decay))
        decay = decay if mask is None else optax.masked(decay, mask)
        return decay.update(updates, decay.init(params), params)[0], new

    return optax.GradientTransformation(rate.init, update)


def _multiply_by(factor: Any) -> Callable[[Any, Any], Any]:
    """Adds to updates what multiplies the parameters by the factor.

    The factor is rounded to the dtype in which torch computes: the parameter's, or float32.
    """

    def change(update: jax.Array, parameter: jax.Array) -> jax.Array:
        wide = jnp.promote_types(parameter.dtype, jnp.float32)
        # The rounded factor less one is exact, as both are close.
        decay = (jnp.asarray(factor, wide) - 1) * parameter.astype(wide)
        return update + decay.astype(update.dtype)

    return lambda updates, params: jax.tree.map(change, updates, params)
