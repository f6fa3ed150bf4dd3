"""Named MuonSpecs of published Muon implementations.

A preset fixes semantics. What belongs to a run rather than to an implementation (weight decay, Adam
betas, clipping) stays at MaxText's released value unless the publication itself states it; read a
run's own values with ``from_megatron_args``.
"""

from __future__ import annotations

from dataclasses import dataclass

from .spec import MuonSpec, SpecError


@dataclass(frozen=True)
class Preset:
    """A named spec, where it comes from, and the fields it leaves to the run."""

    name: str
    spec: MuonSpec
    source: str


_OPTAX = MuonSpec()

# What every torch-lineage trainer shares against optax: no bias correction, a plain Adam branch
# with its own eps, no decay of biases and norms, unscaled weights, Muon for every matrix that is
# neither embedding nor output layer.
_TORCH = _OPTAX.replace(
    bias_correction=False,
    ns_eps=1e-7,
    adam_nesterov=False,
    decay_all_adam_params=False,
    weight_decay_norm_params=False,
    apply_wd_to_qk_layernorm=False,
    unfold_scaled_weights=True,
    split_attention_gate=True,
    all_matrices=True,
)

# Keller Jordan's: Newton-Schulz casts first, then plain expressions, each rounded; parameters are
# multiplied by the decay.
_KELLER_JORDAN = _TORCH.replace(
    ns_dtype="bfloat16",
    cast_before_norm=True,
    ns_rounding="elementwise",
    decay_style="factor",
    adam_decay_style="factor",
)

_MOONLIGHT = _KELLER_JORDAN.replace(
    nesterov_style="sgd", scale_mode="consistent_rms", extra_scale_factor=0.2
)

PRESETS: tuple[Preset, ...] = (
    Preset("optax", _OPTAX, "optax.contrib.muon 0.2.8, the Muon of released MaxText"),
    Preset(
        "megatron",
        _TORCH.replace(
            nesterov=False,
            coefficient_type="quintic",
            ns_eps_mode="floor",
            ns_dtype="bfloat16",
            scale_mode="spectral",
            split_linear_fc1=False,
        ),
        "Megatron-Core 0.16.1 to 0.19.2 with emerging-optimizers up to 0.3.1, flag defaults",
    ),
    Preset(
        "megatron_rfc",
        _MOONLIGHT.replace(split_head=True, split_mla_up_proj=True, batch_update_size=16),
        "the Megatron-LM of RFC-0023 (Moonshot lineage)",
    ),
    Preset("moonlight", _MOONLIGHT, "Moonlight, arXiv:2502.16982"),
    Preset(
        "keller_jordan", _KELLER_JORDAN.replace(scale_mode="shape_scaling"), "Keller Jordan's Muon"
    ),
    Preset(
        "deepseek_v4",
        _TORCH.replace(
            nesterov_style="sgd",
            coefficient_type="deepseekv4",
            num_ns_steps=10,
            scale_mode="consistent_rms",
            extra_scale_factor=0.18,
            weight_decay=0.1,
            adam_weight_decay=0.1,
            adam_b2=0.95,
            adam_eps=1.0e-20,
        ),
        "DeepSeek-V4 report, algorithm 1",
    ),
)

DEFAULT_REFERENCE = "megatron_rfc"


def preset(name: str) -> MuonSpec:
    """The spec of the named preset.

    Raises:
      SpecError: no such preset; the message lists the names.
    """
    for row in PRESETS:
        if row.name == name:
            return row.spec
    raise SpecError(f"unknown preset {name!r}; known: {', '.join(p.name for p in PRESETS)}")
