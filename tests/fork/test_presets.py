"""Presets against what their publications say, and against each other."""

from __future__ import annotations

import pytest

from muon_fork.presets import DEFAULT_REFERENCE, PRESETS, preset
from muon_fork.spec import SpecError


def test_names_are_unique_and_the_default_is_one_of_them() -> None:
    names = [row.name for row in PRESETS]
    assert len(set(names)) == len(names)
    assert DEFAULT_REFERENCE == "megatron_rfc"
    assert set(names) >= {
        "optax",
        "megatron",
        "megatron_rfc",
        "moonlight",
        "keller_jordan",
        "deepseek_v4",
    }


def test_unknown_preset_lists_the_known_ones() -> None:
    with pytest.raises(SpecError, match=r"nemo.*megatron_rfc"):
        preset("nemo")


# (momentum, Nesterov, bias correction, coefficients, steps, scale, factor): one line of each source
PUBLISHED = {
    "optax": ("ema", True, True, "simple", 5, "width_transfer", 1.0),
    "megatron": ("ema", False, False, "quintic", 5, "spectral", 1.0),
    "megatron_rfc": ("sgd", True, False, "simple", 5, "consistent_rms", 0.2),
    "moonlight": ("sgd", True, False, "simple", 5, "consistent_rms", 0.2),
    "keller_jordan": ("ema", True, False, "simple", 5, "shape_scaling", 1.0),
    "deepseek_v4": ("sgd", True, False, "deepseekv4", 10, "consistent_rms", 0.18),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_arithmetic(name: str) -> None:
    spec = preset(name)
    assert (
        spec.nesterov_style,
        spec.nesterov,
        spec.bias_correction,
        spec.coefficient_type,
        spec.num_ns_steps,
        spec.scale_mode,
        spec.extra_scale_factor,
    ) == PUBLISHED[name]


def test_only_optax_gives_adam_nesterov_and_decays_everything() -> None:
    for row in PRESETS:
        optax = row.name == "optax"
        assert row.spec.adam_nesterov == optax
        assert row.spec.decay_all_adam_params == optax
        assert row.spec.all_matrices != optax
        assert row.spec.unfold_scaled_weights != optax


def test_granularity_of_the_two_megatrons() -> None:
    core, rfc = preset("megatron"), preset("megatron_rfc")
    assert (core.qkv_granularity, core.split_linear_fc1) == ("projection", False)
    assert (rfc.qkv_granularity, rfc.split_linear_fc1, rfc.split_mla_up_proj) == (
        "head",
        True,
        True,
    )
    assert (rfc.batch_update, rfc.batch_update_size) == (True, 16)
