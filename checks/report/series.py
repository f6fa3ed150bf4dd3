"""Loss curves: their difference, what to say of it, and as many points as a page can carry."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from checks.result import Curve


@dataclass(frozen=True)
class Summary:
    """Of |ours - reference| over the steps of a curve; NaN where a loss is.

    Attributes:
      max_difference, mean_difference: over all steps.
      worst_step: the step of the first of these: the first NaN, where there is one.
      max_floor, mean_floor: the same of the noise floor, None where it was not measured.
    """

    max_difference: float
    mean_difference: float
    worst_step: int | None
    max_floor: float | None
    mean_floor: float | None


@dataclass(frozen=True)
class Point:
    """One step of a curve; ``floor`` is None where it was not measured."""

    step: int
    reference: float
    ours: float
    difference: float
    floor: float | None


def differences(curve: Curve) -> list[float]:
    """|ours - reference|, step by step.

    Raises:
      ValueError: the two sides, or the floor, differ in length.
    """
    if curve.floor is not None and len(curve.floor) != len(curve.reference):
        raise ValueError(f"{curve.name}: {len(curve.floor)} floors, {len(curve.reference)} losses")
    return [abs(o - r) for r, o in zip(curve.reference, curve.ours, strict=True)]


def summarize(curve: Curve) -> Summary:
    gaps = differences(curve)
    worst = max(range(len(gaps)), key=lambda i: _badness(gaps[i]), default=None)
    return Summary(
        max_difference=0.0 if worst is None else gaps[worst],
        mean_difference=_mean(gaps),
        worst_step=None if worst is None else curve.first_step + worst,
        max_floor=None if curve.floor is None else max(curve.floor, key=_badness, default=0.0),
        mean_floor=None if curve.floor is None else _mean(curve.floor),
    )


def points(curve: Curve, most: int) -> list[Point]:
    """At most ``most`` steps: of each run of neighbours the one with the largest difference."""
    gaps = differences(curve)
    width = max(1, math.ceil(len(gaps) / most))
    chosen = [
        max(range(start, min(start + width, len(gaps))), key=lambda i: _badness(gaps[i]))
        for start in range(0, len(gaps), width)
    ]
    return [
        Point(
            curve.first_step + i,
            curve.reference[i],
            curve.ours[i],
            gaps[i],
            None if curve.floor is None else curve.floor[i],
        )
        for i in chosen
    ]


def _badness(gap: float) -> float:
    return math.inf if math.isnan(gap) else gap


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0
