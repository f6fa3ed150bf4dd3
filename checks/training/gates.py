"""How far the losses of two trainers may be apart, by what kind of run it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from checks.tolerances import limit as limit_of
from muon_fork.spec import MuonSpec

from .how import How


@dataclass(frozen=True)
class Gate:
    """
    Attributes:
      row: of ``tolerances.TOLERANCES``; a ratio to the noise floor where ``over_floor``.
      over_floor: rounding alone drives such a run apart, so only the noise floor can limit it.
      least: a limit below which it never falls, whatever the floor.
    """

    row: str
    over_floor: bool = False
    least: float = 0.0

    def limit(self, floor: float | None) -> float:
        """On a difference whose noise floor is that."""
        if not self.over_floor:
            return limit_of(self.row)
        return max(self.least, limit_of(self.row) * (floor or 0.0))


def gate_of(spec: MuonSpec | None, arguments: Mapping[str, Any], how: How) -> Gate:
    """The gate for a run of this Muon and model, free or in windows restarted from checkpoints."""
    if how.float64:
        return Gate("training_f64_exact" if how.exact else "training_f64")
    low = arguments.get("bf16") or arguments.get("fp16")
    # Of a run by Adam alone the dtype of Newton-Schulz says nothing.
    rounds = spec is not None and not spec.adam_only and spec.ns_dtype != "float32"
    if low or rounds:
        return Gate("training_over_floor", over_floor=True)
    if not arguments.get("num_experts"):
        return Gate("training_dense")
    row = "training_mla_window" if arguments.get("multi_latent_attention") else "training_window"
    if how.restarted:
        return Gate(row)
    # A token at a near tie goes to another expert, and from there on it is another run.
    return Gate("training_over_floor", over_floor=True, least=limit_of(row))
