"""The configuration that a plan asks MaxText for, and the arguments it refuses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from converters.errors import CheckpointError
from muon_fork.config_keys import CONFIG_KEYS, spec_from_config
from tests.converters.megatron_models import MODELS, source
from tests.converters.plans import built, changed, planned


def test_llama31_rotates_pairs_so_q_and_k_are_reordered() -> None:
    origin = source(MODELS["llama2"])
    plain = built(planned(origin))
    plan = planned(changed(origin, use_rope_scaling=True, rope_scaling_factor=8.0))
    assert plan.maxtext_config["rope_type"] == "llama3.1"
    order = np.arange(16).reshape(2, 8).T.ravel()
    for path, array in built(plan).items():
        turned = "/query/" in path or "/key/" in path
        assert np.array_equal(array, plain[path][..., order] if turned else plain[path]), path
    with pytest.raises(CheckpointError, match=r"rope_scaling_factor=32\.0"):
        planned(changed(origin, use_rope_scaling=True, rope_scaling_factor=32.0))


def test_interleaved_runs_are_turned_to_halves_with_their_norms() -> None:
    origin = source(MODELS["qwen3"])
    plain, turned = built(planned(origin)), built(planned(changed(origin, rotary_interleaved=True)))
    order = np.arange(16).reshape(8, 2).T.ravel()
    for path, array in turned.items():
        if "/query/" in path or "/key/" in path:
            assert np.array_equal(array, plain[path][..., order]), path
        elif "_norm/scale" in path and ("query" in path or "key" in path):
            assert np.array_equal(array, plain[path][order]), path
        else:
            assert np.array_equal(array, plain[path]), path


def test_mla_is_reordered_for_plain_rotation_and_left_for_yarn() -> None:
    rope = source(MODELS["deepseek3"])
    yarn = changed(rope, rope_type="yarn", rotary_scaling_factor=40, max_position_embeddings=64)
    plans = {"default": planned(rope), "yarn": planned(yarn)}
    assert {plan.maxtext_config["rope_type"]: name for name, plan in plans.items()} == {
        name: name for name in plans
    }
    halves, pairs = built(plans["default"]), built(plans["yarn"])
    order = np.arange(8).reshape(4, 2).T.ravel()
    for path, array in halves.items():
        start = {"wq_b": 12, "wkv_a": 16}.get(path.rpartition("/")[0].rpartition("/")[2])
        if start is None:
            assert np.array_equal(array, pairs[path]), path
        else:
            moved = pairs[path][..., start + order]
            assert np.array_equal(array[..., start:], moved), path
            assert np.array_equal(array[..., :start], pairs[path][..., :start]), path


@pytest.mark.parametrize(
    ("mscale", "all_dim", "keys"),
    [
        (1.0, 0.0, {"mscale": 0.0, "rope_attention_scaling": True}),
        (1.0, 1.0, {"mscale": 1.0, "rope_attention_scaling": False}),
        (0.707, 0.707, {"mscale": 0.707, "rope_attention_scaling": False}),
        (0.5, 0.0, None),
    ],
)
def test_yarn_scales_angles_and_softmax_as_megatron(
    mscale: float, all_dim: float, keys: dict[str, Any] | None
) -> None:
    origin = changed(source(MODELS["kimi_k2"]), mscale=mscale, mscale_all_dim=all_dim)
    if keys is None:
        with pytest.raises(CheckpointError, match="rotary embeddings would be multiplied"):
            planned(origin)
        return
    config = planned(origin).maxtext_config
    assert {name: config[name] for name in keys} == keys
    assert config["max_position_embeddings"] > config["original_max_position_embeddings"]


class Config:
    """A MaxText configuration that has the plan's keys."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.__dict__.update(values)


@pytest.mark.parametrize("model", ["llama2", "deepseek3"])
def test_configuration_asks_for_the_very_spec(model: str) -> None:
    plan = planned(model)
    assert spec_from_config(Config(plan.maxtext_config)) == plan.spec
    assert {row.key for row in CONFIG_KEYS} <= set(plan.maxtext_config)


def test_command_line_is_readable_yaml() -> None:
    origin = changed(source(MODELS["gemma2"]), adam_eps=1e-20)
    words = dict(word.split("=", 1) for word in planned(origin).command)
    assert words["adam_eps"] == "1.0e-20"
    assert words["mlp_activations"] == "[gelu,linear]"
    assert words["scan_layers"] == "True"
    assert words["gradient_clipping_threshold"] == "0"
    assert float(words["muon_clip_grad"]) == 1.0


def test_sizes_are_maxtexts() -> None:
    config = planned("deepseek3").maxtext_config
    expected = {
        "base_emb_dim": 64,
        "base_num_decoder_layers": 3,
        "first_num_dense_layers": 1,
        "base_mlp_dim": 96,
        "base_moe_mlp_dim": 96,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "shared_experts": 1,
        "routed_score_func": "sigmoid",
        "routed_bias": True,
        "q_lora_rank": 24,
        "kv_lora_rank": 16,
        "qk_nope_head_dim": 12,
        "qk_rope_head_dim": 8,
        "v_head_dim": 20,
        "mtp_num_layers": 1,
        "normalization_layer_epsilon": 1e-6,
        "max_target_length": 32,
    }
    assert {key: config[key] for key in expected} == expected
    assert planned("gemma2").maxtext_config["base_num_decoder_layers"] == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"normalization": "LayerNorm"}, "RMSNorm"),
        ({"swiglu": False}, "swiglu is off"),
        ({"rotary_percent": 0.5}, "rotary_percent=0.5"),
        ({"position_embedding_type": "learned_absolute"}, "learned_absolute"),
        ({"rotary_base": 10000.5}, "whole number"),
        ({"fp32_residual_connection": True}, "fp32_residual_connection"),
        ({"kv_channels": None}, "kv_channels=None"),
        ({"softmax_scale": 0.1}, "divides attention logits by"),
        ({"muon_momentum": None}, "--muon-momentum"),
    ],
)
def test_what_maxtext_does_not_compute_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        planned(changed(source(MODELS["llama2"]), **arguments))


@pytest.mark.parametrize(
    ("model", "arguments", "message"),
    [
        ("llama2", {"hidden_size": 32}, r"\[256, 64\], the arguments ask for \[256, 32\]"),
        ("llama2", {"ffn_hidden_size": 97}, "ask for .97. at its end .base_mlp_dim"),
        ("qwen3_moe", {"moe_ffn_hidden_size": 48}, "ask for .64, 48. at its end"),
        ("deepseek3", {"num_experts": 8}, "ask for .8. at its end .num_experts"),
        ("llama2", {"num_layers": 3}, "decoder.layers.2.input_layernorm.weight: in the table"),
        ("llama2", {"num_query_groups": 4}, "expected 192 rows: 4 groups of 1 queries"),
    ],
)
def test_arguments_of_another_model_are_noticed(
    model: str, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        planned(changed(source(MODELS[model]), **arguments))


def test_gemma2_27b_divides_by_144() -> None:
    origin = source(MODELS["gemma2"])
    plan = planned(changed(origin, softmax_scale=1 / 12.0))
    assert plan.maxtext_config["model_name"] == "gemma2-27b"
    path = "params/params/decoder/layers/self_attention_local/query/kernel"
    ratio = built(plan)[path] / built(planned(origin))[path]
    np.testing.assert_allclose(ratio, 4 / 12, rtol=1e-6)
