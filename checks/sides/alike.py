"""Rungs of the kind "done this way it equals done that way": the fork against itself."""

from __future__ import annotations

from collections.abc import Mapping

from checks.measure import measure
from checks.result import Divergence, Figure, Outcome, Rung

from . import gaps
from .gaps import Side

GATES = "alike"


def rung(
    name: str,
    title: str,
    dtype: str,
    expected: Side,
    others: Mapping[str, Side],
    near: Side,
    notes: tuple[str, ...] = (),
) -> Rung:
    """Every variant against the expected one.

    Args:
      expected: the plain way.
      others: the variants, by what they are called.
      near: the plain way from inputs one unit in the last place away.
    """
    floors = gaps.floors_of(gaps.figures(near, expected, GATES, dtype, "one ulp"))
    found: list[Figure] = []
    for variant, side in others.items():
        found += gaps.figures(side, expected, GATES, dtype, variant)
    figures = gaps.with_floors(gaps.worst(found), floors)
    wrong = [figure for figure in figures if not figure.passed]
    if not wrong:
        return Rung(name, title, Outcome.PASSED, figures, notes=notes)
    first = max(wrong, key=gaps.excess)
    variant = first.subject.partition(", ")[2]
    divergence = _name(name, first, others[variant], expected)
    return Rung(name, title, Outcome.FAILED, figures, divergence, notes=notes)


def _name(rung: str, figure: Figure, ours: Side, theirs: Side) -> Divergence:
    """Momentum, if the buffers differ; else the direction of the update, or its length."""
    leaf = figure.parameter
    pair = (ours.state.first[leaf], theirs.state.first[leaf])
    buffers = measure(*pair).relative_l2
    if leaf in theirs.state.second:
        term = "adam"
    elif buffers > figure.limit:
        term = "momentum"
    else:
        turned = measure(ours.updates[leaf], theirs.updates[leaf])
        term = "scale" if 1 - turned.cosine <= figure.limit else "newton_schulz"
    gap = figure.difference
    detail = f"{figure.subject}: relative L2 {gap.relative_l2:.1e}, RMS ratio {gap.rms_ratio:.6g}"
    return Divergence(rung, None, leaf, term, detail)
