"""MuonSpec: validation, derived values, and the contract with muon()."""

from __future__ import annotations

import dataclasses
import inspect
import subprocess
import sys
from typing import Any

import pytest

import muon_fork
from muon_fork.coefficients import COEFFICIENT_SETS, SIMPLE, expand_coefficients
from muon_fork.presets import PRESETS, preset
from muon_fork.spec import MuonSpec, SpecError

FIELDS = dataclasses.fields(MuonSpec)


def test_defaults_are_optax() -> None:
    assert MuonSpec() == preset("optax")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("nesterov_style", "classic"),
        ("coefficient_type", "cubic5"),
        ("ns_eps_mode", "max"),
        ("ns_dtype", "float16"),
        ("scale_mode", "frobenius"),
        ("preconditioning", "none"),
        ("beta", 1.0),
        ("beta", -0.1),
        ("adam_b1", 1.0),
        ("adam_b2", 2.0),
        ("ns_eps", -1e-7),
        ("adam_eps", -1.0),
        ("weight_decay", -0.1),
        ("clip_grad", -1.0),
        ("batch_update_size", -1),
        ("extra_scale_factor", 0.0),
        ("num_ns_steps", 0),
    ],
)
def test_bad_values_name_field_and_value(field: str, value: Any) -> None:
    with pytest.raises(SpecError, match=field) as error:
        MuonSpec(**{field: value})
    assert str(value) in str(error.value)


def test_heads_need_projections() -> None:
    with pytest.raises(SpecError, match="split_qkv"):
        MuonSpec(split_head=True, split_qkv=False)


@pytest.mark.parametrize(
    ("split_qkv", "split_head", "granularity"),
    [(False, False, "fused"), (True, False, "projection"), (True, True, "head")],
)
def test_granularity(split_qkv: bool, split_head: bool, granularity: str) -> None:
    spec = MuonSpec(split_qkv=split_qkv, split_head=split_head)
    assert spec.qkv_granularity == granularity


def test_unknown_field_is_named() -> None:
    with pytest.raises(SpecError, match="momentum"):
        MuonSpec().replace(momentum=0.9)


def test_differences_lists_both_values_in_order() -> None:
    changed = MuonSpec().replace(ns_eps=1e-7, beta=0.9)
    assert list(MuonSpec().differences(changed).items()) == [
        ("beta", (0.95, 0.9)),
        ("ns_eps", (1e-8, 1e-7)),
    ]


def test_constant_schedule_is_one_triple() -> None:
    assert MuonSpec().ns_coeffs == SIMPLE
    assert len(MuonSpec(coefficient_type="quintic").ns_coeffs) == 5
    assert MuonSpec(coefficient_type="deepseekv4", num_ns_steps=8).ns_coeffs == SIMPLE


@pytest.mark.parametrize("steps", [1, 5, 8, 13])
@pytest.mark.parametrize("name", COEFFICIENT_SETS)
def test_schedules_stretch_by_their_rule(name: str, steps: int) -> None:
    table = COEFFICIENT_SETS[name]
    rows = expand_coefficients(name, steps)
    assert len(rows) == steps
    for i, row in enumerate(rows):
        last = len(table.rows) - 1
        index = min(i, last) if table.schedule == "repeat_last" else i % len(table.rows)
        assert row == table.rows[index]


def test_buffer_scale_is_one_over_one_minus_beta() -> None:
    assert MuonSpec().buffer_scale == 1.0
    assert MuonSpec(nesterov_style="sgd").buffer_scale == pytest.approx(20.0)


@pytest.mark.parametrize("row", PRESETS, ids=lambda row: row.name)
def test_muon_takes_every_keyword(row: Any) -> None:
    parameters = inspect.signature(muon_fork.muon).parameters
    kwargs = row.spec.muon_kwargs()
    assert set(kwargs) <= set(parameters)
    order = [name for name in parameters if name in kwargs]
    assert list(kwargs) == order
    muon_fork.muon(0.1, **kwargs)


def test_every_field_reaches_muon_or_the_rules() -> None:
    """A field that nothing reads would be a silent switch."""
    used_elsewhere = {
        "coefficient_type",  # ns_coeffs
        "split_qkv",
        "split_head",
        "split_linear_fc1",
        "split_mla_up_proj",
        "split_attention_gate",
        "include_routers",
        "all_matrices",
        "unfold_scaled_weights",
        "adam_only",
        "weight_decay_norm_params",
        "apply_wd_to_qk_layernorm",
        "decay_all_adam_params",
    }
    renamed = {"num_ns_steps": "ns_steps", "ns_eps": "eps", "ns_eps_mode": "eps_mode"}
    kwargs = MuonSpec().muon_kwargs()
    for field in FIELDS:
        if field.name not in used_elsewhere:
            assert renamed.get(field.name, field.name) in kwargs, field.name


def test_reading_a_spec_needs_only_the_standard_library() -> None:
    """The tools read the spec before they know whether JAX is there."""
    code = (
        "import sys, muon_fork; muon_fork.preset('megatron'); muon_fork.CONFIG_KEYS;"
        "muon_fork.from_megatron_args; muon_fork.ModelDimensions;"
        "print([m for m in ('jax', 'optax', 'numpy', 'torch') if m in sys.modules])"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60
    )
    assert run.stdout.strip() == "[]"
