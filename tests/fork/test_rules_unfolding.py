"""Weights that MaxText stores scaled, routed as the weights the source trainer holds."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

from muon_fork.dimension_numbers import MuonDimensionNumbers
from muon_fork.model_dimensions import (
    EMBEDDING_STORED_SCALED,
    QUERY_STORED_SCALED,
    ModelDimensions,
)
from muon_fork.rules import dimension_numbers_for
from muon_fork.spec import SpecError
from tests.fork.param_trees import FAMILIES, dimensions
from tests.fork.routing import SPECS, answers

ATTENTION = ("decoder", "layers_0", "self_attention")


def test_only_scaled_blocks_unfold() -> None:
    for family in FAMILIES:
        if family == "llama2_fused":
            continue
        model = dimensions(family)
        for leaf, answer in answers(family, "unscan", SPECS["megatron"]).items():
            scale = answer.update_scale if isinstance(answer, MuonDimensionNumbers) else 1.0
            expected = 1.0
            if model.decoder_block in QUERY_STORED_SCALED and "query" in leaf.path:
                expected = 1 / math.sqrt(model.head_dim)
            if model.decoder_block in EMBEDDING_STORED_SCALED and "embedding" in leaf.path:
                expected = math.sqrt(model.emb_dim)
            assert scale == pytest.approx(expected), leaf.name


def test_without_muon_every_leaf_is_adams_and_scales_stay() -> None:
    spec = SPECS["megatron"].replace(adam_only=True)
    for family in FAMILIES:
        if family == "llama2_fused":
            continue
        with_muon = answers(family, "unscan", SPECS["megatron"])
        for leaf, answer in answers(family, "unscan", spec).items():
            other = with_muon[leaf]
            scale = other.update_scale if isinstance(other, MuonDimensionNumbers) else 1.0
            adam = MuonDimensionNumbers(update_scale=scale, optimizer="adam")
            assert answer == (None if scale == 1.0 else adam), leaf.name


def test_folded_query_bias_is_unfolded() -> None:
    model = dimensions("llama2")
    path = (*ATTENTION, "query", "bias")
    answer = dimension_numbers_for(path, model, SPECS["megatron"], (4, 16))
    assert answer == MuonDimensionNumbers(update_scale=0.25, optimizer="adam")
    assert dimension_numbers_for(path, model, SPECS["optax"], (4, 16)) is None


def test_gemma2_27b_divides_by_144() -> None:
    keys = {
        "model_name": "gemma2-27b",
        "decoder_block": "gemma2",
        "emb_dim": 4608,
        "num_query_heads": 32,
        "num_kv_heads": 16,
        "head_dim": 128,
        "attention_type": "global",
        "qk_nope_head_dim": 0,
        "qk_rope_head_dim": 0,
        "v_head_dim": 0,
        "param_scan_axis": 1,
    }
    model = ModelDimensions.from_config(SimpleNamespace(**keys))
    assert model.query_scale == pytest.approx(1 / 12)
    assert model.embedding_scale == pytest.approx(math.sqrt(4608))
    del keys["head_dim"]
    with pytest.raises(SpecError, match="head_dim"):
        ModelDimensions.from_config(SimpleNamespace(**keys))


def test_fused_query_cannot_be_unfolded() -> None:
    path = (*ATTENTION, "qkv_proj", "kernel")
    with pytest.raises(SpecError, match=r"qkv_proj.*muon_unfold_scaled_weights=False"):
        dimension_numbers_for(path, dimensions("llama2_fused"), SPECS["megatron"], (64, 8, 16))


def test_unknown_block_is_an_error_only_when_unfolding() -> None:
    model = ModelDimensions("brand_new", 64, 4, 2, 16)
    path = (*ATTENTION, "query", "kernel")
    whole = MuonDimensionNumbers((0,), (-2, -1))
    assert dimension_numbers_for(path, model, SPECS["optax"], (64, 4, 16)) == whole
    with pytest.raises(SpecError, match="brand_new"):
        dimension_numbers_for(path, model, SPECS["megatron"], (64, 4, 16))
