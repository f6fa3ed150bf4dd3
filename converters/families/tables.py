"""The shipped families. Each table is literal; what several share is named once."""

from __future__ import annotations

from .family import Family, Row

_ATTENTION = "self_attention"


def _of(*words: str) -> frozenset[str]:
    return frozenset(words)


TOP = (
    Row("embedding.word_embeddings.weight", ("token_embedder/embedding",), "embedding"),
    Row("decoder.final_layernorm.weight", ("decoder/decoder_norm/scale",), "norm"),
    Row("output_layer.weight", ("decoder/logits_dense/kernel",), "output", "untied"),
)

NORMS = (
    Row("input_layernorm.weight", ("pre_self_attention_layer_norm/scale",), "norm"),
    Row("pre_mlp_layernorm.weight", ("post_self_attention_layer_norm/scale",), "norm"),
)


def _qkv(block: str, leaf: str) -> tuple[str, ...]:
    return tuple(f"{block}/{name}/{leaf}" for name in ("query", "key", "value"))


def _attention(block: str) -> tuple[Row, ...]:
    return (
        Row("self_attention.linear_qkv.weight", _qkv(block, "kernel"), "qkv"),
        Row("self_attention.linear_qkv.bias", _qkv(block, "bias"), "qkv_bias", "qkv_bias"),
        Row("self_attention.linear_proj.weight", (f"{block}/out/kernel",), "from_heads"),
        Row("self_attention.linear_proj.bias", (f"{block}/out/bias",), "copy", "out_bias"),
    )


def _qk_norms(block: str) -> tuple[Row, ...]:
    return (
        Row("self_attention.q_layernorm.weight", (f"{block}/query_norm/scale",), "qk_norm"),
        Row("self_attention.k_layernorm.weight", (f"{block}/key_norm/scale",), "qk_norm"),
    )


def _mlp(block: str, when: str = "", source: str = "mlp") -> tuple[Row, ...]:
    gate_up = (f"{block}/wi_0/kernel", f"{block}/wi_1/kernel")
    return (
        Row(f"{source}.linear_fc1.weight", gate_up, "gate_up", when),
        Row(f"{source}.linear_fc2.weight", (f"{block}/wo/kernel",), "transpose", when),
    )


def _experts(block: str, when: str = "") -> tuple[Row, ...]:
    gate_up = (f"{block}/wi_0", f"{block}/wi_1")
    return (
        Row("mlp.router.weight", (f"{block}/gate/kernel",), "transpose", when),
        Row("mlp.experts.linear_fc1.weight", gate_up, "gate_up", when),
        Row("mlp.experts.linear_fc2.weight", (f"{block}/wo",), "transpose", when),
    )


_DENSE = (*NORMS, *_attention(_ATTENTION), *_mlp("mlp"))
# What any family may have or not.
_ANY = ("tied", "untied", "zero_centered")

LLAMA = Family("llama", "llama2", _of(), _of(*_ANY, "rope_scaling"), "stack", _DENSE, TOP)
MISTRAL = Family("mistral", "mistral", _of(), _of(*_ANY), "stack", _DENSE, TOP)
QWEN2 = Family(
    "qwen2",
    "qwen2",
    _of("qkv_bias"),
    _of(*_ANY),
    "stack",
    _DENSE,
    TOP,
    config={"attention_bias": True},
)
QWEN3 = Family(
    "qwen3",
    "qwen3",
    _of("qk_norm"),
    _of(*_ANY),
    "stack",
    (*_DENSE, *_qk_norms(_ATTENTION)),
    TOP,
    config={"use_qk_norm": True},
)


def _gemma_norms(half: str) -> tuple[Row, ...]:
    return (
        Row("input_layernorm.weight", (f"pre_self_attention_norm{half}/scale",), "norm"),
        Row("post_self_attn_layernorm.weight", (f"post_self_attention_norm{half}/scale",), "norm"),
        Row("pre_mlp_layernorm.weight", (f"pre_ffw_norm{half}/scale",), "norm"),
        Row("post_mlp_layernorm.weight", (f"post_ffw_norm{half}/scale",), "norm"),
    )


_GEMMA_CONFIG = {
    "mlp_activations": ("gelu", "linear"),
    "use_post_attn_norm": True,
    "use_post_ffw_norm": True,
}
GEMMA2 = Family(
    "gemma2",
    "gemma2",
    _of("post_norms", "tied"),
    _of("zero_centered"),
    "pairs",
    (*_gemma_norms("_{half}"), *_attention("self_attention_{half}"), *_mlp("mlp_{half}")),
    TOP,
    cycle=2,
    config={**_GEMMA_CONFIG, "final_logits_soft_cap": 30.0, "attn_logits_soft_cap": 50.0},
)
GEMMA3 = Family(
    "gemma3",
    "gemma3",
    _of("post_norms", "tied", "qk_norm"),
    _of("zero_centered"),
    "cycle",
    (*_gemma_norms(""), *_attention(_ATTENTION), *_qk_norms(_ATTENTION), *_mlp("mlp")),
    TOP,
    cycle=6,
    config=_GEMMA_CONFIG,
)

MIXTRAL = Family(
    "mixtral",
    "mixtral",
    _of("moe"),
    _of(*_ANY),
    "stack",
    (*NORMS, *_attention(_ATTENTION), *_experts("MoeBlock_0")),
    TOP,
)
QWEN3_MOE = Family(
    "qwen3_moe",
    "qwen3_moe",
    _of("moe", "qk_norm"),
    _of(*_ANY),
    "stack",
    (*NORMS, *_attention(_ATTENTION), *_qk_norms(_ATTENTION), *_experts("moe_block")),
    TOP,
    config={"use_qk_norm": True, "norm_topk_prob": True},
)

_MLA = (
    Row(
        "self_attention.linear_q_proj.weight",
        ("self_attention/query/kernel",),
        "mla_query",
        "!q_lora",
    ),
    Row(
        "self_attention.linear_q_down_proj.weight",
        ("self_attention/wq_a/kernel",),
        "transpose",
        "q_lora",
    ),
    Row("self_attention.q_layernorm.weight", ("self_attention/q_norm/scale",), "norm", "q_lora"),
    Row(
        "self_attention.linear_q_up_proj.weight",
        ("self_attention/wq_b/kernel",),
        "mla_query",
        "q_lora",
    ),
    Row(
        "self_attention.linear_kv_down_proj.weight", ("self_attention/wkv_a/kernel",), "mla_kv_down"
    ),
    Row("self_attention.kv_layernorm.weight", ("self_attention/kv_norm/scale",), "norm"),
    Row("self_attention.linear_kv_up_proj.weight", ("self_attention/wkv_b/kernel",), "to_heads"),
    Row("self_attention.linear_proj.weight", ("self_attention/out/kernel",), "from_heads"),
)
_DEEPSEEK_MLP = (
    *_mlp("mlp", "dense_layer"),
    *_experts("DeepSeekMoeBlock_0/MoeBlock_0", "moe_layer"),
    Row(
        "mlp.router.expert_bias",
        ("DeepSeekMoeBlock_0/MoeBlock_0/gate/bias",),
        "buffer",
        "moe_layer expert_bias",
    ),
    *_mlp("DeepSeekMoeBlock_0/shared_experts", "moe_layer shared_experts", "mlp.shared_experts"),
)
_MTP_LAYER = "mtp_block/mtp_layer_{k}/mtp_{k}"
MTP = (
    Row("enorm.weight", (f"{_MTP_LAYER}_embedding_norm/scale",), "norm"),
    Row("hnorm.weight", (f"{_MTP_LAYER}_hidden_state_norm/scale",), "norm"),
    Row("eh_proj.weight", (f"{_MTP_LAYER}_projection/kernel",), "transpose"),
    Row("final_layernorm.weight", (f"{_MTP_LAYER}_final_norm/scale",), "norm", "mtp_final_norm"),
)
DEEPSEEK = Family(
    "deepseek",
    "deepseek",
    _of("mla"),
    _of(*_ANY, "moe", "dense_layers", "shared_experts", "expert_bias", "q_lora", "mtp"),
    "dense_then_moe",
    (*NORMS, *_MLA, *_DEEPSEEK_MLP),
    TOP,
    MTP,
)
# The same blocks around grouped-query attention: Megatron trains it, no MaxText decoder does.
DEEPSEEK_GQA = Family(
    "deepseek_gqa",
    "deepseek",
    _of("moe"),
    _of(*_ANY, "dense_layers", "shared_experts", "expert_bias"),
    "dense_then_moe",
    (*NORMS, *_attention(_ATTENTION), *_DEEPSEEK_MLP),
    TOP,
    refusal=(
        "grouped-query attention with shared experts or leading dense layers: MaxText has these "
        "only around multi-latent attention (decoder_block deepseek)"
    ),
)

_GPT_OSS_MLP = (
    *_experts("GptOssMlp"),
    Row("mlp.router.bias", ("GptOssMlp/gate/bias",), "copy"),
    Row(
        "mlp.experts.linear_fc1.bias",
        ("GptOssMlp/wi_0_bias", "GptOssMlp/wi_1_bias"),
        "gate_up_bias",
    ),
    Row("mlp.experts.linear_fc2.bias", ("GptOssMlp/wo_bias",), "copy"),
)
GPT_OSS = Family(
    "gpt_oss",
    "gpt_oss",
    _of("moe", "qkv_bias", "out_bias", "mlp_bias", "sinks"),
    _of(*_ANY),
    "cycle",
    (
        *NORMS,
        *_attention("GptOssAttention"),
        Row("self_attention.core_attention.softmax_offset", ("GptOssAttention/sinks",), "copy"),
        *_GPT_OSS_MLP,
    ),
    TOP,
    cycle=2,
    config={
        "attention_bias": True,
        "attention_sink": True,
        "mlp_bias": True,
        "routed_bias": True,
        "mlp_activations": ("sigmoid", "linear"),
        "mlp_activations_limit": 7.0,
        "inhomogeneous_layer_cycle_interval": 2,
    },
)

# Tried in this order: the first that fits a checkpoint is taken.
FAMILIES: tuple[Family, ...] = (
    LLAMA,
    MISTRAL,
    QWEN2,
    QWEN3,
    GEMMA2,
    GEMMA3,
    MIXTRAL,
    QWEN3_MOE,
    DEEPSEEK,
    GPT_OSS,
    DEEPSEEK_GQA,
)
