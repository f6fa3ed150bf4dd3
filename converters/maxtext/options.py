"""What the user of a conversion may choose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from converters.source import MomentumConvention

from .versions import NEWEST_RELEASE, Layout


@dataclass(frozen=True)
class Options:
    """What the user may choose; every default follows from the checkpoint.

    Attributes:
      maxtext_version: a release, or ``main``.
      layout: ``nnx`` or ``linen``; None is the version's own.
      scan: MaxText's ``scan_layers``.
      family: name of a shipped family, or a ``.toml`` file; None detects it.
      vocab_size: rows of embedding and output layer to keep; None keeps Megatron's padding.
      optimizer: convert the optimizer's state too.
      momentum: convention of the saved momentum, where the checkpoint is wrong about it.
      fill_missing_state: start state that the checkpoint lacks at zero, and drop what MaxText's
        optimizer does not keep, instead of refusing.
      float64: keep everything in float64, for a MaxText that was given that dtype; as released none
        has it.
      spec_overrides: MuonSpec fields that the arguments do not record, and ``allow_blockwise_tp``.
    """

    maxtext_version: str = NEWEST_RELEASE
    layout: Layout | None = None
    scan: bool = True
    family: str | None = None
    vocab_size: int | None = None
    optimizer: bool = True
    momentum: MomentumConvention | None = None
    fill_missing_state: bool = False
    float64: bool = False
    spec_overrides: Mapping[str, Any] = field(default_factory=dict)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of weights, momentum and moments, whatever the source kept them in."""
        return np.dtype(np.float64 if self.float64 else np.float32)
