"""One loss per step, from whatever file a training run leaves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import numpy as np
import numpy.typing as npt

from .errors import RunError


@dataclass(frozen=True)
class Losses:
    """
    Attributes:
      first_step: 0-based step of ``values[0]``: the loss before any update is that of step 0.
      values: float64 [steps], finite; what stands where ``known`` is False means nothing.
      known: bool [steps]; False where the file does not hold this step's own loss.
      precision: half a unit of the last printed digit, the most by which printing moved a value.
      padded_vocab_size: rows of the softmax, where the file says so.
      notes: what was assumed or left out.
    """

    first_step: int
    values: npt.NDArray[np.float64]
    known: npt.NDArray[np.bool_]
    precision: float = 0.0
    padded_vocab_size: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def end_step(self) -> int:
        """The step after the last."""
        return self.first_step + len(self.values)


@dataclass(frozen=True)
class Format:
    """How losses are written.

    Attributes:
      name: for messages.
      fits: whether a file (or folder) is of this format, by its content.
      read: the losses; the step of the first line is given for formats that number no steps.
    """

    name: str
    fits: Callable[[Path], bool]
    read: Callable[[Path, int], Losses]


def read_losses(path: Path, first_step: int, formats: Sequence[Format]) -> Losses:
    """Losses of a file of any of the formats.

    Raises:
      RunError: missing, of no known format, with a NaN, or with steps missing.
    """
    if not path.exists():
        raise RunError(f"{path}: no such file: the run needs one loss per step")
    for known in formats:
        if known.fits(path):
            return known.read(path, first_step)
    names = ", ".join(known.name for known in formats)
    raise RunError(f"{path}: no losses that can be read: expected one of {names}")


def from_steps(
    path: Path,
    by_step: Mapping[int, float],
    *,
    skipped: frozenset[int] = frozenset(),
    precision: float = 0.0,
    padded_vocab_size: int | None = None,
    notes: Sequence[str] = (),
) -> Losses:
    """Losses by their 0-based steps, which must follow each other.

    Args:
      skipped: steps whose value is not the step's own loss.

    Raises:
      RunError: there are none, steps are missing, or one is NaN or infinite.
    """
    if not by_step:
        raise RunError(f"{path}: holds no loss")
    first, last = min(by_step), max(by_step)
    missing = last - first + 1 - len(by_step)
    if missing:
        # A stray number may be far off: the gap is looked for among the steps that are there.
        gap = next(step + 1 for step in sorted(by_step) if step + 1 not in by_step)
        raise RunError(
            f"{path}: the loss of step {gap} is missing ({missing} of the steps {first} to "
            f"{last} are): a loss of every step is needed (Megatron: --log-interval 1)"
        )
    values = np.array([by_step[step] for step in range(first, last + 1)], np.float64)
    bad = np.flatnonzero(~np.isfinite(values))
    if len(bad):
        step = first + int(bad[0])
        raise RunError(
            f"{path}: the loss of step {step} is {values[bad[0]]}: the run has diverged, and can "
            f"only be compared before that step"
        )
    known = np.array([step not in skipped for step in range(first, last + 1)])
    return Losses(first, values, known, precision, padded_vocab_size, tuple(notes))


def printed_precision(numbers: Sequence[Decimal]) -> float:
    """Half a unit of the last digit of numbers that were printed alike.

    Numbers with a fixed count of digits or of decimals are as coarse as the coarsest of them;
    where the counts vary, the shortest exact form was printed, as fine as the finest.
    """
    finite = [number.as_tuple() for number in numbers if number.is_finite()]
    places = [int(n.exponent) for n in finite]
    if not places:
        return 0.0
    is_fixed = len(set(places)) == 1 or len({len(n.digits) for n in finite}) == 1
    return float(f"5e{(max(places) if is_fixed else min(places)) - 1}")
