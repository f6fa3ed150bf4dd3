"""Megatron models without Megatron: arguments, the tensors such a run has, and a source of them.

Shapes are written down from what Megatron holds, not from the tables under test.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from checks.megatron_models import DENSE, shapes, uses_muon
from converters.megatron.run import OptimizerState, Run
from converters.source import Array, Key, MomentumConvention, Source, SourceTensor, State

# Sizes of their own, and a vocabulary that Megatron padded.
COMMON: dict[str, Any] = DENSE | {
    "num_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_query_groups": 2,
    "kv_channels": 16,
    "ffn_hidden_size": 96,
    "vocab_size": 250,
    "padded_vocab_size": 256,
}
_MOE = {"num_experts": 4, "moe_ffn_hidden_size": 96, "moe_layer_freq": 1, "moe_router_topk": 2}
_MLA = {
    "multi_latent_attention": True,
    "group_query_attention": False,
    "qk_layernorm": True,
    "rope_type": "rope",
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_head_dim": 12,
    "qk_pos_emb_head_dim": 8,
    "v_head_dim": 20,
}
_DEEPSEEK = (
    _MOE
    | _MLA
    | {
        "num_layers": 3,
        "moe_layer_freq": [0, 1, 1],
        "moe_shared_expert_intermediate_size": 96,
        "moe_router_score_function": "sigmoid",
    }
)
_TIED = {"untie_embeddings_and_output_weights": False}
_GEMMA = _TIED | {"post_norms": True, "apply_layernorm_1p": True}

# By the name of the recorded MaxText tree (tests/data/param_trees) that holds the same model.
MODELS: dict[str, dict[str, Any]] = {
    "llama2": COMMON,
    "llama2_tied": COMMON | _TIED,
    "mistral": COMMON,
    "qwen2": COMMON | {"add_qkv_bias": True},
    "qwen3": COMMON | {"qk_layernorm": True},
    "mixtral": COMMON | _MOE,
    "qwen3_moe": COMMON | _MOE | {"qk_layernorm": True},
    "gemma2": COMMON | _GEMMA | {"num_layers": 4},
    "gemma3": COMMON | _GEMMA | {"num_layers": 7, "qk_layernorm": True},
    "deepseek2": COMMON | _DEEPSEEK | {"q_lora_rank": None, "moe_router_score_function": "softmax"},
    "deepseek3": COMMON | _DEEPSEEK | {"moe_router_enable_expert_bias": True, "mtp_num_layers": 1},
    "kimi_k2": COMMON
    | _DEEPSEEK
    | {
        "num_experts": 16,
        "moe_ffn_hidden_size": 48,
        "moe_shared_expert_intermediate_size": 48,
        "rope_type": "yarn",
        "rotary_scaling_factor": 32,
        "max_position_embeddings": 32,
    },
    "gpt_oss": COMMON
    | _MOE
    | {
        "num_layers": 4,
        "moe_ffn_hidden_size": 48,
        "ffn_hidden_size": 48,
        "add_bias_linear": True,
        "add_qkv_bias": True,
        "softmax_type": "learnable",
        "swiglu": False,
        "quick_geglu": True,
        "position_embedding_type": "yarn",
        "yarn_rotary_scaling_factor": 32.0,
        "max_position_embeddings": 32,
    },
}


def states(name: str, shape: tuple[int, ...]) -> tuple[State, ...]:
    """What Megatron keeps about a parameter in a float32 run."""
    if name.endswith(".expert_bias"):
        return (State.WEIGHT,)
    if uses_muon(name, shape):
        return (State.WEIGHT, State.MOMENTUM)
    return (State.WEIGHT, State.EXP_AVG, State.EXP_AVG_SQ)


def source(
    arguments: Mapping[str, Any],
    *,
    iteration: int = 7,
    momentum: MomentumConvention | None = None,
) -> Source:
    """An open checkpoint of the run; values are random and the same for equal keys and shapes."""
    tensors = {
        Key(name, state): tensor(random(Key(name, state), shape))
        for name, shape in shapes(arguments).items()
        for state in states(name, shape)
    }
    optimizers = (OptimizerState((), None), OptimizerState((), iteration))
    run = Run(arguments=arguments, iteration=iteration, optimizers=optimizers, schedule={})
    return Source(Path("iter_0000007"), "torch_dist", run, tensors, momentum, ())


def tensor(array: Array) -> SourceTensor:
    return SourceTensor(array.shape, array.dtype, ("memory",), lambda: array)


def random(key: Key, shape: tuple[int, ...]) -> Array:
    """float32, normal; second moments are positive."""
    generator = np.random.default_rng(zlib.crc32(str(key).encode()))
    values = generator.standard_normal(shape).astype(np.float32)
    return np.abs(values) if key.state is State.EXP_AVG_SQ else values
