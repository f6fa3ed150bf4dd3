"""Loss curves: their difference, what to say of it, and as many points as a page can carry."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from checks.result import Curve


@dataclass(frozen=True)
class Summary:
    """Of |ours - reference| over the steps whose reference is known; NaN where a loss of ours is.

    Attributes:
      max_difference, mean_difference: over these steps.
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

    @property
    def known(self) -> bool:
        """Whether the reference has a loss here; a NaN says that nobody wrote it down."""
        return not math.isnan(self.reference)


@dataclass(frozen=True)
class Joined:
    """Windows of one run as one curve; ``restarts`` are the first steps of all but the first."""

    curve: Curve
    restarts: tuple[int, ...] = ()


def join(curves: Sequence[Curve]) -> list[Joined]:
    """Curves that go on where the one before ends, of the same two sides, put together."""
    joined: list[Joined] = []
    for curve in curves:
        last = joined[-1] if joined else None
        if last is not None and _goes_on(last.curve, curve):
            joined[-1] = Joined(_append(last.curve, curve), (*last.restarts, curve.first_step))
        else:
            joined.append(Joined(curve))
    return joined


def _goes_on(one: Curve, other: Curve) -> bool:
    return (
        one.first_step + len(one.reference) == other.first_step
        and (one.reference_name, one.ours_name) == (other.reference_name, other.ours_name)
        and (one.floor is None) == (other.floor is None)
    )


def _append(one: Curve, other: Curve) -> Curve:
    floor = None if one.floor is None else (*one.floor, *(other.floor or ()))
    return replace(
        one,
        reference=(*one.reference, *other.reference),
        ours=(*one.ours, *other.ours),
        floor=floor,
        limit=one.limit if one.limit == other.limit else None,
    )


def every_point(curve: Curve) -> list[Point]:
    """All steps.

    Raises:
      ValueError: the two sides, or the floor, differ in length.
    """
    floors: Sequence[float | None] = curve.floor or [None] * len(curve.reference)
    if not len(curve.reference) == len(curve.ours) == len(floors):
        raise ValueError(
            f"{curve.name}: {len(curve.reference)} losses, {len(curve.ours)} of ours, "
            f"{len(floors)} floors"
        )
    return [
        Point(curve.first_step + i, r, o, abs(o - r), None if f is None or math.isnan(f) else f)
        for i, (r, o, f) in enumerate(zip(curve.reference, curve.ours, floors, strict=True))
    ]


def summarize(curve: Curve) -> Summary:
    known = [point for point in every_point(curve) if point.known]
    worst = max(known, key=_badness, default=None)
    floors = [point.floor for point in known if point.floor is not None]
    return Summary(
        max_difference=0.0 if worst is None else worst.difference,
        mean_difference=_mean([point.difference for point in known]) or 0.0,
        worst_step=None if worst is None else worst.step,
        max_floor=max(floors, default=None),
        mean_floor=_mean(floors),
    )


def points(curve: Curve, most: int) -> list[Point]:
    """At most ``most`` steps: of each ``stretch`` the one with the largest difference and the one
    with the largest floor, so that no maximum is lost."""
    shown, width = every_point(curve), stretch(curve, most)
    if width == 1:
        return shown
    kept: list[Point] = []
    for start in range(0, len(shown), width):
        near = shown[start : start + width]
        worst = {max(near, key=badness).step: None for badness in (_badness, _floor)}
        kept += [point for point in near if point.step in worst]
    return kept


def stretch(curve: Curve, most: int) -> int:
    """Of how many neighbouring steps the worst ones are shown."""
    steps = len(curve.reference)
    kept = 1 if curve.floor is None else 2
    return 1 if steps <= most else math.ceil(steps / max(1, most // kept))


def _badness(point: Point) -> float:
    if not point.known:
        return -1.0
    return math.inf if math.isnan(point.difference) else point.difference


def _floor(point: Point) -> float:
    return -1.0 if point.floor is None or not point.known else point.floor


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None
