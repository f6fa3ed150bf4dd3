"""Runs whose model MaxText does not compute, though every tensor has its place."""

from __future__ import annotations

import dataclasses
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from converters.errors import CheckpointError
from converters.maxtext.plan import Options, plan_target
from converters.maxtext.unmatched import REFUSED, TOLD
from converters.source import Key, State
from tests.converters.megatron_models import MODELS, source
from tests.converters.plans import changed, planned

# A value under which a row acts, where True would be one that it allows.
VALUES: dict[str, Any] = {
    "softmax_type": "off-by-one",
    "activation_func_clamp_value": 3.0,
    "glu_linear_offset": 0.5,
    "moe_router_score_function": "sigmoid",
    "moe_router_topk_scaling_factor": 2.5,
    "moe_router_num_groups": 2,
    "moe_router_topk_limited_devices": 2,
    "moe_router_force_biased": 0.1,
    "heterogeneous_layers_config_path": "layers.json",
}


@pytest.mark.parametrize("row", REFUSED, ids=lambda row: f"{row.name}-{'-'.join(row.of)}")
def test_another_model_of_the_same_tensors_is_refused(row: Any) -> None:
    model = row.of[0] if row.of else "mixtral" if row.name.startswith("moe") else "llama2"
    value = VALUES.get(row.name, True not in row.matched)
    with pytest.raises(CheckpointError, match=f"^{row.name}={value!r}: .*does not compute that"):
        planned(source(MODELS[model] | {row.name: value}))


def test_what_agrees_is_not_refused() -> None:
    exact = {"activation_func_clamp_value": 7.0, "glu_linear_offset": 1.0, "quick_geglu": True}
    planned(source(MODELS["gpt_oss"] | exact))
    planned(source(MODELS["deepseek3"] | {"moe_router_topk_scaling_factor": 2.5}))
    planned(
        source(
            MODELS["llama2"]
            | {row.name: row.matched[0] for row in REFUSED + TOLD if row.name != "swiglu"}
        )
    )


@pytest.mark.parametrize("kinds", ["sinkhorn", ["aux_loss", "sinkhorn"]])
def test_experts_chosen_by_sinkhorn_are_refused(kinds: Any) -> None:
    with pytest.raises(CheckpointError, match="Sinkhorn"):
        planned(source(MODELS["mixtral"] | {"moe_router_load_balancing_type": kinds}))


@pytest.mark.parametrize(
    ("model", "changes", "note"),
    [
        ("llama2", {"fp8": "hybrid"}, "fp8='hybrid' is not reproduced"),
        ("gemma3", {"swiglu": True}, "gated GELU"),
        ("mixtral", {"moe_router_pre_softmax": True}, "moe_router_pre_softmax=True"),
        ("deepseek2", {}, "moe_router_pre_softmax is off"),
        ("mixtral", {"moe_aux_loss_coeff": [0.01, 0.1]}, "one balance loss"),
        (
            "qwen3",
            {"apply_layernorm_1p": True, "apply_wd_to_qk_layernorm": True},
            "decay pulls W towards -1",
        ),
    ],
)
def test_what_differs_in_the_loss_or_the_rounding_is_told(
    model: str, changes: dict[str, Any], note: str
) -> None:
    notes = planned(source(MODELS[model] | changes)).notes
    assert [line for line in notes if note in line], notes


@pytest.mark.parametrize(
    "changes",
    [
        {"lr": "fast"},
        {"seq_length": [32]},
        {"min_lr": {"a": 1}},
        {"num_layers": True},
        {"train_iters": "many"},
        {"norm_epsilon": "small"},
        {"moe_aux_loss_coeff": "x"},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_values_of_another_kind_end_in_a_message(changes: dict[str, Any]) -> None:
    model = "mixtral" if "moe_aux_loss_coeff" in changes else "llama2"
    with pytest.raises(CheckpointError, match="the arguments"):
        planned(changed(source(MODELS[model]), **changes))


def test_a_run_that_did_no_step_has_no_state_to_go_on_from() -> None:
    origin = source(MODELS["llama2"])
    fresh = dataclasses.replace(origin, run=dataclasses.replace(origin.run, iteration=0))
    with pytest.raises(CheckpointError, match=r"iteration 0.*--no-optimizer"):
        planned(fresh)
    assert planned(fresh, optimizer=False).state.step == 1


def test_a_vocabulary_that_the_tensors_cannot_hold_is_refused() -> None:
    with pytest.raises(CheckpointError, match=r"vocab_size=1000 .*256 rows"):
        planned(changed(source(MODELS["llama2"]), vocab_size=1000))


@pytest.mark.parametrize("dtype", [np.float64, np.uint8, np.int32, ml_dtypes.float8_e4m3fn])
def test_numbers_that_float32_does_not_hold_are_refused(dtype: Any) -> None:
    """Scaled formats would need their scales, and wider ones would be rounded."""
    origin = source(MODELS["llama2"])
    for state in (State.WEIGHT, State.MOMENTUM):
        key = Key("decoder.layers.0.mlp.linear_fc2.weight", state)
        tensors = dict(origin.tensors)
        tensors[key] = dataclasses.replace(tensors[key], dtype=np.dtype(dtype))
        with pytest.raises(CheckpointError, match=rf"linear_fc2.*{np.dtype(dtype).name}"):
            plan_target(dataclasses.replace(origin, tensors=tensors), Options())
