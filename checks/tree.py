"""One synthetic tree with every kind of parameter, from models of six families.

Everything is tiny: what a kind is does not depend on its size.
"""

from __future__ import annotations

from checks import parameters
from checks.parameters import (
    EXPERTS,
    FFN,
    GROUPS,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    LORA,
    MLA_HEADS,
    NOPE,
    ROPE,
    VALUE,
    VOCABULARY,
    Kind,
    Parameter,
)
from muon_fork.model_dimensions import ModelDimensions


def _model(block: str, **changes: object) -> ModelDimensions:
    sizes = {
        "emb_dim": HIDDEN,
        "num_query_heads": HEADS,
        "num_kv_heads": GROUPS,
        "head_dim": HEAD_DIM,
    }
    return ModelDimensions(decoder_block=block, **{**sizes, **changes})  # type: ignore[arg-type]


MODELS: dict[str, ModelDimensions] = {
    "llama2": _model("llama2"),
    "qwen3": _model("qwen3"),
    "qwen3_next": _model("qwen3_next"),
    "gemma": _model("gemma"),
    "gpt3": _model("gpt3"),
    "deepseek": _model(
        "deepseek",
        attention_type="mla",
        num_query_heads=MLA_HEADS,
        num_kv_heads=MLA_HEADS,
        qk_nope_head_dim=NOPE,
        qk_rope_head_dim=ROPE,
        v_head_dim=VALUE,
    ),
}


_ROOT_D = HEAD_DIM**-0.5
_ROOT_H = HIDDEN**0.5
_LLAMA, _QWEN = "decoder/layers_0", "decoder/layers_0/self_attention"
_GATED, _MLA = "decoder/layers_3/attention/attention", "decoder/moe_layers_0/self_attention"
_MOE = "decoder/moe_layers_0/DeepSeekMoeBlock_0"

TREE: tuple[Parameter, ...] = (
    parameters.as_it_is(
        "llama2/embedding.word_embeddings.weight",
        "token_embedder/embedding",
        (VOCABULARY, HIDDEN),
        Kind.EMBEDDING,
    ),
    parameters.plain(
        "llama2/output_layer.weight",
        "decoder/logits_dense/kernel",
        VOCABULARY,
        HIDDEN,
        Kind.EMBEDDING,
    ),
    parameters.as_it_is(
        "llama2/final_layernorm.weight", "decoder/decoder_norm/scale", (HIDDEN,), Kind.NORM
    ),
    parameters.qkv("llama2/self_attention.linear_qkv.weight", f"{_LLAMA}/self_attention", _ROOT_D),
    parameters.qkv_bias(
        "llama2/self_attention.linear_qkv.bias", f"{_LLAMA}/self_attention", _ROOT_D
    ),
    parameters.from_heads(
        "llama2/self_attention.linear_proj.weight",
        f"{_LLAMA}/self_attention/out/kernel",
        HEADS,
        HEAD_DIM,
    ),
    parameters.fc1("llama2/mlp.linear_fc1.weight", f"{_LLAMA}/mlp"),
    parameters.plain("llama2/mlp.linear_fc2.weight", f"{_LLAMA}/mlp/wo/kernel", HIDDEN, FFN),
    parameters.qkv("qwen3/self_attention.linear_qkv.weight", _QWEN),
    parameters.as_it_is(
        "qwen3/self_attention.q_layernorm.weight",
        f"{_QWEN}/query_norm/scale",
        (HEAD_DIM,),
        Kind.QK_NORM,
    ),
    parameters.as_it_is(
        "qwen3/self_attention.k_layernorm.weight",
        f"{_QWEN}/key_norm/scale",
        (HEAD_DIM,),
        Kind.QK_NORM,
    ),
    parameters.qkv("qwen3_next/self_attention.linear_qkv.weight", _GATED, gated=True),
    parameters.as_it_is(
        "qwen3_next/self_attention.A_log", "decoder/layers_0/attention/A_log", (4,), Kind.VECTOR
    ),
    parameters.convolution(
        "qwen3_next/self_attention.conv1d.weight",
        "decoder/layers_0/attention/conv1d/kernel",
        HIDDEN,
        4,
    ),
    parameters.plain(
        "qwen3_next/mlp.shared_experts.gate_weight",
        "decoder/layers_0/mlp/shared_expert_gate/kernel",
        1,
        HIDDEN,
        Kind.TABLE,
    ),
    parameters.as_it_is(
        "gemma/embedding.word_embeddings.weight",
        "token_embedder/embedding",
        (VOCABULARY, HIDDEN),
        Kind.EMBEDDING,
        _ROOT_H,
    ),
    parameters.as_it_is(
        "gpt3/embedding.position_embeddings.weight",
        "decoder/position_embedder/embedding",
        (2 * HIDDEN, HIDDEN),
        Kind.TABLE,
    ),
    parameters.plain(
        "deepseek/self_attention.linear_q_down_proj.weight",
        f"{_MLA}/wq_a/kernel",
        LORA,
        HIDDEN,
    ),
    parameters.mla_up(
        "deepseek/self_attention.linear_q_up_proj.weight", f"{_MLA}/wq_b/kernel", (NOPE, ROPE)
    ),
    parameters.plain(
        "deepseek/self_attention.linear_kv_down_proj.weight",
        f"{_MLA}/wkv_a/kernel",
        LORA + ROPE,
        HIDDEN,
    ),
    parameters.mla_up(
        "deepseek/self_attention.linear_kv_up_proj.weight", f"{_MLA}/wkv_b/kernel", (NOPE, VALUE)
    ),
    parameters.plain(
        "deepseek/mlp.router.weight",
        f"{_MOE}/MoeBlock_0/gate/kernel",
        EXPERTS,
        HIDDEN,
        Kind.ROUTER,
    ),
    parameters.experts_fc1("deepseek/mlp.experts.linear_fc1.weight", f"{_MOE}/MoeBlock_0"),
    parameters.experts_fc2("deepseek/mlp.experts.linear_fc2.weight", f"{_MOE}/MoeBlock_0"),
    parameters.plain(
        "deepseek/mtp.eh_proj.weight",
        "mtp_block/mtp_layer_1/mtp_1_projection/kernel",
        HIDDEN,
        2 * HIDDEN,
    ),
)

_IN_SMALL = ("word_embeddings", "final_layernorm", "linear_qkv.weight", "mlp.linear_fc1", "experts")

# Something of every way in which leaves are viewed, joined and cut, for checks that compile a lot.
SMALL: tuple[Parameter, ...] = tuple(
    p
    for p in TREE
    if p.model in ("llama2", "deepseek") and any(word in p.name for word in _IN_SMALL)
)
