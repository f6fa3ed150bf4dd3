"""What a check found, as plain data: the rungs fill it, the report shows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from .measure import Difference


class Outcome(StrEnum):
    """Of a rung: ``not_run`` is neither a pass nor silent, its reason is shown."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_RUN = "not_run"


@dataclass(frozen=True)
class Figure:
    """One comparison and its gate.

    Attributes:
      subject: what was compared with what, for a reader.
      difference: the four figures.
      gate: the row of ``tolerances.TOLERANCES`` that limits ``relative_l2`` or ``max_abs``.
      limit: the largest allowed value of ``gated``, from that row (or a multiple of ``floor``).
      gated: which of the figures the limit is for, ``max_abs`` or ``relative_l2``.
      parameter: path of the parameter, "" where the figure is about none.
      step: 0-based step at which the difference was taken (the worst one), None where none.
      floor: the same figure of one side against itself with its inputs moved by one unit in the
        last place: what rounding alone explains. None where it was not measured.
    """

    subject: str
    difference: Difference
    gate: str
    limit: float
    gated: str = "max_abs"
    parameter: str = ""
    step: int | None = None
    floor: float | None = None

    @property
    def value(self) -> float:
        return float(getattr(self.difference, self.gated))

    @property
    def passed(self) -> bool:
        """Whether the gated figure is within its limit; a NaN is not."""
        return self.value <= self.limit


@dataclass(frozen=True)
class Divergence:
    """Where two sides first part.

    Attributes:
      rung: name of the rung.
      step: 0-based step, None where the rung has no steps.
      parameter: its path, "" where it is the loss.
      term: what parts first: ``momentum``, ``newton_schulz``, ``scale``, ``decay``, ``clip``,
        ``adam``, ``routing``, ``state`` or ``loss``.
      detail: both values, in words.
    """

    rung: str
    step: int | None
    parameter: str
    term: str
    detail: str


@dataclass(frozen=True)
class Curve:
    """Two loss curves over the same steps, float64.

    Attributes:
      name: what was trained.
      first_step: 0-based step of the first loss.
      reference, ours: one loss per step.
      floor: |difference| of one side against itself with one unit in the last place of noise, None
        where it was not measured.
      limit: largest allowed |ours - reference|, None where no figure limits it.
      reference_name, ours_name: who computed them.
    """

    name: str
    first_step: int
    reference: tuple[float, ...]
    ours: tuple[float, ...]
    floor: tuple[float, ...] | None = None
    limit: float | None = None
    reference_name: str = "Megatron"
    ours_name: str = "MaxText"


@dataclass(frozen=True)
class Rung:
    """One rung of the ladder.

    Attributes:
      name: as in ``cases.CASES``, what ``--case`` takes.
      title: one line for a reader.
      outcome: ``passed`` only if every figure is within its limit and ``divergence`` is None.
      figures: worst first is not required; the report sorts.
      reason: why it was not run, or why it failed where no figure says so.
      notes: what a reader must know besides (what was defaulted, left out, pinned).
      curves: loss curves of a training rung.
      details: further plain JSON values, by name.
    """

    name: str
    title: str
    outcome: Outcome
    figures: tuple[Figure, ...] = ()
    divergence: Divergence | None = None
    reason: str = ""
    notes: tuple[str, ...] = ()
    curves: tuple[Curve, ...] = ()
    seconds: float = 0.0
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Report:
    """A whole run of the ladder.

    Attributes:
      rungs: in the order of the ladder.
      environment: versions, device kind, precision, machine; by name.
      spec: the MuonSpec as a dict, None where several were used.
      commands: the exact command lines that repeat it.
    """

    rungs: tuple[Rung, ...]
    environment: Mapping[str, str]
    spec: Mapping[str, Any] | None = None
    commands: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether something ran and nothing failed."""
        outcomes = {rung.outcome for rung in self.rungs}
        return Outcome.PASSED in outcomes and Outcome.FAILED not in outcomes

    @property
    def divergence(self) -> Divergence | None:
        """The first one, on the lowest rung that has one."""
        return next((rung.divergence for rung in self.rungs if rung.divergence), None)
