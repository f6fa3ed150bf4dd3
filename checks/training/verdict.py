"""The verdict on two loss curves: figures with their limits, and where they first part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from checks.measure import Difference, measure
from checks.result import Curve, Divergence, Figure, Outcome, Rung

from .gates import Gate
from .windows import Window

NAME = "training"
Floats = npt.NDArray[np.float64]
# Printing that coarse is worth a word.
_COARSE = 1e-9


@dataclass(frozen=True)
class Compared:
    """One window: both trainers' losses (NaN where Megatron's is not known), and the floor."""

    window: Window
    reference: Floats
    ours: Floats
    floor: Floats | None

    @property
    def gap(self) -> Floats:
        """|difference| of the steps whose loss is known."""
        known = ~np.isnan(self.reference)
        return np.asarray(np.abs(self.ours - self.reference)[known], np.float64)


def judge(found: Sequence[Compared], gate: Gate, precision: float, ours: str = "MaxText") -> Rung:
    """Figures, curves and the verdict of compared windows.

    Args:
      precision: by how much printing moved the reference's losses; the limit is wider by that.
      ours: who trained.
    """
    figures = [figure for one in found for figure in _figures(one, gate, precision)]
    divergence = next(filter(None, (_divergence(one, gate, precision) for one in found)), None)
    gaps = np.concatenate([one.gap for one in found])
    passed = divergence is None and all(figure.passed for figure in figures)
    notes = []
    if precision > _COARSE:
        notes.append(f"recorded losses are printed to {precision:.1e}: limits are wider by that")
    return Rung(
        NAME,
        "",
        Outcome.PASSED if passed else Outcome.FAILED,
        tuple(figures),
        divergence,
        notes=tuple(notes),
        curves=tuple(_curve(one, gate, precision, ours) for one in found),
        details={
            "max": float(gaps.max()),
            "mean": float(gaps.mean()),
            "steps": len(gaps),
            "windows": [[one.window.first, one.window.end] for one in found],
        },
    )


def _figures(one: Compared, gate: Gate, precision: float) -> list[Figure]:
    first, end = one.window.first, one.window.end
    known = np.flatnonzero(~np.isnan(one.reference))
    worst = first + int(known[np.argmax(one.gap)]) if np.isfinite(one.gap).all() else None
    floor = _largest(one.floor)
    where = f"loss of the steps {first} to {end - 1}"
    figures = [
        Figure(
            f"{where}, largest difference",
            measure(one.ours[known], one.reference[known]),
            gate.row,
            gate.limit(floor) + precision,
            step=worst,
            floor=floor,
        )
    ]
    if gate.over_floor:
        mean_floor = None if one.floor is None else float(np.nanmean(one.floor))
        mean = float(one.gap.mean())
        figures.append(
            Figure(
                f"{where}, mean difference",
                Difference(mean, *_shape(figures[0].difference)),
                gate.row,
                gate.limit(mean_floor) + precision,
                floor=mean_floor,
            )
        )
    return figures


def _shape(difference: Difference) -> tuple[float, float, float]:
    return difference.relative_l2, difference.rms_ratio, difference.cosine


def _largest(floor: Floats | None) -> float | None:
    return None if floor is None or np.isnan(floor).all() else float(np.nanmax(floor))


def _divergence(one: Compared, gate: Gate, precision: float) -> Divergence | None:
    limit = gate.limit(_largest(one.floor)) + precision
    gap = np.abs(one.ours - one.reference)
    # Not ``gap > limit``: a NaN of ours is a difference, an unknown loss of theirs is none.
    above = np.flatnonzero(~(gap <= limit) & ~np.isnan(one.reference))
    if not len(above):
        return None
    place = int(above[0])
    ours, reference = float(one.ours[place]), float(one.reference[place])
    return Divergence(
        NAME,
        one.window.first + place,
        "",
        "loss",
        f"MaxText {ours!r}, Megatron {reference!r}: {abs(ours - reference):.1e} apart, limit "
        f"{limit:.1e}; {place} step{'' if place == 1 else 's'} after the checkpoint",
    )


def _curve(one: Compared, gate: Gate, precision: float, ours: str) -> Curve:
    first = one.window.first
    return Curve(
        f"from iteration {first}",
        first,
        tuple(map(float, one.reference)),
        tuple(map(float, one.ours)),
        None if one.floor is None else tuple(map(float, one.floor)),
        limit=gate.limit(_largest(one.floor)) + precision,
        ours_name=ours,
    )
