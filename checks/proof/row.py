"""One line of the table. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from checks.trainers.megatron.training import Training

WINDOW = 100  # steps
FIRST = 20
LAST = 1320
WINDOWS = tuple(range(FIRST, LAST, WINDOW))


@dataclass(frozen=True)
class Row:
    """
    Attributes:
      name: what ``--row`` takes, and the name of its files.
      title: one line for a reader.
      training: the Megatron run; rows with equal ones share the recording.
      gate: the row of ``tolerances.TOLERANCES`` that limits the losses.
      restarted: windows from one Megatron checkpoint to the next, instead of one free run.
      floor: record Megatron's own noise floor too, where the limit asks for it.
      release, scan: of MaxText.
      exact: of a run in float64: as in ``How``.
      spec_overrides: what Megatron's arguments do not record.
    """

    name: str
    title: str
    training: Training
    gate: str = "training_dense"
    restarted: bool = False
    floor: bool = False
    release: str = "0.2.5"
    scan: bool = False
    exact: bool = False
    spec_overrides: Mapping[str, Any] = field(default_factory=dict)

    @property
    def recording(self) -> str:
        """Name of the folder with the Megatron run."""
        return self.name.removesuffix("_windows").removesuffix("_exact")

    @property
    def float64(self) -> bool:
        """Both trainers compute in float64."""
        return self.training.dtype == "float64"
