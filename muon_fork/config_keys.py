"""MuonSpec fields as MaxText configuration keys, and back.

The table is the only place that knows which key of ``base.yml`` carries which field. The codemods
write it into a checkout; the migrated checkout reads its own configuration through it.
Standard library only.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any, Protocol

from .spec import MuonSpec, SpecError

Kind = type[bool] | type[int] | type[float] | type[str]


@dataclass(frozen=True)
class ConfigKey:
    """One configuration key.

    Attributes:
      key: name in ``base.yml`` and on the command line.
      field: MuonSpec field it carries.
      kind: Python type of its value.
      released: already a key of released MaxText, where it keeps its place and comment.
      shared: also read by other optimizers than Muon (``opt_type=adamw``).
      comment: what a reader of ``base.yml`` needs to know, one line.
    """

    key: str
    field: str
    kind: Kind
    comment: str
    released: bool = False
    shared: bool = False


CONFIG_KEYS: tuple[ConfigKey, ...] = (
    ConfigKey("muon_beta", "beta", float, "Momentum decay.", released=True),
    ConfigKey("muon_weight_decay", "weight_decay", float, "Decay of Muon matrices.", released=True),
    ConfigKey("muon_nesterov", "nesterov", bool, "Look-ahead momentum."),
    ConfigKey(
        "muon_nesterov_style",
        "nesterov_style",
        str,
        "'ema': buffer = b*buffer + (1-b)*g (Megatron-Core, optax). 'sgd': buffer = b*buffer + g.",
    ),
    ConfigKey(
        "muon_bias_correction",
        "bias_correction",
        bool,
        "Divide the momentum by 1 - b^t (optax). Megatron never does.",
    ),
    ConfigKey(
        "muon_coefficient_type",
        "coefficient_type",
        str,
        "Newton-Schulz coefficients: simple, quintic, polar_express, cans, aol or deepseekv4.",
    ),
    ConfigKey("muon_num_ns_steps", "num_ns_steps", int, "Newton-Schulz iterations."),
    ConfigKey("muon_ns_eps", "ns_eps", float, "Guard of the norm before Newton-Schulz."),
    ConfigKey(
        "muon_ns_eps_mode",
        "ns_eps_mode",
        str,
        "'add': x / (norm + eps). 'floor': x / max(norm, eps).",
    ),
    ConfigKey(
        "muon_ns_dtype",
        "ns_dtype",
        str,
        "dtype of Newton-Schulz: momentum, float32, bfloat16 or float64.",
    ),
    ConfigKey(
        "muon_cast_before_norm",
        "cast_before_norm",
        bool,
        "Cast to muon_ns_dtype before the norm (Keller Jordan lineage) instead of after it.",
    ),
    ConfigKey(
        "muon_ns_rounding",
        "ns_rounding",
        str,
        "bfloat16 rounds 'elementwise' (Keller Jordan lineage) or 'fused', once per torch.addmm.",
    ),
    ConfigKey(
        "muon_preconditioning",
        "preconditioning",
        str,
        "Rescaling before Newton-Schulz: frobenius, spectral, aol or schatten.",
    ),
    ConfigKey(
        "muon_scale_mode",
        "scale_mode",
        str,
        "spectral, unit_rms_norm, shape_scaling, width_transfer or consistent_rms.",
    ),
    ConfigKey(
        "muon_extra_scale_factor",
        "extra_scale_factor",
        float,
        "Multiplies the scale; consistent_rms takes muon_consistent_rms instead.",
    ),
    ConfigKey("muon_split_qkv", "split_qkv", bool, "Q, K and V apart instead of one matrix."),
    ConfigKey("muon_split_head", "split_head", bool, "One matrix per attention head."),
    ConfigKey("muon_split_linear_fc1", "split_linear_fc1", bool, "Gate and up apart."),
    ConfigKey(
        "muon_split_mla_up_proj",
        "split_mla_up_proj",
        bool,
        "MLA up-projections by component (nope/rope, nope/value).",
    ),
    ConfigKey(
        "muon_split_attention_gate",
        "split_attention_gate",
        bool,
        "Gated attention: query and gate apart.",
    ),
    ConfigKey(
        "muon_include_routers",
        "include_routers",
        bool,
        "Router matrices train with Muon, else with AdamW.",
        released=True,
    ),
    ConfigKey(
        "muon_all_matrices",
        "all_matrices",
        bool,
        "Position tables and shared-expert gates train with Muon, else with AdamW.",
    ),
    ConfigKey(
        "muon_unfold_scaled_weights",
        "unfold_scaled_weights",
        bool,
        "Treat weights stored scaled (llama query, gemma embedding) as the unscaled ones.",
    ),
    ConfigKey(
        "muon_adam_only",
        "adam_only",
        bool,
        "No parameter trains with Muon, all with AdamW (Megatron's --optimizer adam).",
    ),
    ConfigKey(
        "muon_weight_decay_norm_params",
        "weight_decay_norm_params",
        bool,
        "Norm scales decay by adam_weight_decay.",
    ),
    ConfigKey(
        "muon_apply_wd_to_qk_layernorm",
        "apply_wd_to_qk_layernorm",
        bool,
        "Query and key norms decay too.",
    ),
    ConfigKey(
        "muon_decay_all_adam_params",
        "decay_all_adam_params",
        bool,
        "No decay mask in the AdamW branch, biases included (released MaxText).",
    ),
    ConfigKey("muon_adam_nesterov", "adam_nesterov", bool, "NAdam in the AdamW branch (optax)."),
    ConfigKey(
        "muon_decay_style",
        "decay_style",
        str,
        "'subtract': p - lr*wd*p (Megatron-Core, optax). 'factor': p * (1 - lr*wd) (torch, RFC).",
    ),
    ConfigKey(
        "muon_adam_decay_style",
        "adam_decay_style",
        str,
        "The same in the AdamW branch: 'subtract' (FusedAdam, optax) or 'factor' (torch's AdamW).",
    ),
    ConfigKey("muon_batch_update", "batch_update", bool, "Stack same-shape matrices."),
    ConfigKey(
        "muon_batch_update_size", "batch_update_size", int, "Matrices per stack; 0 is no limit."
    ),
    ConfigKey(
        "muon_clip_grad",
        "clip_grad",
        float,
        "Global norm limit by Megatron's formula; needs gradient_clipping_threshold: 0. 0 is off.",
    ),
    ConfigKey("adam_b1", "adam_b1", float, "", released=True, shared=True),
    ConfigKey("adam_b2", "adam_b2", float, "", released=True, shared=True),
    ConfigKey("adam_eps", "adam_eps", float, "", released=True, shared=True),
    ConfigKey("adam_eps_root", "adam_eps_root", float, "", released=True, shared=True),
    ConfigKey("adam_weight_decay", "adam_weight_decay", float, "", released=True, shared=True),
)

# Released MaxText's spelling of the scale: a number selects the mode and is its factor.
CONSISTENT_RMS = "muon_consistent_rms"
TRAINER_CLIP = "gradient_clipping_threshold"


class Config(Protocol):
    """Anything with MaxText's configuration keys as attributes."""

    def __getattr__(self, name: str) -> Any: ...


def config_values(spec: MuonSpec) -> dict[str, Any]:
    """Value of every key for ``spec``, ``muon_consistent_rms`` included."""
    values = {row.key: getattr(spec, row.field) for row in CONFIG_KEYS}
    values[CONSISTENT_RMS] = None
    if spec.scale_mode == "consistent_rms":
        values[CONSISTENT_RMS] = spec.extra_scale_factor
        values["muon_extra_scale_factor"] = 1.0
    return values


def spec_from_config(config: Config) -> MuonSpec:
    """The MuonSpec that a MaxText configuration asks for.

    Raises:
      SpecError: a key is missing (the checkout is not migrated), a value is of another type, or two
        keys contradict each other; the message names the keys and their values.
    """
    values: dict[str, Any] = {row.field: _read(config, row) for row in CONFIG_KEYS}
    values["extra_scale_factor"] = _scale_factor(config, values)
    trainer_clip = getattr(config, TRAINER_CLIP, 0)
    if values["clip_grad"] and trainer_clip:
        raise SpecError(
            f"muon_clip_grad={values['clip_grad']} and {TRAINER_CLIP}={trainer_clip} would both "
            f"clip: set {TRAINER_CLIP}=0"
        )
    return MuonSpec(**values)


def _read(config: Config, row: ConfigKey) -> Any:
    try:
        value = getattr(config, row.key)
    except (AttributeError, ValueError):  # older configurations raise ValueError
        raise SpecError(f"configuration key {row.key} is missing: migrate base.yml") from None
    value = getattr(value, "value", value)
    if row.kind is float and isinstance(value, (int, str)) and not isinstance(value, bool):
        # YAML 1.1 reads 1e-7, without a dot, as a string.
        with contextlib.suppress(ValueError):
            value = float(value)
    if type(value) is not row.kind:
        raise SpecError(f"{row.key}={value!r}: expected a value of type {row.kind.__name__}")
    return value


def _scale_factor(config: Config, values: dict[str, Any]) -> float:
    rms = getattr(config, CONSISTENT_RMS, None)
    extra = float(values["extra_scale_factor"])
    if values["scale_mode"] == "consistent_rms":
        if rms is None or extra != 1.0:
            raise SpecError(
                "muon_scale_mode=consistent_rms takes its factor from muon_consistent_rms: got "
                f"muon_consistent_rms={rms}, muon_extra_scale_factor={extra} (expected 1.0)"
            )
        return float(rms)
    if rms is not None:
        raise SpecError(
            f"muon_consistent_rms={rms} contradicts muon_scale_mode={values['scale_mode']}: set "
            "muon_scale_mode=consistent_rms, or muon_consistent_rms=None"
        )
    return extra
