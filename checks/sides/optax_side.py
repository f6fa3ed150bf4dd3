"""``optax.contrib.muon`` on the MaxText-shaped leaves, for a spec that it computes."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from checks.parameters import Parameter
from checks.setting import Setting
from muon_fork.spec import MuonSpec, SpecError

from . import devices, ours
from .gaps import Side
from .state import Arrays, Rates, State, in_leaves, state_in_leaves

# What optax cannot be told: its own value of each field.
_FIXED: dict[str, Any] = {
    "nesterov_style": "ema",
    "bias_correction": True,
    "ns_eps_mode": "add",
    "decay_style": "subtract",
    "adam_decay_style": "subtract",
    "decay_all_adam_params": True,
    "unfold_scaled_weights": False,
}


def tracker(tree: tuple[Parameter, ...], spec: MuonSpec, dtype: str) -> Optax:
    """
    Raises:
      SpecError: optax cannot compute what the spec asks for.
    """
    for field, value in _FIXED.items():
        if getattr(spec, field) != value:
            raise SpecError(f"it has {field}={value!r}, got {getattr(spec, field)!r}")
    if dtype == "bf16" or spec.adam_eps != spec.ns_eps or spec.adam_nesterov != spec.nesterov:
        raise SpecError("its Newton-Schulz and AdamW have one dtype, eps and look-ahead")
    if spec.scale_mode not in ("width_transfer", "consistent_rms"):
        raise SpecError(f"it has no scale_mode={spec.scale_mode!r}")
    side = ours.Ours(tree, spec, Setting(spec), dtype)
    cut = [n for n, d in ours.dims_of(side).items() if d and (d.component_splits or d.join)]
    if cut:
        raise SpecError(f"it neither cuts nor joins leaves: {cut[0]}")
    return Optax(side)


class Optax:
    """Walks beside the fork, with optax's own state."""

    name = "optax.contrib.muon"

    def __init__(self, side: ours.Ours) -> None:
        self.side = side
        options = ours.compiler_options(side.setting)
        self.update = jax.jit(self._update, compiler_options=options)
        self.running: ours.Running | None = None

    def _optimizer(self, rates: Any) -> Any:
        import optax

        spec = self.side.spec
        numbers = optax.contrib.MuonDimensionNumbers
        dims = {
            leaf: None if d is None else numbers(d.reduction_axis, d.output_axis)
            for leaf, d in ours.dims_of(self.side).items()
        }
        consistent = spec.scale_mode == "consistent_rms"
        return optax.contrib.muon(
            rates[0],
            spec.ns_coeffs,
            spec.num_ns_steps,
            spec.beta,
            spec.ns_eps,
            spec.weight_decay,
            nesterov=spec.nesterov,
            preconditioning=spec.preconditioning,
            adam_b1=spec.adam_b1,
            adam_b2=spec.adam_b2,
            adam_eps_root=spec.adam_eps_root,
            adam_weight_decay=spec.adam_weight_decay,
            adam_learning_rate=rates[1],
            muon_weight_dimension_numbers=lambda _: dims,
            consistent_rms=spec.extra_scale_factor if consistent else None,
        )

    def _update(self, params: Any, state: Any, gradients: Any, rates: Any) -> Any:
        updates, state = self._optimizer(rates).update(gradients, state, params)
        return jax.tree.map(lambda p, u: p + u, params, updates), state

    def start(self, state: State) -> None:
        by_leaf = state_in_leaves(state, self.side.tree)
        fork = ours.start(self.side, by_leaf)
        with devices.pinned(self.side.setting, self.side.dtype):
            empty = jax.jit(self._optimizer((0.0, 0.0)).init)(fork.params)
            # The same leaves in the same order, in optax's own types.
            filled = jax.tree.unflatten(jax.tree.structure(empty), jax.tree.leaves(fork.state))
        self.running = ours.Running(fork.params, filled)

    def advance(self, clipped: Arrays, rates: Rates) -> Side:
        assert self.running is not None
        number = devices.numpy_dtype(self.side.dtype)
        with devices.pinned(self.side.setting, self.side.dtype):
            by_leaf = in_leaves(clipped, self.side.tree)
            gradients = {leaf: np.asarray(g, number) for leaf, g in by_leaf.items()}
            both = (number(rates.muon), number(rates.adam))
            params, state = self.update(self.running.params, self.running.state, gradients, both)
        self.running = ours.Running(params, state)
        return Side(ours.read(self.side, self.running), {})
