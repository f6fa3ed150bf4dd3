"""There and back: a MaxText state makes the checkpoint it came from, bit for bit."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import ml_dtypes
import numpy as np
import pytest

from converters.errors import CheckpointError
from converters.mapping import Path
from converters.maxtext.plan import Options, plan_target
from converters.maxtext.reverse import plan_source
from converters.source import Key, Source, State
from tests.converters.megatron_models import MODELS, random, source, tensor

State_ = Mapping[Path, np.ndarray]


def converted(origin: Source, **options: object) -> tuple[object, dict[Path, np.ndarray]]:
    plan = plan_target(origin, Options(**options))  # type: ignore[arg-type]
    return plan, {record.path: record.build() for record in plan.records}


def check_bits(origin: Source, made: Mapping[Key, object]) -> None:
    assert list(made) == list(origin.tensors)
    for key, build in made.items():
        expected, back = origin.tensors[key].load(), build()  # type: ignore[operator]
        assert back.dtype == expected.dtype, key
        assert back.shape == expected.shape, key
        assert back.tobytes() == expected.tobytes(), key


@pytest.mark.parametrize("layout", ["nnx", "linen"])
@pytest.mark.parametrize("scan", [True, False], ids=["scan", "unscan"])
@pytest.mark.parametrize("model", MODELS)
def test_round_trip_is_bit_exact(model: str, scan: bool, layout: str) -> None:
    origin = source(MODELS[model])
    plan, state = converted(origin, scan=scan, layout=layout, maxtext_version="0.2.4")
    check_bits(origin, plan_source(plan, origin, state.__getitem__))  # type: ignore[arg-type]


def mixed_precision(model: str) -> Source:
    """bfloat16 weights beside their float32 masters."""
    origin = source(MODELS[model])
    tensors = {}
    for key, value in origin.tensors.items():
        if key.state is State.WEIGHT and not key.parameter.endswith("expert_bias"):
            tensors[key] = tensor(value.load().astype(ml_dtypes.bfloat16))
            tensors[Key(key.parameter, State.MASTER)] = value
        else:
            tensors[key] = value
    return dataclasses.replace(origin, tensors=tensors)


@pytest.mark.parametrize("model", ["llama2", "deepseek3", "gemma2"])
def test_masters_are_converted_and_weights_are_their_roundings(model: str) -> None:
    origin = mixed_precision(model)
    plan, state = converted(origin)
    check_bits(origin, plan_source(plan, origin, state.__getitem__))  # type: ignore[arg-type]
    dropped = [row.reason for row in plan.dropped]  # type: ignore[attr-defined]
    assert "its fp32 master is converted instead" in dropped
    exact = plan_target(source(MODELS[model]), Options())
    for record in exact.records:
        assert np.array_equal(record.build(), state[record.path]), record.path


def test_a_trained_state_reaches_weight_master_and_momentum() -> None:
    origin = mixed_precision("llama2")
    plan, state = converted(origin)
    changed = {path: array + array.dtype.type(1) for path, array in state.items()}
    made = plan_source(plan, origin, changed.__getitem__)  # type: ignore[arg-type]
    name = "decoder.layers.1.mlp.linear_fc2.weight"
    master, momentum = (origin.tensors[Key(name, s)].load() for s in (State.MASTER, State.MOMENTUM))
    assert np.array_equal(made[Key(name, State.MASTER)](), master + np.float32(1))
    assert np.array_equal(made[Key(name, State.MOMENTUM)](), momentum + np.float32(1))
    rounded = (master + np.float32(1)).astype(ml_dtypes.bfloat16)
    assert np.array_equal(made[Key(name, State.WEIGHT)](), rounded)


def test_folded_queries_unfold_on_the_way_back() -> None:
    origin = source(MODELS["llama2"])
    plan, state = converted(origin)
    changed = {path: array * array.dtype.type(2) for path, array in state.items()}
    made = plan_source(plan, origin, changed.__getitem__)  # type: ignore[arg-type]
    key = Key("decoder.layers.0.self_attention.linear_qkv.weight", State.WEIGHT)
    np.testing.assert_array_equal(made[key](), 2 * origin.tensors[key].load())


@pytest.mark.parametrize("convention", ["ema", "sum"])
def test_momentum_of_the_other_convention_comes_back(convention: str) -> None:
    origin = source(MODELS["qwen3"], momentum=convention)  # type: ignore[arg-type]
    plan, state = converted(origin)
    check_bits(origin, plan_source(plan, origin, state.__getitem__))  # type: ignore[arg-type]


def test_a_cut_vocabulary_comes_back_with_the_old_padding() -> None:
    origin = source(MODELS["qwen3"])
    plan, state = converted(origin, vocab_size=250)
    check_bits(origin, plan_source(plan, origin, state.__getitem__))  # type: ignore[arg-type]


def test_what_the_conversion_dropped_is_the_checkpoints_own() -> None:
    origin = source(MODELS["deepseek3"])
    plan, state = converted(origin, maxtext_version="0.2.4", optimizer=False)
    check_bits(origin, plan_source(plan, origin, state.__getitem__))  # type: ignore[arg-type]


def test_a_state_of_another_model_is_refused() -> None:
    origin = source(MODELS["qwen3"])
    plan, state = converted(origin)
    path = ("params", "params", "decoder", "layers", "mlp", "wo", "kernel")
    state[path] = random(Key("x", State.WEIGHT), (96, 3, 64))
    key = Key("decoder.layers.0.mlp.linear_fc2.weight", State.WEIGHT)
    with pytest.raises(CheckpointError, match=r"mlp/wo/kernel: shape \[96, 3, 64\], expected"):
        plan_source(plan, origin, state.__getitem__)[key]()  # type: ignore[arg-type]
