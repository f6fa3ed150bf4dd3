"""Spec to configuration keys and back."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest

from muon_fork.config_keys import (
    CONFIG_KEYS,
    CONSISTENT_RMS,
    TRAINER_CLIP,
    config_values,
    spec_from_config,
)
from muon_fork.presets import PRESETS, preset
from muon_fork.spec import MuonSpec, SpecError


def namespace(spec: MuonSpec, **keys: Any) -> Any:
    return SimpleNamespace(**{**config_values(spec), **keys})


def test_every_field_has_exactly_one_key() -> None:
    assert sorted(row.field for row in CONFIG_KEYS) == sorted(
        field.name for field in dataclasses.fields(MuonSpec)
    )
    keys = [row.key for row in CONFIG_KEYS]
    assert len(set(keys)) == len(keys)
    assert CONSISTENT_RMS not in keys


def test_kinds_are_the_types_of_the_fields() -> None:
    for row in CONFIG_KEYS:
        assert type(getattr(MuonSpec(), row.field)) is row.kind, row.key


def test_new_keys_are_muons_and_say_what_they_do() -> None:
    for row in CONFIG_KEYS:
        if not row.released:
            assert row.key.startswith("muon_")
            assert row.comment.endswith(".")
        assert row.shared == row.key.startswith("adam_")


@pytest.mark.parametrize("row", PRESETS, ids=lambda row: row.name)
def test_round_trip(row: Any) -> None:
    assert spec_from_config(namespace(row.spec)) == row.spec


def test_every_field_survives_the_round_trip() -> None:
    """Each field in turn at another value than its default."""
    other: dict[str, Any] = {
        "nesterov_style": "sgd",
        "coefficient_type": "quintic",
        "ns_eps_mode": "floor",
        "ns_dtype": "float32",
        "ns_rounding": "elementwise",
        "scale_mode": "spectral",
        "preconditioning": "aol",
        "decay_style": "factor",
        "adam_decay_style": "factor",
    }
    for field in dataclasses.fields(MuonSpec):
        default = getattr(MuonSpec(), field.name)
        value = other.get(field.name)
        if value is None:
            value = (not default) if isinstance(default, bool) else type(default)(default * 2 + 3)
        if field.name in ("beta", "adam_b1", "adam_b2"):
            value = 0.5
        spec = MuonSpec(**{field.name: value})
        assert spec != MuonSpec()
        assert spec_from_config(namespace(spec)) == spec


def test_consistent_rms_is_spelled_as_maxtext_spells_it() -> None:
    values = config_values(preset("megatron_rfc"))
    assert values[CONSISTENT_RMS] == 0.2
    assert values["muon_extra_scale_factor"] == 1.0
    assert config_values(preset("megatron"))[CONSISTENT_RMS] is None


@pytest.mark.parametrize(
    "keys",
    [
        {CONSISTENT_RMS: None},
        {"muon_extra_scale_factor": 0.5},
    ],
)
def test_contradicting_scales_are_refused(keys: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match=CONSISTENT_RMS):
        spec_from_config(namespace(preset("megatron_rfc"), **keys))


def test_rms_with_another_mode_is_refused() -> None:
    with pytest.raises(SpecError, match=r"muon_consistent_rms=0\.2.*spectral"):
        spec_from_config(namespace(preset("megatron"), **{CONSISTENT_RMS: 0.2}))


def test_two_clips_are_refused() -> None:
    spec = preset("megatron").replace(clip_grad=1.0)
    assert spec_from_config(namespace(spec, **{TRAINER_CLIP: 0.0})) == spec
    with pytest.raises(SpecError, match=r"muon_clip_grad=1\.0.*gradient_clipping_threshold=1\.0"):
        spec_from_config(namespace(spec, **{TRAINER_CLIP: 1.0}))


@pytest.mark.parametrize("row", CONFIG_KEYS, ids=lambda row: row.key)
def test_missing_key_is_named(row: Any) -> None:
    config = namespace(MuonSpec())
    delattr(config, row.key)
    with pytest.raises(SpecError, match=row.key):
        spec_from_config(config)


def test_older_configurations_raise_another_error() -> None:
    class Old:
        def __getattr__(self, name: str) -> Any:
            raise ValueError(f"requested key {name} is not in config")

    with pytest.raises(SpecError, match="muon_beta"):
        spec_from_config(Old())


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("muon_nesterov", "False"),
        ("muon_nesterov", 0),
        ("muon_num_ns_steps", 5.0),
        ("muon_num_ns_steps", True),
        ("muon_ns_eps", "tiny"),
        ("muon_ns_eps", None),
        ("muon_scale_mode", None),
    ],
)
def test_wrong_types_are_refused(key: str, value: Any) -> None:
    with pytest.raises(SpecError, match=key):
        spec_from_config(namespace(MuonSpec(), **{key: value}))


def test_numbers_that_yaml_reads_otherwise_are_taken() -> None:
    spec = spec_from_config(namespace(MuonSpec(), muon_ns_eps="1e-7", muon_weight_decay=0))
    assert (spec.ns_eps, spec.weight_decay) == (1e-7, 0.0)
