"""Types of the configuration."""

from maxtext.third_party.optax_muon.model_dimensions import DECODER_BLOCKS as MUON_DECODER_BLOCKS
from maxtext.common.common_types import AttentionType, DecoderBlockType
from pydantic import BaseModel, Field


class AdamW(BaseModel):
  """AdamW."""

  adam_b1: float = Field(0.9, description="Decay of the first moment.")
  adam_b2: float = Field(0.95, description="Decay of the second moment.")
  adam_eps: float = Field(1e-8, description="Guard.")
  adam_eps_root: float = Field(0.0, description="Guard below the root.")
  adam_weight_decay: float = Field(0.1, description="Decoupled decay.")


class Muon(BaseModel):
  """Muon."""

  muon_beta: float = Field(0.95, description="Momentum.")
  muon_weight_decay: float = Field(
      0, description="Decoupled decay."
  )
  muon_consistent_rms: float | None = Field(
      0.2,
      description="Factor of muon_scale_mode consistent_rms, else None.",
  )
  muon_nesterov: bool = Field(True, description="Look-ahead momentum.")
  muon_nesterov_style: str = Field(
      "sgd",
      description="'ema': buffer = b*buffer + (1-b)*g (Megatron-Core, optax). 'sgd': buffer = b*buffer + g.",
  )
  muon_bias_correction: bool = Field(False, description="Divide the momentum by 1 - b^t (optax). Megatron never does.")
  muon_coefficient_type: str = Field(
      "simple",
      description="Newton-Schulz coefficients: simple, quintic, polar_express, cans, aol or deepseekv4.",
  )
  muon_num_ns_steps: int = Field(5, description="Newton-Schulz iterations.")
  muon_ns_eps: float = Field(1e-07, description="Guard of the norm before Newton-Schulz.")
  muon_ns_eps_mode: str = Field("add", description="'add': x / (norm + eps). 'floor': x / max(norm, eps).")
  muon_ns_dtype: str = Field("bfloat16", description="dtype of Newton-Schulz: momentum, float32, bfloat16 or float64.")
  muon_cast_before_norm: bool = Field(
      True,
      description="Cast to muon_ns_dtype before the norm (Keller Jordan lineage) instead of after it.",
  )
  muon_ns_rounding: str = Field(
      "elementwise",
      description="bfloat16 rounds 'elementwise' (Keller Jordan lineage) or 'fused', once per torch.addmm.",
  )
  muon_preconditioning: str = Field(
      "frobenius",
      description="Rescaling before Newton-Schulz: frobenius, spectral, aol or schatten.",
  )
  muon_scale_mode: str = Field(
      "consistent_rms",
      description="spectral, unit_rms_norm, shape_scaling, width_transfer or consistent_rms.",
  )
  muon_extra_scale_factor: float = Field(
      1.0,
      description="Multiplies the scale; consistent_rms takes muon_consistent_rms instead.",
  )
  muon_split_qkv: bool = Field(True, description="Q, K and V apart instead of one matrix.")
  muon_split_head: bool = Field(True, description="One matrix per attention head.")
  muon_split_linear_fc1: bool = Field(True, description="Gate and up apart.")
  muon_split_mla_up_proj: bool = Field(True, description="MLA up-projections by component (nope/rope, nope/value).")
  muon_split_attention_gate: bool = Field(True, description="Gated attention: query and gate apart.")
  muon_include_routers: bool = Field(True, description="Router matrices train with Muon, else with AdamW.")
  muon_all_matrices: bool = Field(
      True,
      description="Position tables and shared-expert gates train with Muon, else with AdamW.",
  )
  muon_unfold_scaled_weights: bool = Field(
      True,
      description="Treat weights stored scaled (llama query, gemma embedding) as the unscaled ones.",
  )
  muon_adam_only: bool = Field(
      False,
      description="No parameter trains with Muon, all with AdamW (Megatron's --optimizer adam).",
  )
  muon_weight_decay_norm_params: bool = Field(False, description="Norm scales decay by adam_weight_decay.")
  muon_apply_wd_to_qk_layernorm: bool = Field(False, description="Query and key norms decay too.")
  muon_decay_all_adam_params: bool = Field(
      False,
      description="No decay mask in the AdamW branch, biases included (released MaxText).",
  )
  muon_adam_nesterov: bool = Field(False, description="NAdam in the AdamW branch (optax).")
  muon_decay_style: str = Field(
      "factor",
      description="'subtract': p - lr*wd*p (Megatron-Core, optax). 'factor': p * (1 - lr*wd) (torch, RFC).",
  )
  muon_adam_decay_style: str = Field(
      "factor",
      description="The same in the AdamW branch: 'subtract' (FusedAdam, optax) or 'factor' (torch's AdamW).",
  )
  muon_batch_update: bool = Field(True, description="Stack same-shape matrices.")
  muon_batch_update_size: int = Field(16, description="Matrices per stack; 0 is no limit.")
  muon_clip_grad: float = Field(
      0.0,
      description="Global norm limit by Megatron's formula; needs gradient_clipping_threshold: 0. 0 is off.",
  )


class Everything(AdamW, Muon):
  """The whole configuration."""

  opt_type: str = "adamw"
  decoder_block: DecoderBlockType = DecoderBlockType.LLAMA2

  def check(self):
    """Refuse what nobody has tried."""
    if self.opt_type == "muon" and self.decoder_block not in [
        DecoderBlockType.DEEPSEEK,
        DecoderBlockType.QWEN3,
        DecoderBlockType.GEMMA3,
        DecoderBlockType.LLAMA2,
        *(block for block in DecoderBlockType if block.value in MUON_DECODER_BLOCKS),
    ]:
      raise ValueError(
          "Nobody has tried Muon on this model. Look at it first: "
          f"`python3 -m maxtext.utils.muon_utils {self.decoder_block} True`"
      )
    return self
