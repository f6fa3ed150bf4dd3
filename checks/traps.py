"""Known mistakes, each of which the ladder must catch and name.

A trap is switched on in the fork's side alone. ``rung``, ``term`` and ``parameter`` say where the
ladder must see it first; a test holds every row to them. A row that no rung can see is a defect of
the ladder, not of the row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from muon_fork.dimension_numbers import MuonDimensionNumbers
from muon_fork.spec import MuonSpec

Dims = MuonDimensionNumbers | None
# (stored gradients by leaf, c by leaf, limit) -> clipped stored gradients; traced by JAX.
Clip = Callable[[Mapping[str, Any], Mapping[str, float], float], dict[str, Any]]


def _same_spec(spec: MuonSpec) -> MuonSpec:
    return spec


def _same_dims(_leaf: str, dims: Dims) -> Dims:
    return dims


@dataclass(frozen=True)
class Trap:
    """One mistake.

    Attributes:
      name: what ``--trap`` takes.
      title: one line: what is wrong then.
      rung, term: of the first divergence that it must cause.
      parameter: what the diverging parameter's path must contain; "" where any may be first.
      spec: what becomes of the spec on the fork's side.
      dims: what becomes of a leaf's dimension numbers.
      clip: replaces the clipping.
      forgets_count: a restored state starts with step counts of 0.
      needs: fields that both sides take so that the mistake can show.
    """

    name: str
    title: str
    rung: str
    term: str
    parameter: str = ""
    spec: Callable[[MuonSpec], MuonSpec] = _same_spec
    dims: Callable[[str, Dims], Dims] = _same_dims
    clip: Clip | None = None
    forgets_count: bool = False
    needs: Mapping[str, Any] = field(default_factory=dict)

    def changes(self, spec: MuonSpec) -> bool:
        """Whether it is a mistake under this spec."""
        moved = self.dims is not _same_dims or self.clip is not None or self.forgets_count
        return moved or self.spec(spec) != spec


NO_TRAP = Trap("", "nothing is wrong", "", "")


def _fields(**changes: Any) -> Callable[[MuonSpec], MuonSpec]:
    return lambda spec: spec.replace(**changes)


def _other_convention(spec: MuonSpec) -> MuonSpec:
    return spec.replace(nesterov_style="ema" if spec.nesterov_style == "sgd" else "sgd")


def _swapped(spec: MuonSpec) -> MuonSpec:
    return spec.replace(ns_eps=spec.adam_eps, adam_eps=spec.ns_eps)


def _query_as_stored(leaf: str, dims: Dims) -> Dims:
    if dims is None or not leaf.endswith("query/kernel"):
        return dims
    return dims._replace(update_scale=1.0)


def _over_experts(leaf: str, dims: Dims) -> Dims:
    if dims is None or "/MoeBlock_0/w" not in leaf:
        return dims
    return dims._replace(reduction_axis=(0,))


def _without_guard(gradients: Mapping[str, Any], folds: Mapping[str, float], limit: float) -> Any:
    """optax's formula, ``limit / norm``, on the source's gradients."""
    import jax.numpy as jnp

    squares = [jnp.sum(jnp.square(g * folds[leaf])) for leaf, g in gradients.items()]
    factor = jnp.minimum(1.0, limit / jnp.sqrt(sum(squares)))
    return {leaf: g * factor for leaf, g in gradients.items()}


def _stored(gradients: Mapping[str, Any], _folds: Mapping[str, float], limit: float) -> Any:
    """MaxText's own clipping: optax's formula, on the gradients of the stored weights."""
    return _without_guard(gradients, dict.fromkeys(gradients, 1.0), limit)


TRAPS: tuple[Trap, ...] = (
    Trap(
        "simple_for_quintic",
        "Newton-Schulz takes optax's one triple instead of Megatron's five",
        "newton_schulz",
        "newton_schulz",
        spec=_fields(coefficient_type="simple"),
    ),
    Trap(
        "bf16_newton_schulz",
        "Newton-Schulz runs in bfloat16 instead of float32",
        "newton_schulz",
        "newton_schulz",
        spec=_fields(ns_dtype="bfloat16"),
    ),
    Trap(
        "eps_swapped",
        "Adam's eps guards the Newton-Schulz norm, and the other way round",
        "newton_schulz",
        "newton_schulz",
        spec=_swapped,
    ),
    Trap(
        "adam_eps",
        "AdamW divides by Newton-Schulz's eps, as optax.contrib.muon hands it down",
        "step",
        "adam",
        spec=lambda spec: spec.replace(adam_eps=spec.ns_eps),
    ),
    Trap(
        "bias_correction",
        "the momentum is divided by 1 - b^t",
        "step",
        "momentum",
        spec=_fields(bias_correction=True),
        needs={"nesterov": True},
    ),
    Trap(
        "momentum_convention",
        "a mean is taken for a sum of gradients, or a sum for a mean",
        "step",
        "momentum",
        spec=_other_convention,
    ),
    Trap(
        "per_head",
        "each attention head is a matrix of its own instead of each projection",
        "step",
        "newton_schulz",
        "attention",
        spec=_fields(split_head=True),
    ),
    Trap(
        "fc1_split",
        "gate and up are orthogonalised apart instead of as one matrix",
        "step",
        "newton_schulz",
        "wi_",
        spec=_fields(split_linear_fc1=True),
    ),
    Trap(
        "expert_axis",
        "experts are orthogonalised across experts, as MaxText does in modules it does not know",
        "step",
        "newton_schulz",
        "MoeBlock_0/w",
        dims=_over_experts,
    ),
    Trap(
        "routers_with_adamw",
        "routers train with AdamW, as MaxText's muon_include_routers=False has it",
        "step",
        "routing",
        "gate/kernel",
        spec=_fields(include_routers=False),
    ),
    Trap(
        "nadam",
        "the AdamW branch looks ahead, as optax inherits from Muon's nesterov",
        "step",
        "adam",
        spec=_fields(adam_nesterov=True),
    ),
    Trap(
        "folded_query",
        "the update of a query kernel that is stored scaled is not scaled",
        "step",
        "scale",
        "query/kernel",
        dims=_query_as_stored,
    ),
    Trap(
        "decayed_norms",
        "norm scales decay",
        "step",
        "decay",
        "scale",
        spec=_fields(weight_decay_norm_params=True),
    ),
    Trap(
        "count_zero",
        "a restored AdamW state starts counting from 0",
        "step",
        "adam",
        forgets_count=True,
    ),
    Trap(
        "clip_formula",
        "gradients are clipped by limit / norm, without Megatron's 1e-6",
        "step",
        "clip",
        clip=_without_guard,
    ),
    Trap(
        "clip_stored",
        "gradients are clipped by the norm of the stored weights' gradients, as MaxText does",
        "step",
        "clip",
        clip=_stored,
    ),
)


def trap(name: str) -> Trap:
    """The trap of that name.

    Raises:
      KeyError: there is none.
    """
    return {row.name: row for row in TRAPS}[name]
