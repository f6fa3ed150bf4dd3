"""How far two arrays are apart: the four figures that every rung shows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Difference:
    """Of an array to what it should be, in float64.

    Attributes:
      max_abs: largest |actual - expected|.
      relative_l2: ||actual - expected|| / ||expected||; the numerator alone where expected is 0.
      rms_ratio: rms(actual) / rms(expected): 1 unless a scale is wrong; NaN where expected is 0.
      cosine: of the angle between both: 1 unless a direction is wrong; NaN where one is 0. It is
        shown, and gates nothing: a wrong scale and a small rotation both leave it near 1.
    """

    max_abs: float
    relative_l2: float
    rms_ratio: float
    cosine: float


def measure(actual: npt.ArrayLike, expected: npt.ArrayLike) -> Difference:
    """Figures of two arrays of one shape; a NaN on either side makes every figure NaN.

    Raises:
      ValueError: the shapes differ.
    """
    a, b = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    if a.shape != b.shape:
        raise ValueError(f"shapes {a.shape} and {b.shape} cannot be compared")
    gap, size, target = float(np.linalg.norm(a - b)), _norm(a), _norm(b)
    return Difference(
        max_abs=float(np.abs(a - b).max(initial=0.0)),
        relative_l2=gap / target if target else gap,
        rms_ratio=size / target if target else float("nan"),
        cosine=float(np.vdot(a, b)) / (size * target) if size * target else float("nan"),
    )


def _norm(array: npt.NDArray[np.float64]) -> float:
    return float(np.linalg.norm(array))
