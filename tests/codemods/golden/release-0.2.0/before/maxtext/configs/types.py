"""Types of the configuration."""

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
  muon_consistent_rms: None | float = Field(
      None,
      description="If None, apply width scaling to updates. If float, that many.",
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
    ]:
      raise ValueError(
          "Nobody has tried Muon on this model. Look at it first: "
          f"`python3 -m MaxText.muon_utils {self.decoder_block} True`"
      )
    return self
