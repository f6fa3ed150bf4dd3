"""MuonSpec: the one value that says which Muon a run computes.

Everything by which two published Muon implementations differ is a field here, and nothing else in
the project holds a coefficient, an epsilon, a convention or a default of its own. Standard library
only, so that every tool can read it without JAX.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal, get_args

from .coefficients import COEFFICIENT_SETS, Triple, expand_coefficients

NesterovStyle = Literal["ema", "sgd"]
EpsMode = Literal["add", "floor"]
NsDtype = Literal["momentum", "float32", "bfloat16", "float64"]
NsRounding = Literal["elementwise", "fused"]
ScaleMode = Literal[
    "spectral", "unit_rms_norm", "shape_scaling", "width_transfer", "consistent_rms"
]
Preconditioning = Literal["frobenius", "spectral", "aol", "schatten"]
DecayStyle = Literal["subtract", "factor"]
QkvGranularity = Literal["fused", "projection", "head"]

_VOCABULARIES: dict[str, tuple[str, ...]] = {
    "nesterov_style": get_args(NesterovStyle),
    "coefficient_type": tuple(COEFFICIENT_SETS),
    "ns_eps_mode": get_args(EpsMode),
    "ns_dtype": get_args(NsDtype),
    "ns_rounding": get_args(NsRounding),
    "scale_mode": get_args(ScaleMode),
    "preconditioning": get_args(Preconditioning),
    "decay_style": get_args(DecayStyle),
    "adam_decay_style": get_args(DecayStyle),
}


class SpecError(ValueError):
    """A MuonSpec cannot be made from what was given; the message names field or flag and value."""


@dataclass(frozen=True)
class MuonSpec:
    """Every choice by which two Muons can differ.

    Attributes:
      beta: momentum decay (Megatron ``--muon-momentum``).
      nesterov: look-ahead momentum for the Newton-Schulz input.
      nesterov_style: ``ema`` keeps ``m = b m + (1-b) g`` (optax, Megatron-Core); ``sgd`` keeps the
        sum ``m = b m + g`` (Moonlight lineage). The buffers differ by ``1/(1-b)``.
      bias_correction: divide by ``1 - b^t`` as optax does; Megatron never does. The sum of ``sgd``
        is no average and is never corrected, whatever this says.
      coefficient_type: key of ``COEFFICIENT_SETS``.
      num_ns_steps: Newton-Schulz iterations.
      ns_eps: guard of the norm that precedes the iteration.
      ns_eps_mode: ``add`` divides by ``norm + eps``, ``floor`` by ``max(norm, eps)``.
      ns_dtype: dtype of the iteration; ``momentum`` keeps the momentum's own. With ``bfloat16``
        sums and coefficients stay float32, as in torch.
      cast_before_norm: cast to ``ns_dtype`` before taking the norm (Keller Jordan, torch) instead
        of after it (emerging-optimizers); only bfloat16 can tell.
      ns_rounding: where bfloat16 rounds. ``elementwise`` rounds every intermediate, as the plain
        expression ``b * A + c * A @ A`` does (Keller Jordan lineage); ``fused`` rounds once after
        the sum, as ``torch.addmm`` does (emerging-optimizers, torch.optim.Muon).
      preconditioning: optax's four ways to bring the spectrum into range.
      scale_mode: factor on the orthogonalised matrix, from the fans that Newton-Schulz saw:
        ``spectral`` and ``consistent_rms`` sqrt(max(out, in)), ``unit_rms_norm`` sqrt(out/in),
        ``shape_scaling`` and ``width_transfer`` sqrt(max(1, out/in)).
      extra_scale_factor: multiplies the scale of every mode (``muon_consistent_rms`` for
        ``consistent_rms``).
      split_qkv: orthogonalise Q, K and V apart instead of the fused matrix.
      split_head: one matrix per attention head; needs ``split_qkv``.
      split_linear_fc1: gate and up apart instead of fused.
      split_mla_up_proj: MLA up-projections by component (nope/rope, nope/value), heads merged.
      split_attention_gate: gated attention keeps query and gate in one projection; orthogonalise
        them apart (Megatron-Core from 0.19). Needs ``split_qkv``.
      include_routers: router matrices train with Muon (else Adam).
      all_matrices: learned position tables and shared-expert gates train with Muon, as every 2-D
        parameter but embedding and output layer does in Megatron (else Adam, as in MaxText).
      unfold_scaled_weights: treat weights that MaxText stores scaled (query of the llama family,
        gemma embeddings) as the unscaled weights the source trainer holds.
      adam_only: no parameter trains with Muon, all are the AdamW branch's (Megatron
        ``--optimizer adam``).
      weight_decay: decoupled decay of Muon matrices, times the plain learning rate.
      decay_style: how a matrix p decays. ``subtract`` takes ``lr wd p`` away (optax,
        emerging-optimizers); ``factor`` multiplies by ``1 - lr wd`` rounded to p's dtype, at
        least float32 (Keller Jordan lineage, torch.optim.Muon): up to 3e-8 off in float32, the same
        way every step.
      weight_decay_norm_params: norm scales decay too.
      apply_wd_to_qk_layernorm: query and key norms decay too.
      adam_weight_decay, adam_b1, adam_b2, adam_eps, adam_eps_root: the AdamW branch.
      adam_decay_style: as decay_style, in the AdamW branch: ``subtract`` is FusedAdam's of Apex and
        Transformer Engine, ``factor`` is torch.optim.AdamW's, to which Megatron falls back without
        them.
      adam_nesterov: NAdam in the AdamW branch, as optax inherits from its ``nesterov``.
      decay_all_adam_params: no decay mask in the AdamW branch (optax, MaxText as released).
      batch_update: stack same-shape matrices and orthogonalise each stack at once.
      batch_update_size: matrices per stack; 0 means no limit.
      clip_grad: global norm limit by Megatron's formula on unfolded gradients; 0 leaves clipping to
        the trainer.
    """

    beta: float = 0.95
    nesterov: bool = True
    nesterov_style: NesterovStyle = "ema"
    bias_correction: bool = True
    coefficient_type: str = "simple"
    num_ns_steps: int = 5
    ns_eps: float = 1e-8
    ns_eps_mode: EpsMode = "add"
    ns_dtype: NsDtype = "momentum"
    cast_before_norm: bool = False
    ns_rounding: NsRounding = "fused"
    preconditioning: Preconditioning = "frobenius"
    scale_mode: ScaleMode = "width_transfer"
    extra_scale_factor: float = 1.0
    split_qkv: bool = True
    split_head: bool = False
    split_linear_fc1: bool = True
    split_mla_up_proj: bool = False
    split_attention_gate: bool = False
    include_routers: bool = True
    all_matrices: bool = False
    unfold_scaled_weights: bool = False
    adam_only: bool = False
    weight_decay: float = 0.0
    decay_style: DecayStyle = "subtract"
    weight_decay_norm_params: bool = True
    apply_wd_to_qk_layernorm: bool = True
    adam_weight_decay: float = 0.0
    adam_b1: float = 0.9
    adam_b2: float = 0.999
    adam_eps: float = 1e-8
    adam_eps_root: float = 0.0
    adam_decay_style: DecayStyle = "subtract"
    adam_nesterov: bool = True
    decay_all_adam_params: bool = True
    batch_update: bool = True
    batch_update_size: int = 0
    clip_grad: float = 0.0

    def __post_init__(self) -> None:
        for field, vocabulary in _VOCABULARIES.items():
            value = getattr(self, field)
            if value not in vocabulary:
                raise SpecError(f"{field}={value!r}: expected one of {', '.join(vocabulary)}")
        _check_numbers(self)
        if self.split_head and not self.split_qkv:
            raise SpecError(
                "split_head=True needs split_qkv=True: a head lies inside one projection"
            )

    @property
    def qkv_granularity(self) -> QkvGranularity:
        """Which rows of the attention input projections form one matrix."""
        if self.split_head:
            return "head"
        return "projection" if self.split_qkv else "fused"

    @property
    def ns_coeffs(self) -> tuple[Triple, ...] | Triple:
        """Coefficients in the form optax keeps in its state: one triple, or one per step.

        A constant schedule stays a single triple, so that the state has optax's shape ``(3,)``.
        """
        rows = expand_coefficients(self.coefficient_type, self.num_ns_steps)
        return rows[0] if len(set(rows)) == 1 else rows

    @property
    def buffer_scale(self) -> float:
        """Factor from an EMA momentum buffer to this spec's buffer: 1 or ``1 / (1 - beta)``."""
        return 1.0 / (1.0 - self.beta) if self.nesterov_style == "sgd" else 1.0

    def muon_kwargs(self) -> dict[str, Any]:
        """Keyword arguments of ``muon()`` that this spec settles, in its signature's order.

        Learning rate, momentum dtype, dimension numbers and the decay mask come from the trainer.
        """
        return {
            "ns_coeffs": self.ns_coeffs,
            "ns_steps": self.num_ns_steps,
            "beta": self.beta,
            "eps": self.ns_eps,
            "weight_decay": self.weight_decay,
            "nesterov": self.nesterov,
            "preconditioning": self.preconditioning,
            "adam_b1": self.adam_b1,
            "adam_b2": self.adam_b2,
            "adam_eps_root": self.adam_eps_root,
            "adam_weight_decay": self.adam_weight_decay,
            "nesterov_style": self.nesterov_style,
            "bias_correction": self.bias_correction,
            "eps_mode": self.ns_eps_mode,
            "ns_dtype": self.ns_dtype,
            "cast_before_norm": self.cast_before_norm,
            "ns_rounding": self.ns_rounding,
            "scale_mode": self.scale_mode,
            "extra_scale_factor": self.extra_scale_factor,
            "adam_eps": self.adam_eps,
            "adam_nesterov": self.adam_nesterov,
            "decay_style": self.decay_style,
            "adam_decay_style": self.adam_decay_style,
            "batch_update": self.batch_update,
            "batch_update_size": self.batch_update_size,
            "clip_grad": self.clip_grad,
        }

    def replace(self, **changes: Any) -> MuonSpec:
        """A copy with the given fields changed.

        Raises:
          SpecError: an unknown field, or a value that a field does not admit.
        """
        unknown = sorted(set(changes) - {f.name for f in dataclasses.fields(self)})
        if unknown:
            raise SpecError(f"unknown MuonSpec field(s): {', '.join(unknown)}")
        return dataclasses.replace(self, **changes)

    def differences(self, other: MuonSpec) -> dict[str, tuple[Any, Any]]:
        """Fields whose values differ, as ``{field: (own, other)}`` in declaration order."""
        names = (f.name for f in dataclasses.fields(self))
        pairs = ((name, (getattr(self, name), getattr(other, name))) for name in names)
        return {name: pair for name, pair in pairs if pair[0] != pair[1]}


def _check_numbers(spec: MuonSpec) -> None:
    for field in ("beta", "adam_b1", "adam_b2"):
        if not 0.0 <= getattr(spec, field) < 1.0:
            raise SpecError(f"{field}={getattr(spec, field)!r}: expected a decay in [0, 1)")
    for field in ("ns_eps", "adam_eps", "adam_eps_root", "weight_decay", "adam_weight_decay"):
        if getattr(spec, field) < 0:
            raise SpecError(f"{field}={getattr(spec, field)!r}: expected a number >= 0")
    if spec.clip_grad < 0 or spec.batch_update_size < 0 or spec.extra_scale_factor <= 0:
        raise SpecError(
            f"clip_grad={spec.clip_grad!r}, batch_update_size={spec.batch_update_size!r} must be "
            f">= 0 and extra_scale_factor={spec.extra_scale_factor!r} > 0"
        )
    try:
        expand_coefficients(spec.coefficient_type, spec.num_ns_steps)
    except ValueError as error:
        raise SpecError(f"num_ns_steps={spec.num_ns_steps!r}: {error}") from error
