"""States in float64: refused as they are, carried without rounding when asked to."""

from __future__ import annotations

import numpy as np
import pytest

from converters.errors import CheckpointError
from converters.source import Source, State
from tests.converters.megatron_models import MODELS, source, tensor
from tests.converters.plans import built, changed, planned


def wide(name: str) -> Source:
    """The random model with digits that float32 does not have."""
    origin = source(MODELS[name])
    longer = {key: t.load().astype(np.float64) * 1.1 for key, t in origin.tensors.items()}
    return changed(origin, {key: tensor(array) for key, array in longer.items()})


def test_float64_is_refused() -> None:
    with pytest.raises(CheckpointError, match=r"float64.*expected one of float32"):
        planned(wide("qwen3"))


@pytest.mark.parametrize("name", ["qwen3", "llama2"])
def test_float64_is_not_rounded(name: str) -> None:
    plan = planned(wide(name), float64=True, scan=False)
    arrays = built(plan)
    floats = {path: array for path, array in arrays.items() if array.dtype != np.int32}
    assert {array.dtype.name for array in floats.values()} == {"float64"}
    for path, array in floats.items():
        assert (array != array.astype(np.float32)).mean() > 0.8, path
    coefficients = next(a for path, a in floats.items() if path.endswith("ns_coeffs"))
    assert plan.spec is not None
    np.testing.assert_array_equal(coefficients, np.asarray(plan.spec.ns_coeffs))


def test_values_are_the_source_s() -> None:
    """The embedding and its first moment move without a change of shape."""
    origin = wide("qwen3")
    arrays = built(planned(origin, float64=True))
    found = {k.state: t.load() for k, t in origin.tensors.items() if "word_emb" in k.parameter}
    by_state = {State.WEIGHT: "params/params/", State.EXP_AVG: "/mu/", State.EXP_AVG_SQ: "/nu/"}
    for state, part in by_state.items():
        (path,) = [p for p in arrays if part in p and p.endswith("token_embedder/embedding")]
        np.testing.assert_array_equal(arrays[path], found[state])


def test_the_configuration_asks_for_float64() -> None:
    config = planned(wide("qwen3"), float64=True).maxtext_config
    assert config["dtype"] == config["weight_dtype"] == config["grad_dtype"] == "float64"
    assert config["cast_logits_to_fp32"] is False
    usual = planned("qwen3").maxtext_config
    assert usual["dtype"] == usual["weight_dtype"] == "float32"
    assert not {"grad_dtype", "cast_logits_to_fp32"} & usual.keys()
