"""Tiny members of the model families, as MaxText overrides and as the sizes behind them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

EMBEDDING, HEADS, HEAD_SIZE = 64, 4, 16
NOPE, ROPE, VALUE = 16, 8, 16

_SHARED = {
    "base_emb_dim": EMBEDDING,
    "base_num_decoder_layers": 2,
    "base_num_query_heads": HEADS,
    "base_num_kv_heads": HEADS,
    "head_dim": HEAD_SIZE,
    "base_mlp_dim": 96,
}
_EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "base_moe_mlp_dim": 32,
    "sparse_matmul": False,
    "megablox": False,
}


@dataclass(frozen=True)
class Model:
    """A tiny model.

    Attributes:
      overrides: its MaxText configuration, layer scan excepted.
      query_scale: c of W_stored = c * W_source for query kernels.
    """

    overrides: Mapping[str, object]
    query_scale: float = 1.0


MODELS: dict[str, Model] = {
    "llama2": Model(
        _SHARED | {"decoder_block": "llama2", "base_num_kv_heads": 2},
        query_scale=HEAD_SIZE**-0.5,
    ),
    "qwen3": Model(
        _SHARED | {"decoder_block": "qwen3", "use_qk_norm": True, "base_num_kv_heads": 2}
    ),
    "qwen3_moe": Model(
        _SHARED
        | _EXPERTS
        | {"decoder_block": "qwen3_moe", "use_qk_norm": True, "base_mlp_dim": 32}
        | {"norm_topk_prob": True}
    ),
    "mixtral": Model(
        _SHARED | _EXPERTS | {"decoder_block": "mixtral", "base_mlp_dim": 32},
        query_scale=HEAD_SIZE**-0.5,
    ),
    "deepseek": Model(
        _SHARED
        | _EXPERTS
        | {
            "decoder_block": "deepseek",
            "attention_type": "mla",
            "base_num_decoder_layers": 3,
            "first_num_dense_layers": 1,
            "q_lora_rank": 24,
            "kv_lora_rank": 16,
            "qk_nope_head_dim": NOPE,
            "qk_rope_head_dim": ROPE,
            "v_head_dim": VALUE,
            "shared_experts": 1,
            "routed_score_func": "sigmoid",
            "routed_bias": True,
            "rope_type": "default",
            "mscale": 1.0,
        }
    ),
}
