"""What a rung is asked to check, and with what."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from muon_fork.spec import MuonSpec

from .result import Rung


@dataclass(frozen=True)
class Setting:
    """
    Attributes:
      spec: what both sides must compute.
      device: ``cpu``, ``gpu`` or ``tpu``; arrays are placed there explicitly.
      dtype: ``f64``, ``f32`` or ``bf16``: of Newton-Schulz for bf16, of everything otherwise.
      level: ``quick`` or ``full``.
      trap: name of a known mistake to switch on in our side (``traps.TRAPS``), None for none.
      progress: gets one line now and then.
      maxtext: a MaxText checkout, for the rungs that run one; None where none was named.
      python: of MaxText's environment; None looks for one.
    """

    spec: MuonSpec
    device: str = "cpu"
    dtype: str = "f32"
    level: str = "quick"
    trap: str | None = None
    progress: Callable[[str], None] = lambda _line: None
    maxtext: Path | None = None
    python: Path | None = None


@dataclass(frozen=True)
class Case:
    """A rung that can be run by name.

    Attributes:
      name: what ``--case`` takes.
      title: one line.
      levels: the levels that include it; a case named by ``--case`` runs at any level.
      run: the check itself; it does not raise for a difference, and returns a ``not_run`` rung
        with the reason where the machine lacks something.
    """

    name: str
    title: str
    levels: tuple[str, ...]
    run: Callable[[Setting], Rung]
