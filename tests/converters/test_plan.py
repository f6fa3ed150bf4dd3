"""What a plan settles: trees per version, owners, counts, momentum, vocabulary, records."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from converters.errors import CheckpointError
from converters.maxtext.plan import Plan
from converters.maxtext.versions import VERSIONS
from converters.source import Key, Source, State
from converters.target import TargetTensor, leaves
from tests.converters.megatron_models import MODELS, shapes, source, tensor
from tests.converters.plans import EMBEDDING, FC1, built, changed, planned


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
    other = changed(origin, optimizer="sgd")
    with pytest.raises(CheckpointError, match=r"neither with Muon nor with Adam \(--no-optimizer"):
        planned(other)
    plan = planned(other, optimizer=False)
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
