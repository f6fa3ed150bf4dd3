"""The words and numbers that console and page share."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

from checks.result import Figure, Outcome, Report


def verdict(report: Report) -> Outcome:
    """Of the whole: not run where no rung was."""
    if report.passed:
        return Outcome.PASSED
    ran = any(rung.outcome is not Outcome.NOT_RUN for rung in report.rungs)
    return Outcome.FAILED if ran else Outcome.NOT_RUN


def words(outcome: Outcome) -> str:
    return outcome.value.replace("_", " ")


def tally(report: Report) -> str:
    """``9 rungs: 7 passed, 1 failed, 1 not run``; what there is none of is left out."""
    counts = Counter(rung.outcome for rung in report.rungs)
    parts = ", ".join(f"{counts[one]} {words(one)}" for one in Outcome if counts[one])
    return f"{len(report.rungs)} rung{'' if len(report.rungs) == 1 else 's'}: {parts or 'none'}"


def share(figure: Figure) -> float:
    """The gated value as a part of its limit: above 1 fails, NaN counts as infinitely far above.

    A limit of 0 asks for equal bits: 0 where they are, infinity where not.
    """
    if math.isnan(figure.value):
        return math.inf
    if figure.limit == 0.0:
        return 0.0 if figure.value == 0.0 else math.inf
    return figure.value / figure.limit


def worst_first(figures: Iterable[Figure]) -> list[Figure]:
    return sorted(figures, key=share, reverse=True)


def short(value: float | None) -> str:
    """A difference: two digits and an exponent; nothing for None."""
    if value is None:
        return ""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else f"{value:+}"
    return "0" if value == 0.0 else f"{value:.1e}"


def plain(value: float) -> str:
    """A limit, as it is written down: ``1e-05``, ``0.25``, ``3``."""
    return f"{value:.6g}"


def near_one(value: float) -> str:
    """A ratio or cosine: the distance to 1 where it is small, which digits would hide."""
    gap = value - 1.0
    if gap == 0.0 or not math.isfinite(value):
        return "1" if gap == 0.0 else short(value)
    if abs(gap) >= 1e-3:
        return f"{value:.4f}"
    return f"1 {'+' if gap > 0 else '-'} {abs(gap):.0e}"


def part(value: float) -> str:
    """A share of a limit: ``0.42``, ``3.1e-05``, ``12``, ``inf``."""
    return f"{value:.2g}"


def gated(figure: Figure) -> str:
    """Name of the figure that the limit is for."""
    return "max abs" if figure.gated == "max_abs" else "rel L2"


def label(figure: Figure) -> str:
    """What the figure is about: subject, parameter, step."""
    step = "" if figure.step is None else f"step {figure.step}"
    place = "" if figure.parameter in figure.subject else figure.parameter
    return ", ".join(word for word in (figure.subject, place, step) if word)


def seconds(value: float) -> str:
    return f"{value:.1f} s" if value < 60.0 else f"{value / 60.0:.1f} min"
