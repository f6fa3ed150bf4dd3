"""A MuonSpec as MaxText command-line overrides on top of a reference's defaults."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from muon_fork.config_keys import CONFIG_KEYS, config_values, spec_from_config
from muon_fork.presets import preset
from muon_fork.spec import MuonSpec


def overrides(reference: str, spec: MuonSpec) -> dict[str, str]:
    """Keys by which ``spec`` differs from what ``--reference`` wrote to base.yml.

    Keys that other optimizers share keep MaxText's own defaults, so they are always given.
    """
    written, wanted = config_values(preset(reference)), config_values(spec)
    shared = {row.key for row in CONFIG_KEYS if row.shared}
    changed = {k: v for k, v in wanted.items() if k in shared or v != written[k]}
    return {key: _yaml(value) for key, value in changed.items()}


def spec_of(config: Mapping[str, Any]) -> MuonSpec:
    """The spec that a trainer's configuration asks for."""
    return spec_from_config(SimpleNamespace(**config))


def _yaml(value: Any) -> str:
    """YAML 1.1 reads 1e-20 as a string and 1.0e-20 as a number."""
    text = str(value)
    is_bare = isinstance(value, float) and "e" in text and "." not in text
    return text.replace("e", ".0e") if is_bare else text
