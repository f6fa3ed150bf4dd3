"""Which stretches of a recorded run are trained again, and from which checkpoint each starts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from .errors import RunError
from .folder import RecordedRun
from .losses import Losses


@dataclass(frozen=True)
class Window:
    """Steps ``first`` to ``end - 1``, trained from the checkpoint after ``first`` steps."""

    first: int
    end: int
    checkpoint: Path

    @property
    def steps(self) -> int:
        return self.end - self.first


def windows(run: RecordedRun, steps: int | None, *, restarted: bool) -> tuple[Window, ...]:
    """One window from the first checkpoint, or one from each up to the next.

    Args:
      steps: how many in all, from the first checkpoint on; None is as many as were recorded.

    Raises:
      RunError: fewer steps than that were recorded, or none of a window has its own loss.
    """
    starts = list(run.checkpoints)
    recorded = run.end_step - starts[0]
    if steps is not None and not 0 < steps <= recorded:
        raise RunError(
            f"--steps {steps}: {run.folder} has {recorded} steps after its checkpoint at iteration "
            f"{starts[0]} (steps {starts[0]} to {run.end_step - 1})"
        )
    end = run.end_step if steps is None else starts[0] + steps
    firsts = [start for start in starts if start < end] if restarted else starts[:1]
    ends = [*firsts[1:], end]
    found = [Window(a, b, run.checkpoints[a]) for a, b in zip(firsts, ends, strict=True)]
    for window in found:
        if np.isnan(cut(run.losses, window.first, window.end)).all():
            raise RunError(
                f"{run.folder}: no loss is known of the steps {window.first} to {window.end - 1}, "
                f"after {window.checkpoint.name}: leave that checkpoint out, or take more steps"
            )
    return tuple(found)


def cut(losses: Losses, first: int, end: int) -> npt.NDArray[np.float64]:
    """Values of the steps ``first`` to ``end - 1``, NaN where there is none."""
    found = np.full(end - first, np.nan)
    low, high = max(first, losses.first_step), min(end, losses.end_step)
    if low < high:
        inner = slice(low - losses.first_step, high - losses.first_step)
        values = np.where(losses.known[inner], losses.values[inner], np.nan)
        found[low - first : high - first] = values
    return found
