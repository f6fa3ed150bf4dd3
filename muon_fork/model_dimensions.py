"""The sizes and conventions of a MaxText model that decide what its parameters are.

Standard library only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from .spec import SpecError

# Decoder blocks whose attention never multiplies the logits by 1/sqrt(head_dim): the factor lives
# in the query kernel. MaxText's Attention scales at run time only where the block passes it a
# ``query_pre_attn_scalar`` other than 1.
QUERY_STORED_SCALED = frozenset({"default", "llama2", "mistral", "mixtral", "gemma", "gemma2"})

# Blocks that scale at run time, by that argument, in MLA, in compressed attention or in gpt3's own.
QUERY_STORED_PLAIN = frozenset(
    {
        "deepseek",
        "deepseek4",
        "envy",
        "gemma3",
        "gpt3",
        "gpt_oss",
        "llama4",
        "olmo3",
        "qwen2",
        "qwen3",
        "qwen3_custom_moe",
        "qwen3_moe",
        "qwen3_next",
        "qwen3_5",
        "simple",
        "simple_mlp",
    }
)

# Decoder blocks of which every parameter has a rule: a checkout lets these train with Muon. The
# names are MaxText's; a checkout may lack some.
DECODER_BLOCKS = (
    "default",
    "llama2",
    "mistral",
    "mixtral",
    "gemma",
    "gemma2",
    "gemma3",
    "qwen2",
    "qwen3",
    "qwen3_moe",
    "qwen3_custom_moe",
    "qwen3_next",
    "qwen3_5",
    "deepseek",
    "deepseek4",
    "gpt_oss",
    "gpt3",
    "llama4",
    "olmo3",
    "envy",
)

# Blocks whose token embedding holds sqrt(hidden) times the weight of the published model.
EMBEDDING_STORED_SCALED = frozenset({"gemma", "gemma2", "gemma3"})

# Blocks whose query projection also holds an output gate: (head_dim, head_dim) per head.
GATED_ATTENTION = frozenset({"qwen3_next", "qwen3_5"})


@dataclass(frozen=True)
class ModelDimensions:
    """Names are MaxText's configuration keys; sizes are counts of elements.

    ``attention_scale_divisor`` is the square of what the attention logits are divided by, where it
    is not ``head_dim`` (gemma2-27b: 144).
    """

    decoder_block: str
    emb_dim: int
    num_query_heads: int
    num_kv_heads: int
    head_dim: int
    attention_type: str = "global"
    qk_nope_head_dim: int = 0
    qk_rope_head_dim: int = 0
    v_head_dim: int = 0
    param_scan_axis: int = 1
    attention_scale_divisor: float | None = None

    @classmethod
    def from_config(cls, config: Any) -> ModelDimensions:
        """Read a MaxText configuration.

        Raises:
          SpecError: a key is missing; the message names it.
        """

        def read(key: str) -> Any:
            try:
                value = getattr(config, key)
            except (AttributeError, ValueError):
                raise SpecError(f"configuration key {key} is missing") from None
            return getattr(value, "value", value)

        gemma2_27b = str(read("model_name")).startswith("gemma2-27b")
        return cls(
            decoder_block=str(read("decoder_block")),
            emb_dim=int(read("emb_dim")),
            num_query_heads=int(read("num_query_heads")),
            num_kv_heads=int(read("num_kv_heads")),
            head_dim=int(read("head_dim")),
            attention_type=str(read("attention_type")),
            qk_nope_head_dim=int(read("qk_nope_head_dim")),
            qk_rope_head_dim=int(read("qk_rope_head_dim")),
            v_head_dim=int(read("v_head_dim")),
            param_scan_axis=int(read("param_scan_axis")),
            attention_scale_divisor=144.0 if gemma2_27b else None,
        )

    @property
    def is_mla(self) -> bool:
        return self.attention_type == "mla"

    @property
    def has_gated_attention(self) -> bool:
        return self.decoder_block in GATED_ATTENTION

    @property
    def query_scale(self) -> float:
        """c of ``W_stored = c * W_source`` for query kernels and their biases.

        Raises:
          SpecError: a decoder block of which it is not known where it scales.
        """
        if self.is_mla or self.decoder_block in QUERY_STORED_PLAIN:
            return 1.0
        if self.decoder_block in QUERY_STORED_SCALED:
            return 1.0 / math.sqrt(self.attention_scale_divisor or self.head_dim)
        raise SpecError(
            f"decoder_block={self.decoder_block}: unknown whether its query kernel is stored "
            "scaled; set muon_unfold_scaled_weights=False if its attention scales at run time"
        )

    @property
    def embedding_scale(self) -> float:
        """c of ``W_stored = c * W_source`` for the token embedding."""
        return math.sqrt(self.emb_dim) if self.decoder_block in EMBEDDING_STORED_SCALED else 1.0
