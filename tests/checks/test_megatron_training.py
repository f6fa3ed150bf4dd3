"""What a recorded Megatron run is asked for: models, JSON, tokens."""

from __future__ import annotations

import json

import numpy as np
import pytest

from checks.trainers.megatron.models import MODELS, model
from checks.trainers.megatron.options import RFC, Layout, Optimizer, Sharding
from checks.trainers.megatron.stream import token_stream
from checks.trainers.megatron.training import Training, from_json


def test_a_run_survives_json() -> None:
    for row in MODELS:
        optimizer = Optimizer({"muon_nesterov": False}, RFC, "cosine", 10, 100)
        run = Training(row, optimizer, Layout(2, 2), 30, (0, 20), "torch", 1, "x", True, "rfc")
        assert from_json(json.loads(json.dumps(run.as_json()))) == run
    shared = Training(MODELS[0], layout=Layout(data=2), sharding=Sharding(), twins=("torch",))
    assert from_json(json.loads(json.dumps(shared.as_json()))) == shared
    assert (shared.layout.processes, shared.rows) == (2, MODELS[0].batch // 2)


def test_what_is_shared_wrongly_is_refused() -> None:
    with pytest.raises(ValueError, match="4 rows on 3 data-parallel ranks"):
        _ = Training(MODELS[0], layout=Layout(data=3)).rows
    for changes in ({"reference": "rfc"}, {"start": "iter_0000002"}, {"nudge": 1}):
        with pytest.raises(ValueError, match="starts afresh"):
            Training(MODELS[0], sharding=Sharding(), **changes)
    with pytest.raises(ValueError, match="nudged weight"):
        Training(MODELS[0], dtype="bfloat16", nudge=-1)


def test_models_differ_by_name() -> None:
    assert len({row.name for row in MODELS}) == len(MODELS)
    assert model("qwen3").qk_norm


def test_tokens_are_the_same_everywhere() -> None:
    tokens = token_stream(40, 4, 32, 255)
    assert tokens.shape == (40, 4, 33)
    assert tokens.dtype == np.int32
    assert int(tokens.astype(np.int64).sum()) == 670_247
    np.testing.assert_array_equal(tokens[:10], token_stream(10, 4, 32, 255))


def test_tokens_can_be_guessed_but_not_known() -> None:
    """One of few followers most of the time: the entropy keeps a loss well above nothing."""
    tokens = token_stream(400, 4, 32, 255).astype(np.int64)
    assert tokens.min() >= 0
    assert tokens.max() < 255
    pairs = np.zeros((255, 255))
    np.add.at(pairs, (tokens[:, :, :-1].ravel(), tokens[:, :, 1:].ravel()), 1)
    share = pairs / pairs.sum(axis=1, keepdims=True)
    entropy = -(share * np.log(np.maximum(share, 1e-12))).sum(axis=1).mean()
    assert 1.5 < entropy < 4.0
