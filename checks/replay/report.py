"""What the replay found, parameter by parameter."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from checks.tolerances import limit as limit_of

from .leaves import Array, Leaf, read_leaves
from .pair import Pair, open_pair
from .step import replay


@dataclass(frozen=True)
class Row:
    """One leaf.

    Attributes:
      path: its name in MaxText.
      parameters: what Megatron keeps it in, layer by layer.
      optimizer: ``muon`` or ``adam``.
      shape: in MaxText.
      difference: max |weight of the replay - weight that Megatron saved|.
      step: max |change of the weight|, for scale.
      second_moment: max |difference| of Adam's second moment, None for Muon.
    """

    path: str
    parameters: tuple[str, ...]
    optimizer: str
    shape: tuple[int, ...]
    difference: float
    step: float
    second_moment: float | None


@dataclass(frozen=True)
class Report:
    """The rows in the checkpoint's order, and what they were computed with."""

    before: str
    after: str
    rows: tuple[Row, ...]
    spec: dict[str, Any]
    notes: tuple[str, ...]
    muon_rate: float
    adam_rate: float
    limit: float

    @property
    def worst(self) -> float:
        """The largest difference; a NaN, where there is one."""
        return float(np.max([row.difference for row in self.rows]))

    @property
    def passed(self) -> bool:
        """Whether every weight is within the limit; a NaN is not."""
        return all(row.difference <= self.limit for row in self.rows)

    def as_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self) | {"worst": self.worst, "passed": self.passed}


def compare(before: Path, after: Path, limit: float | None, overrides: Mapping[str, Any]) -> Report:
    """Replay the step from ``before`` to ``after``.

    Args:
      limit: None is the one of ``tolerances`` for such a run.
      overrides: MuonSpec fields that the arguments do not record.

    Raises:
      ReplayError: it cannot be replayed.
    """
    pair = open_pair(before, after, overrides)
    leaves = read_leaves(pair)
    weights, seconds = replay(pair, leaves)
    return Report(
        before=str(pair.before.folder),
        after=str(pair.after.folder),
        rows=tuple(_row(leaf, weights[leaf.path], seconds.get(leaf.path)) for leaf in leaves),
        spec=dataclasses.asdict(pair.spec),
        notes=_notes(pair),
        muon_rate=pair.muon_rate,
        adam_rate=pair.adam_rate,
        limit=_default_limit(pair) if limit is None else limit,
    )


def _default_limit(pair: Pair) -> float:
    decayed = pair.spec.weight_decay_norm_params
    return limit_of("replay_decayed_norms" if decayed else "replay")


def _row(leaf: Leaf, weight: Array, second: Array | None) -> Row:
    return Row(
        path="/".join(leaf.path),
        parameters=leaf.parameters,
        optimizer="muon" if leaf.is_muon else "adam",
        shape=leaf.weight.shape,
        difference=float(np.abs(weight - leaf.expected).max()),
        step=float(np.abs(leaf.expected - leaf.weight).max()),
        second_moment=_distance(second, leaf.expected_second),
    )


def _distance(array: Array | None, other: Array | None) -> float | None:
    if array is None or other is None:
        return None
    return float(np.abs(array - other).max())


def _notes(pair: Pair) -> tuple[str, ...]:
    block = pair.dimensions.decoder_block
    shapes = f"shapes, paths and stored scales of MaxText's decoder_block={block}"
    formats = f"formats: {pair.before.format}, {pair.after.format}"
    buffers = [part.link.parameter for t in pair.leaves if t.is_buffer for part in t.parts]
    left = [f"not replayed, no optimizer updates it: {name}" for name in buffers]
    factor = pair.momentum_factor
    kept = [] if factor == 1.0 else [f"the saved momentum is multiplied by {factor:g}"]
    return (*pair.notes, *kept, *left, formats, shapes)
