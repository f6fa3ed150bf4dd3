"""The ladder, one file a rung, cheapest first. Loaded by name: a title needs no JAX."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from checks.setting import Case


@dataclass(frozen=True)
class Entry:
    """A rung before its module is loaded.

    Attributes:
      name, title, levels: those of its ``CASE``.
      numeric: it computes on the setting's device, in the setting's dtype.
    """

    name: str
    title: str
    levels: tuple[str, ...]
    numeric: bool = True

    def load(self) -> Case:
        case: Case = importlib.import_module(f"checks.cases.{self.name}").CASE
        return case


_BOTH = ("quick", "full")

CASES: tuple[Entry, ...] = (
    Entry("newton_schulz", "one matrix, orthogonalised", _BOTH),
    Entry("step", "one step of every kind of parameter, from a converted state", _BOTH),
    Entry("trajectory_f64", "the same steps in float64", _BOTH),
    Entry("trajectory", "many steps of every kind of parameter", _BOTH),
    Entry("batching", "stacked matrices = matrices one by one", _BOTH),
    Entry("sharding", "sharded leaves = whole leaves", _BOTH),
    Entry("scanning", "scanned layers = layers apart", _BOTH),
    Entry(
        "routing", "Muon or AdamW, decay or none, for every parameter of every family", _BOTH, False
    ),
    Entry("checkpoint", "a converted checkpoint = its source", _BOTH, False),
    Entry("tpu_compile", "the train step compiles for v5e-16, and what it needs there", (), False),
)
