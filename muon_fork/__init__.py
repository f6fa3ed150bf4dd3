"""Muon as Megatron computes it, with the interface of ``optax.contrib.muon``.

Names are resolved on first use: reading a MuonSpec needs only the standard library.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOME = {
    "MuonSpec": "spec",
    "SpecError": "spec",
    "PRESETS": "presets",
    "preset": "presets",
    "COEFFICIENT_SETS": "coefficients",
    "CONFIG_KEYS": "config_keys",
    "config_values": "config_keys",
    "spec_from_config": "config_keys",
    "from_megatron_args": "megatron_args",
    "MuonDimensionNumbers": "dimension_numbers",
    "ModelDimensions": "rules",
    "dimension_numbers_for": "rules",
    "orthogonalize_via_newton_schulz": "newton_schulz",
    "MuonState": "_muon",
    "muon": "_muon",
    "scale_by_muon": "_muon",
    "scale_by_shape": "_muon",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
