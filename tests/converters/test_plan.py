"""What a plan settles: trees per version, owners, counts, momentum, vocabulary, configuration."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from converters.errors import CheckpointError
from converters.maxtext.plan import Options, Plan, plan_target
from converters.maxtext.versions import VERSIONS
from converters.source import Key, Source, State
from converters.target import TargetTensor, leaves
from muon_fork.config_keys import CONFIG_KEYS, spec_from_config
from tests.converters.megatron_models import MODELS, shapes, source, tensor

EMBEDDING = Key("embedding.word_embeddings.weight", State.WEIGHT)
FC1 = "decoder.layers.{}.mlp.linear_fc1.weight"


def planned(model: str | Source, **options: Any) -> Plan:
    origin = source(MODELS[model]) if isinstance(model, str) else model
    return plan_target(origin, Options(**options))


def built(plan: Plan) -> dict[str, np.ndarray]:
    return {"/".join(record.path): record.build() for record in plan.records}


def changed(origin: Source, tensors: Mapping[Key, Any] = {}, **arguments: Any) -> Source:
    run = dataclasses.replace(origin.run, arguments={**origin.run.arguments, **arguments})
    return dataclasses.replace(origin, run=run, tensors={**origin.tensors, **tensors})


def test_nnx_keeps_chains_as_dictionaries_without_empty_states() -> None:
    state = planned("llama2").state
    inner = state.tree["opt_state"]["inner_states"]
    assert set(state.tree) == {"params", "opt_state", "step"}
    assert {b: set(inner[b]["inner_state"]) for b in inner} == {
        "muon": {"0", "3"},
        "adam": {"0", "2"},
    }
    assert set(inner["muon"]["inner_state"]["0"]) == {"count", "mu", "ns_coeffs"}
    assert set(inner["adam"]["inner_state"]["0"]) == {"count", "mu", "nu"}
    assert set(inner["muon"]["inner_state"]["0"]["mu"]) == {"decoder", "token_embedder"}
    assert inner["muon"]["inner_state"]["0"]["mu"]["token_embedder"]["embedding"] is None
    assert inner["adam"]["inner_state"]["0"]["nu"]["decoder"]["layers"]["mlp"] == {
        name: {"kernel": None} for name in ("wi_0", "wi_1", "wo")
    }


def test_linen_keeps_chains_as_lists_and_wraps_moments() -> None:
    state = planned("llama2", maxtext_version="0.2.3").state
    inner = state.tree["opt_state"]["inner_states"]
    muon, adam = inner["muon"]["inner_state"], inner["adam"]["inner_state"]
    assert [entry is None for entry in muon] == [False, True, True, False]
    assert [entry is None for entry in adam] == [False, True, False]
    assert set(muon[0]["mu"]) == set(adam[0]["nu"]) == {"params"}
    assert not state.records_scan_layers


@pytest.mark.parametrize("version", VERSIONS, ids=lambda v: v.name)
def test_every_version_plans_each_of_its_layouts_and_no_other(version: Any) -> None:
    for layout in ("nnx", "linen"):
        options = {"maxtext_version": version.name, "layout": layout}
        if layout in version.layouts:
            assert planned("qwen3", **options).layout == layout
        else:
            with pytest.raises(CheckpointError, match="does not run Muon with layout"):
                planned("qwen3", **options)
    assert planned("qwen3", maxtext_version=version.name).layout == version.layouts[0]


def test_an_unknown_version_is_refused() -> None:
    with pytest.raises(CheckpointError, match=r"unknown MaxText version '0\.1\.0': expected one"):
        planned("qwen3", maxtext_version="0.1.0")


def test_counts_are_the_iteration_unless_adam_says_otherwise() -> None:
    origin = source(MODELS["llama2"], iteration=70)
    muon, adam = origin.run.optimizers
    optimizers = (muon, dataclasses.replace(adam, step=60))
    late = dataclasses.replace(origin, run=dataclasses.replace(origin.run, optimizers=optimizers))
    arrays = built(planned(late))
    root = "opt_state/inner_states"
    counts = {
        "step": 70,
        f"{root}/muon/inner_state/0/count": 70,
        f"{root}/muon/inner_state/3/count": 70,
        f"{root}/adam/inner_state/0/count": 60,
        f"{root}/adam/inner_state/2/count": 70,
    }
    assert {path: int(arrays[path]) for path in counts} == counts
    assert {arrays[path].dtype for path in counts} == {np.dtype(np.int32)}
    assert planned(late).state.step == 70


@pytest.mark.parametrize(
    ("coefficients", "shape"), [("quintic", (5, 3)), ("simple", (3,)), ("deepseekv4", (10, 3))]
)
def test_coefficients_have_the_shape_that_the_optimizer_starts_with(
    coefficients: str, shape: tuple[int, ...]
) -> None:
    steps = 10 if coefficients == "deepseekv4" else 5
    origin = changed(
        source(MODELS["llama2"]), muon_coefficient_type=coefficients, muon_num_ns_steps=steps
    )
    plan = planned(origin)
    row = built(plan)["opt_state/inner_states/muon/inner_state/0/ns_coeffs"]
    assert (row.shape, row.dtype) == (shape, np.float32)
    assert plan.spec is not None
    assert np.array_equal(row, np.asarray(plan.spec.ns_coeffs, np.float32))


@pytest.mark.parametrize(
    ("saved", "override", "factor"),
    [
        (None, None, 1.0),
        ("ema", None, 1.0),
        ("sum", None, 1.0 - 0.95),
        (None, "sum", 1.0 - 0.95),
        ("sum", "ema", 1.0),
    ],
)
def test_momentum_is_scaled_to_what_the_spec_keeps(
    saved: Any, override: Any, factor: float
) -> None:
    origin = source(MODELS["qwen3"], momentum=saved)
    plan = planned(origin, momentum=override)
    assert plan.momentum_factor == factor
    told = [note for note in plan.notes if note.startswith("momentum was saved as a sum")]
    assert bool(told) == (factor != 1.0)
    key = Key("decoder.layers.0.mlp.linear_fc2.weight", State.MOMENTUM)
    path = "opt_state/inner_states/muon/inner_state/0/mu/decoder/layers/mlp/wo/kernel"
    expected = (origin.tensors[key].load().astype(np.float64) * factor).astype(np.float32)
    assert np.array_equal(built(plan)[path][:, 0], expected.T)


MOONSHOT = {"muon_matched_adamw_rms": 0.2, "muon_scale_mode": None, "muon_coefficient_type": None}


@pytest.mark.parametrize(("override", "factor"), [(None, 1.0), ("ema", 1 / (1 - 0.95))])
def test_a_sum_stays_a_sum_where_the_run_keeps_one(override: Any, factor: float) -> None:
    arguments = {k: v for k, v in MODELS["qwen3"].items() if k not in MOONSHOT} | {
        "muon_matched_adamw_rms": 0.2
    }
    plan = planned(source(arguments), momentum=override)
    assert plan.spec is not None
    assert plan.spec.nesterov_style == "sgd"
    assert plan.momentum_factor == factor


def test_moments_of_a_folded_query_are_not_scaled() -> None:
    origin = source(MODELS["llama2"])
    arrays = built(planned(origin))
    fused = "decoder.layers.1.self_attention.linear_qkv.weight"
    weight = origin.tensors[Key(fused, State.WEIGHT)].load()
    momentum = origin.tensors[Key(fused, State.MOMENTUM)].load()

    def first_head(array: np.ndarray) -> np.ndarray:
        return array[:16].T

    tail = "decoder/layers/self_attention/query/kernel"
    stored = arrays[f"params/params/{tail}"][:, 1, 0]
    np.testing.assert_array_equal(stored, first_head(weight) * np.float32(0.25))
    mu = arrays[f"opt_state/inner_states/muon/inner_state/0/mu/{tail}"][:, 1, 0]
    np.testing.assert_array_equal(mu, first_head(momentum))


def test_zero_centered_norms_gain_one_and_their_moments_do_not() -> None:
    origin = source(MODELS["gemma3"])
    arrays = built(planned(origin))
    name = "decoder.final_layernorm.weight"
    weight, first = (origin.tensors[Key(name, s)].load() for s in (State.WEIGHT, State.EXP_AVG))
    tail = "decoder/decoder_norm/scale"
    one = (weight.astype(np.float64) + 1).astype(np.float32)
    assert np.array_equal(arrays[f"params/params/{tail}"], one)
    assert np.array_equal(arrays[f"opt_state/inner_states/adam/inner_state/0/mu/{tail}"], first)


def test_buffers_have_no_state_in_megatron_and_start_at_zero() -> None:
    plan = planned("deepseek3", maxtext_version="0.2.4")
    created = [row.name for row in plan.created]
    tail = "DeepSeekMoeBlock_0/MoeBlock_0/gate/bias"
    assert [name for name in created if "moe_layers" in name] == [
        f"decoder/moe_layers/{tail} (exp_avg)",
        f"decoder/moe_layers/{tail} (exp_avg_sq)",
    ]
    arrays = built(plan)
    for moment in ("mu", "nu"):
        path = f"opt_state/inner_states/adam/inner_state/0/{moment}/decoder/moe_layers/{tail}"
        assert arrays[path].shape == (4, 2)
        assert not arrays[path].any()
    assert arrays[f"params/params/decoder/moe_layers/{tail}"].any()


def test_a_router_bias_that_is_a_variable_has_layers_first_and_no_state() -> None:
    origin = source(MODELS["deepseek3"])
    plan = planned(origin)
    assert plan.created == ()
    inner = "DeepSeekMoeBlock_0/MoeBlock_0/gate/bias"
    arrays = {path: array for path, array in built(plan).items() if path.endswith(inner)}
    biases = [
        origin.tensors[Key(f"decoder.layers.{n}.mlp.router.expert_bias", State.WEIGHT)].load()
        for n in (1, 2)
    ]
    assert set(arrays) == {
        f"nnx_aux/model/decoder/moe_layers/{inner}",
        f"nnx_aux/model/mtp_block/mtp_layer_1/mtp_1_transformer_layer/{inner}",
    }
    np.testing.assert_array_equal(arrays[f"nnx_aux/model/decoder/moe_layers/{inner}"], biases)


def without(origin: Source, name: str, *states: State) -> Source:
    kept = {k: t for k, t in origin.tensors.items() if k not in {Key(name, s) for s in states}}
    return dataclasses.replace(origin, tensors=kept)


def test_state_of_the_wrong_optimizer_is_an_error_unless_it_may_be_filled() -> None:
    name = FC1.format(1)
    origin = source(MODELS["llama2"])
    shape = shapes(MODELS["llama2"])[name]
    ones = tensor(np.ones(shape, np.float32))
    extra = {Key(name, state): ones for state in (State.EXP_AVG, State.EXP_AVG_SQ)}
    wrong = changed(without(origin, name, State.MOMENTUM), extra)
    with pytest.raises(CheckpointError) as caught:
        planned(wrong)
    message = str(caught.value)
    assert "mlp/wi_0/kernel: MaxText gives it to muon; no momentum_buffer of" in message
    assert f"{name} (exp_avg): MaxText gives decoder/layers/mlp/wi_1/kernel to muon" in message
    assert "--fill-missing-state" in message
    plan = planned(wrong, fill_missing_state=True)
    path = "opt_state/inner_states/muon/inner_state/0/mu/decoder/layers/mlp/wi_0/kernel"
    assert not built(plan)[path].any()
    assert [row.name for row in plan.created][:1] == [
        "decoder/layers/mlp/wi_0/kernel (momentum_buffer)"
    ]
    assert f"{name} (exp_avg)" in [row.name for row in plan.dropped]


def test_no_optimizer_at_all_points_to_the_option() -> None:
    origin = source(MODELS["llama2"])
    bare = {k: t for k, t in origin.tensors.items() if k.state is State.WEIGHT}
    with pytest.raises(CheckpointError, match=r"it has no optimizer state(.|\n)*--no-optimizer"):
        planned(dataclasses.replace(origin, tensors=bare))
    adam = changed(origin, optimizer="adam")
    with pytest.raises(CheckpointError, match=r"did not train with Muon \(--no-optimizer"):
        planned(adam)
    plan = planned(adam, optimizer=False)
    assert set(plan.state.tree) == {"params"}
    assert plan.spec is None
    assert plan.load_key == "load_parameters_path"
    assert "opt_type" not in plan.maxtext_config


def used(plan: Plan) -> list[Key]:
    return [key for record in plan.records for key in record.sources]


@pytest.mark.parametrize("model", [m for m in MODELS if m != "mistral"])
def test_every_source_tensor_is_used_or_dropped_with_a_reason(model: str) -> None:
    for options in ({}, {"optimizer": False}, {"maxtext_version": "0.2.4"}):
        origin = source(MODELS[model])
        plan = planned(origin, **options)
        taken = {str(key) for key in used(plan)}
        dropped = {row.name for row in plan.dropped}
        assert taken | dropped == {str(key) for key in origin.tensors}
        assert not taken & dropped
        assert all(row.reason for row in plan.dropped)


def test_prediction_layers_lose_their_norm_where_maxtext_has_none() -> None:
    name = "mtp.layers.0.final_layernorm.weight"
    reasons = {
        row.name: row.reason for row in planned("deepseek3", maxtext_version="0.2.4").dropped
    }
    assert "decoder's own norm" in reasons[f"{name} (weight)"]
    assert Key(name, State.WEIGHT) in used(planned("deepseek3"))


def tied(second: np.ndarray) -> Source:
    origin = source(MODELS["llama2_tied"])
    return changed(origin, {Key("output_layer.weight", State.WEIGHT): tensor(second)})


def test_a_second_copy_of_a_tied_embedding_must_be_equal() -> None:
    embedding = source(MODELS["llama2_tied"]).tensors[EMBEDDING].load()
    plan = planned(tied(embedding))
    path = "params/params/token_embedder/embedding"
    assert np.array_equal(built(plan)[path], embedding)
    reasons = {row.name: row.reason for row in plan.dropped}
    assert "second copy" in reasons["output_layer.weight (weight)"]
    with pytest.raises(CheckpointError, match="are tied and differ"):
        built(planned(tied(embedding + 1)))


def test_vocabulary_is_kept_padded_or_cut_on_weights_and_moments() -> None:
    whole = planned("qwen3")
    assert whole.maxtext_config["vocab_size"] == 256
    assert any("takes part in the softmax" in note for note in whole.notes)
    cut = planned("qwen3", vocab_size=250)
    assert cut.maxtext_config["vocab_size"] == 250
    assert any("loss changes" in note for note in cut.notes)
    wide, narrow = built(whole), built(cut)
    for path, array in narrow.items():
        if path.endswith("token_embedder/embedding"):
            assert np.array_equal(array, wide[path][:250])
        elif path.endswith("logits_dense/kernel"):
            assert np.array_equal(array, wide[path][:, :250])
        else:
            assert np.array_equal(array, wide[path])
    for wanted, message in ((249, "has 250 entries"), (257, "has 256 rows"), (0, "has 256 rows")):
        with pytest.raises(CheckpointError, match=message):
            planned("qwen3", vocab_size=wanted)


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


def test_records_are_the_trees_leaves() -> None:
    plan = planned("qwen3_moe")
    assert plan.records == tuple(leaves(plan.state.tree))
    paths = [record.path for record in plan.records]
    assert len(set(paths)) == len(paths)
    experts = next(r for r in plan.records if r.path[-1] == "wi_0")
    assert isinstance(experts, TargetTensor)
    assert experts.transform == "first half > Transpose()"
    assert [key.parameter for key in experts.sources] == [
        f"decoder.layers.{n}.mlp.experts.linear_fc1.weight" for n in range(2)
    ]
