"""S2: which parameters decay."""

from __future__ import annotations

import numpy as np
import pytest

from muon_fork.presets import preset
from tests.fork.rfc.steps import (
    ATTENTION,
    DECAY,
    LEARNING_RATE,
    MATRIX,
    RFC,
    random_tree,
    run,
    zeros_like,
)

DECAYING = {
    "token_embedder/embedding": (16, 8),
    "decoder/logits_dense/kernel": (8, 16),
    "decoder/layers/moe_block/gate/kernel": (8, 2, 4),
}
NORMS = {
    "decoder/decoder_norm/scale": (8,),
    "decoder/layers/pre_self_attention_layer_norm/scale": (8, 2),
    f"{ATTENTION}/query_norm/scale": (4, 2),
}
BIASES = {f"{ATTENTION}/query/bias": (2, 2, 4), "decoder/layers/mlp/wo/bias": (8, 2)}


@pytest.mark.parametrize("norms_decay", [False, True])
def test_s2_decay_mask(norms_decay: bool) -> None:
    """With zero gradients a parameter moves by its decay alone."""
    spec = RFC.replace(weight_decay_norm_params=norms_decay, include_routers=False)
    before = random_tree({**DECAYING, **NORMS, **BIASES, **MATRIX}, 0)
    after, _ = run("qwen3", spec, before, zeros_like(before))
    for path, value in before.items():
        decays = path in DECAYING or path in MATRIX or (norms_decay and path in NORMS)
        expected = value * (1 - LEARNING_RATE * DECAY) if decays else value
        assert np.allclose(after[path], expected, rtol=1e-14, atol=0), path


def test_s2_optax_decays_biases_too() -> None:
    before = random_tree(BIASES, 0)
    spec = preset("optax").replace(adam_weight_decay=DECAY)
    after, _ = run("qwen3", spec, before, zeros_like(before))
    for path, value in before.items():
        assert np.allclose(after[path], value * (1 - LEARNING_RATE * DECAY)), path
