"""Tiny Megatron models of every convertible family: arguments and the shapes such a run has.

Written down from what Megatron-Core's GPTModel holds, not from the converter's tables, which are
compared with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from checks.parameters import (
    EXPERTS,
    FFN,
    GROUPS,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    LORA,
    NOPE,
    ROPE,
    VALUE,
    VOCABULARY,
)

Shapes = dict[str, tuple[int, ...]]
Arguments = Mapping[str, Any]
Rows = Iterator[tuple[str, tuple[int, ...]]]

DENSE: dict[str, Any] = {
    "num_layers": 2,
    "hidden_size": HIDDEN,
    "num_attention_heads": HEADS,
    "group_query_attention": True,
    "num_query_groups": GROUPS,
    "kv_channels": HEAD_DIM,
    "ffn_hidden_size": FFN,
    "swiglu": True,
    "normalization": "RMSNorm",
    "norm_epsilon": 1e-6,
    "position_embedding_type": "rope",
    "rotary_base": 10000,
    "vocab_size": VOCABULARY,
    "padded_vocab_size": VOCABULARY,
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
_MOE = {
    "num_experts": EXPERTS,
    "moe_ffn_hidden_size": FFN,
    "moe_layer_freq": 1,
    "moe_router_topk": 2,
}
_MLA = {
    "multi_latent_attention": True,
    "group_query_attention": False,
    "qk_layernorm": True,
    "rope_type": "rope",
    "q_lora_rank": LORA,
    "kv_lora_rank": LORA,
    "qk_head_dim": NOPE,
    "qk_pos_emb_head_dim": ROPE,
    "v_head_dim": VALUE,
}
_DEEPSEEK = {
    "moe_layer_freq": [0, 1],
    "moe_shared_expert_intermediate_size": FFN,
    "moe_router_score_function": "sigmoid",
    "moe_router_enable_expert_bias": True,
    "mtp_num_layers": 1,
}
_TIED = {"untie_embeddings_and_output_weights": False}
_GEMMA = {**_TIED, "post_norms": True, "apply_layernorm_1p": True}
_GPT_OSS = {
    "num_layers": 4,
    "add_bias_linear": True,
    "add_qkv_bias": True,
    "softmax_type": "learnable",
    "swiglu": False,
    "quick_geglu": True,
    "position_embedding_type": "yarn",
    "yarn_rotary_scaling_factor": 32.0,
    "max_position_embeddings": 32,
}

# By the converter's name of the family.
MODELS: dict[str, dict[str, Any]] = {
    "llama": DENSE,
    "mistral": DENSE,
    "qwen2": {**DENSE, "add_qkv_bias": True},
    "qwen3": {**DENSE, "qk_layernorm": True},
    "gemma2": {**DENSE, **_GEMMA},
    "gemma3": {**DENSE, **_GEMMA, "num_layers": 7, "qk_layernorm": True},
    "mixtral": {**DENSE, **_MOE},
    "qwen3_moe": {**DENSE, **_MOE, "qk_layernorm": True},
    "deepseek": {**DENSE, **_MOE, **_MLA, **_DEEPSEEK},
    "gpt_oss": {**DENSE, **_MOE, **_GPT_OSS},
}


def shapes(arguments: Arguments) -> Shapes:
    """Every parameter, by the name that it has in a single process."""
    a, hidden = arguments, (arguments["hidden_size"],)
    table = (a["padded_vocab_size"], *hidden)
    found: Shapes = {
        "embedding.word_embeddings.weight": table,
        "decoder.final_layernorm.weight": hidden,
    }
    if a["untie_embeddings_and_output_weights"]:
        found["output_layer.weight"] = table
    for layer in range(a["num_layers"]):
        rows = dict(_layer(a, _is_moe(a, layer)))
        found |= {f"decoder.layers.{layer}.{name}": shape for name, shape in rows.items()}
    for layer in range(a.get("mtp_num_layers") or 0):
        rows = {f"transformer_layer.{n}": shape for n, shape in _layer(a, moe=True)}
        rows |= {f"{n}.weight": hidden for n in ("enorm", "hnorm", "final_layernorm")}
        rows["eh_proj.weight"] = (*hidden, 2 * hidden[0])
        found |= {f"mtp.layers.{layer}.{name}": shape for name, shape in rows.items()}
    return found


def uses_muon(name: str, shape: tuple[int, ...]) -> bool:
    """Megatron's rule: a matrix, each expert's too, that is neither embedding nor output layer."""
    outer = name.startswith(("embedding.", "output_layer."))
    return not outer and len(shape) - (".experts." in name) == 2


def _is_moe(a: Arguments, layer: int) -> bool:
    frequency = a.get("moe_layer_freq", 1)
    return "num_experts" in a and (frequency == 1 or bool(frequency[layer]))


def _layer(a: Arguments, moe: bool) -> Rows:
    norms = ["input", "pre_mlp"]
    if a.get("post_norms"):
        norms += ["post_self_attn", "post_mlp"]
    for norm in norms:
        yield f"{norm}_layernorm.weight", (a["hidden_size"],)
    inner = _mla(a) if a.get("multi_latent_attention") else _attention(a)
    yield from ((f"self_attention.{name}", shape) for name, shape in inner)
    mlp = _experts(a) if moe else _two_layers(a["ffn_hidden_size"], a["hidden_size"])
    yield from ((f"mlp.{name}", shape) for name, shape in mlp)


def _attention(a: Arguments) -> Rows:
    hidden, heads, size = a["hidden_size"], a["num_attention_heads"], a["kv_channels"]
    groups = a["num_query_groups"] if a["group_query_attention"] else heads
    rows = (heads + 2 * groups) * size
    yield "linear_qkv.weight", (rows, hidden)
    yield "linear_proj.weight", (hidden, heads * size)
    if a.get("qk_layernorm"):
        yield "q_layernorm.weight", (size,)
        yield "k_layernorm.weight", (size,)
    if a.get("add_qkv_bias"):
        yield "linear_qkv.bias", (rows,)
    if a.get("add_bias_linear"):
        yield "linear_proj.bias", (hidden,)
    if a.get("softmax_type") == "learnable":
        yield "core_attention.softmax_offset", (heads,)


def _mla(a: Arguments) -> Rows:
    hidden, heads = a["hidden_size"], a["num_attention_heads"]
    nope, rope, value = a["qk_head_dim"], a["qk_pos_emb_head_dim"], a["v_head_dim"]
    query, rank = heads * (nope + rope), a["q_lora_rank"]
    if rank is None:
        yield "linear_q_proj.weight", (query, hidden)
    else:
        yield "linear_q_down_proj.weight", (rank, hidden)
        yield "q_layernorm.weight", (rank,)
        yield "linear_q_up_proj.weight", (query, rank)
    yield "linear_kv_down_proj.weight", (a["kv_lora_rank"] + rope, hidden)
    yield "kv_layernorm.weight", (a["kv_lora_rank"],)
    yield "linear_kv_up_proj.weight", (heads * (nope + value), a["kv_lora_rank"])
    yield "linear_proj.weight", (hidden, heads * value)


def _two_layers(inner: int, hidden: int) -> Rows:
    yield "linear_fc1.weight", (2 * inner, hidden)
    yield "linear_fc2.weight", (hidden, inner)


def _experts(a: Arguments) -> Rows:
    hidden, inner, experts = a["hidden_size"], a["moe_ffn_hidden_size"], a["num_experts"]
    yield "router.weight", (experts, hidden)
    for name, shape in _two_layers(inner, hidden):
        yield f"experts.{name}", (experts, *shape)
    if a.get("add_bias_linear"):
        yield "router.bias", (experts,)
        yield "experts.linear_fc1.bias", (experts, 2 * inner)
        yield "experts.linear_fc2.bias", (experts, hidden)
    if a.get("moe_router_enable_expert_bias"):
        yield "router.expert_bias", (experts,)
    shared = a.get("moe_shared_expert_intermediate_size")
    if shared:
        for name, shape in _two_layers(shared, hidden):
            yield f"shared_experts.{name}", shape
