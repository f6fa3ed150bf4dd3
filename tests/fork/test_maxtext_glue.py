"""What a migrated checkout gets from its configuration."""

from __future__ import annotations

import inspect
import logging
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import muon_fork
from muon_fork.dimension_numbers import MuonDimensionNumbers
from muon_fork.maxtext import (
    UNKNOWN,
    adam_weight_decay_mask,
    dimension_rules,
    muon_kwargs,
    routing_table,
)
from muon_fork.presets import PRESETS, preset
from muon_fork.spec import SpecError
from tests.fork.param_trees import FAMILIES, config, leaves


@pytest.mark.parametrize("row", PRESETS, ids=lambda row: row.name)
def test_kwargs_override_what_the_checkout_passed(row: Any) -> None:
    cfg = config("llama2", row.spec)
    kwargs = {"consistent_rms": cfg.muon_consistent_rms, "eps": cfg.adam_eps, **muon_kwargs(cfg)}
    assert set(kwargs) <= set(inspect.signature(muon_fork.muon).parameters)
    assert kwargs["eps"] == row.spec.ns_eps
    assert kwargs["consistent_rms"] is None
    assert kwargs["extra_scale_factor"] == row.spec.extra_scale_factor
    muon_fork.muon(0.1, **kwargs)


def test_scale_of_the_checkout_is_applied_once() -> None:
    """``consistent_rms`` of the configuration must not multiply the scale a second time."""
    spec = preset("megatron_rfc").replace(ns_dtype="float32", nesterov=False)
    params = {"w": jnp.zeros((4, 6))}
    update, _ = step(muon_fork.muon(1.0, **muon_kwargs(config("llama2", spec))), params)
    rms = float(jnp.sqrt(jnp.mean(update["w"] ** 2)))
    assert rms == pytest.approx(0.2 * jnp.sqrt(6 / 6), rel=0.25)


def step(optimizer: Any, params: Any) -> Any:
    gradients = jax.tree.map(
        lambda p: jax.random.normal(jax.random.key(0), p.shape, p.dtype), params
    )
    return optimizer.update(gradients, optimizer.init(params), params)


def test_rules_answer_as_the_table_does() -> None:
    rules = dimension_rules(config("llama2", preset("megatron_rfc")))
    path = ("params", "decoder", "layers", "self_attention", "query", "kernel")
    assert rules(path, (64, 2, 4, 16)) == MuonDimensionNumbers((0,), (-1,), update_scale=0.25)
    assert rules(("params", "decoder", "decoder_norm", "scale")) is None


def test_unknown_paths_are_logged_once_for_all_layers(caplog: pytest.LogCaptureFixture) -> None:
    rules = dimension_rules(config("llama2", preset("optax")))
    with caplog.at_level(logging.WARNING):
        for layer in range(3):
            path = ("decoder", f"layers_{layer}", "new_block", "kernel")
            assert rules(path, (4, 4)) is UNKNOWN
        assert rules(("decoder", "other", "kernel"), (4, 4)) is UNKNOWN
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2
    assert "decoder/layers_0/new_block/kernel" in caplog.text
    assert "decoder/other/kernel" in caplog.text


@pytest.mark.parametrize("family", FAMILIES)
def test_muon_takes_every_familys_tree(family: str) -> None:
    """Shapes only: joins, splits and scales of a whole model fit together, and state is stable."""
    spec = preset("megatron").replace(unfold_scaled_weights=family != "llama2_fused")
    cfg = config(family, spec)
    rules = dimension_rules(cfg)
    params = abstract_params(family)
    dims = jax.tree_util.tree_map_with_path(
        lambda path, leaf: rules([key.key for key in path], leaf.shape), params
    )
    optimizer = muon_fork.muon(
        0.1,
        muon_weight_dimension_numbers=dims,
        **muon_kwargs(cfg),
        adam_weight_decay_mask=adam_weight_decay_mask(cfg),
    )
    state = jax.eval_shape(optimizer.init, params)
    updates, after = jax.eval_shape(optimizer.update, params, state, params)
    assert jax.tree.structure(updates) == jax.tree.structure(params)
    same = jax.tree.map(lambda a, b: (a.shape, a.dtype) == (b.shape, b.dtype), state, after)
    assert all(jax.tree.leaves(same))


def abstract_params(family: str, layout: str = "scan") -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for leaf in leaves(family, layout):
        node = tree
        for name in leaf.path[:-1]:
            node = node.setdefault(name, {})
        node[leaf.path[-1]] = jax.ShapeDtypeStruct(leaf.shape, jnp.float32)
    return {"params": tree}


def test_incomplete_configuration_is_refused() -> None:
    cfg = config("llama2", preset("optax"))
    del cfg.muon_ns_eps
    for function in (muon_kwargs, adam_weight_decay_mask, dimension_rules):
        with pytest.raises(SpecError, match="muon_ns_eps"):
            function(cfg)


def test_routing_table_has_one_row_per_parameter() -> None:
    rows = leaves("qwen3", "unscan")
    cfg = config("qwen3", preset("megatron"))
    table = routing_table(abstract_params("qwen3", "unscan"), cfg)
    assert sorted(row.path for row in table) == sorted(f"params/{leaf.name}" for leaf in rows)
    by_path = {row.path: row for row in table}
    norm = by_path["params/decoder/decoder_norm/scale"]
    assert (norm.shape, norm.answer, norm.decays) == ((64,), None, False)
    gate = by_path["params/decoder/layers_0/mlp/wi_0/kernel"]
    assert gate.answer.join == "decoder/layers_0/mlp/linear_fc1"
