"""Many steps without gradients, so that only decay moves the weights."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from muon_fork import MuonDimensionNumbers, muon

RATE, DECAY, STEPS = 2e-3, 0.1, 2000
# Half the spacing of float32 at the size of the weights.
ROUNDING = 2.0**-24
STYLES = ("subtract", "factor")


def weights() -> dict[str, jax.Array]:
    rng = np.random.default_rng(0)
    return {name: jnp.asarray(rng.uniform(0.5, 1, (16, 8)), jnp.float32) for name in ("w", "v")}


def decayed(styles: dict[str, str], rate: Any = RATE, **options: Any) -> dict[str, np.ndarray]:
    """Weights after steps without gradients: ``w`` is Muon's, ``v`` AdamW's."""
    dims = {"w": MuonDimensionNumbers(), "v": None}
    transform = muon(
        rate,
        weight_decay=DECAY,
        adam_weight_decay=DECAY,
        muon_weight_dimension_numbers=dims,
        **styles,
        **options,
    )
    start = weights()
    zeros = jax.tree.map(jnp.zeros_like, start)

    def step(carry: Any, _: None) -> tuple[Any, None]:
        params, state = carry
        updates, state = transform.update(zeros, state, params)
        return (optax.apply_updates(params, updates), state), None

    run = jax.jit(lambda carry: jax.lax.scan(step, carry, None, STEPS)[0])
    return jax.tree.map(np.asarray, run((start, transform.init(start)))[0])


def exact(factor: float) -> dict[str, np.ndarray]:
    return {name: np.asarray(w, np.float64) * factor**STEPS for name, w in weights().items()}
