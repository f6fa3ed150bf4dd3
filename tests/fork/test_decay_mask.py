"""Who decays in the AdamW branch."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest
from flax import linen, nnx

from muon_fork.maxtext import adam_weight_decay_mask
from muon_fork.presets import preset
from muon_fork.spec import MuonSpec
from tests.fork.param_trees import FAMILIES, LAYER_AXES, LAYOUTS, config, leaves

MEGATRON = preset("megatron")
NORMS = MEGATRON.replace(weight_decay_norm_params=True)
QK_NORMS = MEGATRON.replace(apply_wd_to_qk_layernorm=True)

# path, shape -> decays under (megatron, norms decay, query and key norms decay)
TABLE: tuple[tuple[str, tuple[int, ...], tuple[bool, bool, bool]], ...] = (
    ("token_embedder/embedding", (256, 64), (True, True, True)),
    ("decoder/logits_dense/kernel", (64, 256), (True, True, True)),
    ("decoder/logits_dense/bias", (256,), (False, False, False)),
    ("decoder/decoder_norm/scale", (64,), (False, True, False)),
    ("decoder/layers/pre_self_attention_layer_norm/scale", (64, 2), (False, True, False)),
    ("decoder/layers/self_attention/query_norm/scale", (16, 2), (False, True, True)),
    ("decoder/layers/self_attention/key_norm/scale", (16, 2), (False, True, True)),
    # Megatron's q_layernorm, of MLA too; kv_layernorm is none of the query and key norms.
    ("decoder/moe_layers/self_attention/q_norm/scale", (16, 2), (False, True, True)),
    ("decoder/moe_layers/self_attention/kv_norm/scale", (16, 2), (False, True, False)),
    ("decoder/layers/self_attention/query/bias", (4, 2, 16), (False, False, False)),
    ("decoder/layers_0/GptOssMlp/wi_0_bias", (4, 48), (False, False, False)),
    ("decoder/layers_0/GptOssAttention/sinks", (4,), (False, False, False)),
    ("decoder/layers/layers_0/GptOssAttention/sinks", (4, 2), (False, False, False)),
    ("decoder/layers_0/attention/A_log", (4,), (False, False, False)),
    ("decoder/layers/local_layers/attention/dt_bias", (4, 1, 3), (False, False, False)),
    ("decoder/hc_head/hc_base", (4,), (False, False, False)),
    ("decoder/layers_0/mhc_mlp/res_beta", (4, 4), (False, False, False)),
    ("decoder/layers_0/attention/conv1d/kernel", (4, 1, 64), (True, True, True)),
    ("decoder/layers/moe_block/gate/kernel", (64, 2, 4), (True, True, True)),
    ("decoder/position_embedder/embedding", (32, 64), (True, True, True)),
    # No rule knows these: a matrix decays, a vector does not.
    ("decoder/layers/new_block/table", (64, 2, 4), (True, True, True)),
    ("decoder/layers/new_block/gain", (64, 2), (False, False, False)),
    ("decoder/layers_0/new_block/biased", (64, 4), (True, True, True)),
)


def nested(rows: Any) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for path, leaf in rows:
        *parents, name = path.split("/") if isinstance(path, str) else path
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[name] = leaf
    return tree


def mask_of(spec: MuonSpec, params: Any) -> Any:
    mask = adam_weight_decay_mask(config("llama2", spec))
    assert mask is not None
    return mask(params)


@pytest.mark.parametrize("column", [0, 1, 2], ids=["megatron", "norms", "qk_norms"])
def test_table(column: int) -> None:
    params = nested((path, jnp.zeros(shape)) for path, shape, _ in TABLE)
    expected = nested((path, decays[column]) for path, _, decays in TABLE)
    assert mask_of((MEGATRON, NORMS, QK_NORMS)[column], {"params": params}) == {"params": expected}


def test_optax_has_no_mask() -> None:
    assert adam_weight_decay_mask(config("llama2", preset("optax"))) is None


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_megatron_never_decays_what_is_one_dimensional(family: str, layout: str) -> None:
    rows = leaves(family, layout)
    params = nested((leaf.path, jax.ShapeDtypeStruct(leaf.shape, jnp.float32)) for leaf in rows)
    mask = mask_of(MEGATRON, params)
    for leaf in rows:
        node = mask
        for name in leaf.path:
            node = node[name]
        if leaf.axes is not None:
            source = [name for name in leaf.axes if name not in LAYER_AXES]
            assert node == (len(source) > 1) or leaf.path[-1] in EXCEPTIONS, leaf.name


# Matrices in MaxText whose source is a vector per head or per expert, or is a static bias.
EXCEPTIONS = ("bias", "wi_0_bias", "wi_1_bias", "wo_bias", "res_beta")


PARAMS = {
    "decoder": {
        "decoder_norm": {"scale": jnp.ones((8,))},
        "layers": {"mlp": {"wo": {"kernel": jnp.ones((4, 2, 8)), "bias": jnp.ones((8, 2))}}},
    },
    "token_embedder": {"embedding": jnp.ones((16, 8))},
}
KEPT = {"scale": False, "bias": False, "embedding": True, "kernel": True}


def boxed(params: Any) -> Any:
    """As Linen keeps them: every leaf in a box that is itself a tree."""
    return jax.tree.map(
        lambda leaf: linen.LogicallyPartitioned(leaf, (None,) * leaf.ndim), {"params": params}
    )


def state(params: Any) -> Any:
    return nnx.State(jax.tree.map(nnx.Param, params))


def masked(params: Any) -> Any:
    """As ``optax.partition`` hands them to the AdamW branch."""
    kernel = params["decoder"]["layers"]["mlp"]["wo"] | {"kernel": optax.MaskedNode()}
    return params | {"decoder": params["decoder"] | {"layers": {"mlp": {"wo": kernel}}}}


@pytest.mark.parametrize("form", [boxed, state, masked, lambda params: params])
def test_decay_reaches_exactly_the_masked_leaves(form: Any) -> None:
    """Through optax itself: a zero gradient moves a parameter only by its decay."""
    params = form(PARAMS)
    mask = adam_weight_decay_mask(config("llama2", MEGATRON))
    optimizer = optax.adamw(1.0, weight_decay=0.5, mask=mask)
    gradients = jax.tree.map(jnp.zeros_like, params)
    updates, _ = optimizer.update(gradients, optimizer.init(params), params)
    seen = 0
    for path, update in jax.tree_util.tree_flatten_with_path(updates)[0]:
        name = next(k.key for k in reversed(path) if hasattr(k, "key"))
        assert float(jnp.max(jnp.abs(update))) == (0.5 if KEPT[name] else 0.0), path
        seen += 1
    assert seen == (3 if form is masked else 4)
