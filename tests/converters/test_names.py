"""Keys on disk, in every spelling that Megatron has for a parameter."""

from __future__ import annotations

import pytest

from converters.megatron.names import Name, parse, split_state

LAYER = "decoder.layers.3."
ALIASES = {
    "input_layernorm.weight": (
        "input_layernorm.weight",
        "self_attention.linear_qkv.layer_norm_weight",
        "self_attention.linear_qkv_down_proj.layer_norm_weight",
    ),
    "input_layernorm.bias": ("self_attention.linear_qkv.layer_norm_bias",),
    "pre_mlp_layernorm.weight": ("pre_mlp_layernorm.weight", "mlp.linear_fc1.layer_norm_weight"),
    "post_self_attn_layernorm.weight": (
        "post_self_attn_layernorm.weight",
        "self_attention.linear_proj.post_layernorm.weight",
    ),
    "post_mlp_layernorm.weight": ("mlp.linear_fc2.post_layernorm.weight",),
    "self_attention.q_layernorm.weight": (
        "self_attention.q_layernorm.weight",
        "self_attention.linear_q_up_proj.layer_norm_weight",
    ),
    "self_attention.kv_layernorm.weight": (
        "self_attention.kv_layernorm.weight",
        "self_attention.linear_kv_up_proj.layer_norm_weight",
    ),
    "mlp.experts.linear_fc1.weight": (
        "mlp.experts.linear_fc1.weight",
        "mlp.experts.experts.linear_fc1.weight",
    ),
    "mlp.shared_experts.linear_fc2.weight": ("mlp.shared_experts.linear_fc2.weight",),
    "self_attention.core_attention.softmax_offset": (
        "self_attention.core_attention.softmax_offset",
    ),
    "mlp.router.expert_bias": ("mlp.router.expert_bias",),
    "self_attention.of_a_fork.weight7": ("self_attention.of_a_fork.weight7",),
    "self_attention.of_a_fork.weight_v": ("self_attention.of_a_fork.weight_v",),
}
PAIRS = [(name, alias) for name, aliases in ALIASES.items() for alias in aliases]


@pytest.mark.parametrize(("suffix", "alias"), PAIRS)
def test_a_layers_parameter_has_one_name(suffix: str, alias: str) -> None:
    assert parse(LAYER + alias) == Name(LAYER + suffix)
    assert parse("model.module." + LAYER + alias) == Name(LAYER + suffix)
    stacked = parse("decoder.layers." + alias)
    assert stacked.is_stacked
    assert stacked.of_layer(11) == "decoder.layers.11." + suffix
    for inner in ("transformer_layer.", "mtp_model_layer."):
        expected = "mtp.layers.0.transformer_layer." + suffix
        assert parse("mtp.layers.0." + inner + alias) == Name(expected)


@pytest.mark.parametrize(
    "key",
    [
        "embedding.word_embeddings.weight",
        "decoder.final_layernorm.weight",
        "output_layer.weight",
        "mtp.layers.0.eh_proj.weight",
        "mtp.layers.1.enorm.weight",
        "vision.self_attention.linear_qkv.layer_norm_weight",
        "decoder.layers",
        "decoder.layers.0",
        "module",
    ],
)
def test_names_outside_layers_stay(key: str) -> None:
    assert parse(key) == Name(key)


@pytest.mark.parametrize(
    ("suffix", "expert", "half", "found"),
    [
        ("mlp.experts.experts.2.linear_fc1.weight_w", 2, 0, "mlp.experts.linear_fc1.weight"),
        ("mlp.experts.experts.12.linear_fc1.weight_v", 12, 1, "mlp.experts.linear_fc1.weight"),
        ("mlp.experts.local_experts.5.linear_fc2.bias", 5, None, "mlp.experts.linear_fc2.bias"),
        ("mlp.experts.linear_fc2.weight31", 31, None, "mlp.experts.linear_fc2.weight"),
        ("mlp.experts.linear_fc1.weight0_v", 0, 1, "mlp.experts.linear_fc1.weight"),
        ("mlp.linear_fc1.weight_w", None, 0, "mlp.linear_fc1.weight"),
        ("mlp.linear_fc1.bias_v", None, 1, "mlp.linear_fc1.bias"),
        ("mlp.shared_experts.linear_fc1.weight_w", None, 0, "mlp.shared_experts.linear_fc1.weight"),
    ],
)
def test_parts_are_told_apart(
    suffix: str, expert: int | None, half: int | None, found: str
) -> None:
    assert parse(LAYER + suffix) == Name(LAYER + found, expert, half)


@pytest.mark.parametrize("prefix", ["", "chained_0.", "chained_1.chained_0."])
def test_optimizer_state_is_split_off(prefix: str) -> None:
    key = prefix + "optimizer.state.exp_avg.decoder.final_layernorm.weight"
    assert split_state(key) == ("exp_avg", "decoder.final_layernorm.weight")
    assert split_state(key.replace("optimizer.state", "optimizer.distributed")) is None
    assert split_state("x" + key) is None
