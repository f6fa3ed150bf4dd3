"""What may be chosen about a comparison, besides the run and the MaxText."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class How:
    """
    Attributes:
      restarted: one window from each checkpoint to the next instead of one free run.
      migrate: train a migrated copy where the tree is not migrated, instead of refusing.
      scan: MaxText's ``scan_layers``.
      config: MaxText keys on top of what the run's arguments give; for negative controls.
      spec_overrides: MuonSpec fields that Megatron's arguments do not record, such as ``ns_eps``.
      as_released: train the unmigrated tree on the weights alone, with optax's Muon and the run's
        hyper-parameters: what one gets without this toolkit.
      float64: the run's numbers are float64, and so are MaxText's, which must be a copy that
        ``float64.allow_float64`` edited.
      exact: it was told to change there, too, what rounds.
      floor: measure the noise floor with MaxText where the run has none: it trains a second time
        with every weight moved by one unit in the last place. Done anyway where the limit is a
        multiple of the floor.
    """

    restarted: bool = False
    migrate: bool = True
    scan: bool = True
    config: Mapping[str, Any] = field(default_factory=dict)
    spec_overrides: Mapping[str, Any] = field(default_factory=dict)
    as_released: bool = False
    float64: bool = False
    exact: bool = False
    floor: bool = False
