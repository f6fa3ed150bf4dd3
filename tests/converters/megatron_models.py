"""Megatron models without Megatron: arguments, the tensors such a run has, and a source of them.

Shapes are written down from what Megatron holds, not from the tables under test.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from converters.megatron.run import OptimizerState, Run
from converters.source import Array, Key, MomentumConvention, Source, SourceTensor, State

Shapes = dict[str, tuple[int, ...]]

COMMON: dict[str, Any] = {
    "num_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "group_query_attention": True,
    "num_query_groups": 2,
    "kv_channels": 16,
    "ffn_hidden_size": 96,
    "swiglu": True,
    "normalization": "RMSNorm",
    "norm_epsilon": 1e-6,
    "position_embedding_type": "rope",
    "rotary_base": 10000,
    "vocab_size": 250,
    "padded_vocab_size": 256,
    "untie_embeddings_and_output_weights": True,
    "seq_length": 32,
    "global_batch_size": 8,
    "train_iters": 100,
    "lr": 1e-3,
    "min_lr": 1e-4,
    "lr_decay_style": "cosine",
    "lr_warmup_iters": 10,
    "optimizer": "muon",
    "muon_momentum": 0.95,
    "muon_nesterov": False,
    "muon_num_ns_steps": 5,
    "muon_coefficient_type": "quintic",
    "muon_scale_mode": "spectral",
    "muon_extra_scale_factor": 0.2,
    "muon_split_qkv": True,
    "muon_fp32_matmul_prec": "high",
    "weight_decay": 0.1,
    "start_weight_decay": 0.1,
    "end_weight_decay": 0.1,
    "adam_beta1": 0.9,
    "adam_beta2": 0.95,
    "adam_eps": 1e-8,
    "clip_grad": 1.0,
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


def shapes(arguments: Mapping[str, Any]) -> Shapes:
    """Every parameter of the run, by canonical name."""
    a = arguments
    hidden, vocabulary = a["hidden_size"], a["padded_vocab_size"]
    found: Shapes = {"embedding.word_embeddings.weight": (vocabulary, hidden)}
    for layer in range(a["num_layers"]):
        prefix = f"decoder.layers.{layer}."
        found |= {prefix + name: shape for name, shape in _layer(a, _is_moe(a, layer))}
    found["decoder.final_layernorm.weight"] = (hidden,)
    if a["untie_embeddings_and_output_weights"]:
        found["output_layer.weight"] = (vocabulary, hidden)
    for layer in range(a.get("mtp_num_layers") or 0):
        prefix = f"mtp.layers.{layer}."
        norms = ("enorm", "hnorm", "final_layernorm")
        found |= {f"{prefix}{name}.weight": (hidden,) for name in norms}
        found[f"{prefix}eh_proj.weight"] = (hidden, 2 * hidden)
        inner = f"{prefix}transformer_layer."
        found |= {inner + name: shape for name, shape in _layer(a, True)}
    return found


def _is_moe(a: Mapping[str, Any], layer: int) -> bool:
    frequency = a.get("moe_layer_freq", 1)
    return bool(a.get("num_experts")) and (frequency == 1 or bool(frequency[layer]))


def _layer(a: Mapping[str, Any], moe: bool) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden = (a["hidden_size"],)
    yield "input_layernorm.weight", hidden
    yield "pre_mlp_layernorm.weight", hidden
    if a.get("post_norms"):
        yield "post_self_attn_layernorm.weight", hidden
        yield "post_mlp_layernorm.weight", hidden
    yield from _mla(a) if a.get("multi_latent_attention") else _attention(a)
    yield from _experts(a) if moe else _dense(a)


def _attention(a: Mapping[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, heads, size = a["hidden_size"], a["num_attention_heads"], a["kv_channels"]
    groups = a["num_query_groups"] if a["group_query_attention"] else heads
    rows = (heads + 2 * groups) * size
    yield "self_attention.linear_qkv.weight", (rows, hidden)
    yield "self_attention.linear_proj.weight", (hidden, heads * size)
    if a.get("add_qkv_bias"):
        yield "self_attention.linear_qkv.bias", (rows,)
    if a.get("add_bias_linear"):
        yield "self_attention.linear_proj.bias", (hidden,)
    if a.get("qk_layernorm"):
        yield "self_attention.q_layernorm.weight", (size,)
        yield "self_attention.k_layernorm.weight", (size,)
    if a.get("softmax_type") == "learnable":
        yield "self_attention.core_attention.softmax_offset", (heads,)


def _mla(a: Mapping[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, heads = a["hidden_size"], a["num_attention_heads"]
    query = heads * (a["qk_head_dim"] + a["qk_pos_emb_head_dim"])
    rank, latent = a["q_lora_rank"], a["kv_lora_rank"]
    prefix = "self_attention."
    if rank is None:
        yield prefix + "linear_q_proj.weight", (query, hidden)
    else:
        yield prefix + "linear_q_down_proj.weight", (rank, hidden)
        yield prefix + "q_layernorm.weight", (rank,)
        yield prefix + "linear_q_up_proj.weight", (query, rank)
    yield prefix + "linear_kv_down_proj.weight", (latent + a["qk_pos_emb_head_dim"], hidden)
    yield prefix + "kv_layernorm.weight", (latent,)
    up = heads * (a["qk_head_dim"] + a["v_head_dim"])
    yield prefix + "linear_kv_up_proj.weight", (up, latent)
    yield prefix + "linear_proj.weight", (hidden, heads * a["v_head_dim"])


def _dense(a: Mapping[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, inner = a["hidden_size"], a["ffn_hidden_size"]
    yield "mlp.linear_fc1.weight", (2 * inner, hidden)
    yield "mlp.linear_fc2.weight", (hidden, inner)


def _experts(a: Mapping[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, inner, experts = a["hidden_size"], a["moe_ffn_hidden_size"], a["num_experts"]
    yield "mlp.router.weight", (experts, hidden)
    yield "mlp.experts.linear_fc1.weight", (experts, 2 * inner, hidden)
    yield "mlp.experts.linear_fc2.weight", (experts, hidden, inner)
    if a.get("add_bias_linear"):
        yield "mlp.router.bias", (experts,)
        yield "mlp.experts.linear_fc1.bias", (experts, 2 * inner)
        yield "mlp.experts.linear_fc2.bias", (experts, hidden)
    if a.get("moe_router_enable_expert_bias"):
        yield "mlp.router.expert_bias", (experts,)
    shared = a.get("moe_shared_expert_intermediate_size")
    if shared:
        yield "mlp.shared_experts.linear_fc1.weight", (2 * shared, hidden)
        yield "mlp.shared_experts.linear_fc2.weight", (hidden, shared)


def is_muon(name: str, shape: tuple[int, ...]) -> bool:
    """Megatron's rule: matrices, of experts too, but neither embedding nor output layer."""
    if name in ("embedding.word_embeddings.weight", "output_layer.weight"):
        return False
    return len(shape) - name.count(".experts.") == 2


def states(name: str, shape: tuple[int, ...]) -> tuple[State, ...]:
    """What Megatron keeps about a parameter in a float32 run."""
    if name.endswith(".expert_bias"):
        return (State.WEIGHT,)
    if is_muon(name, shape):
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
