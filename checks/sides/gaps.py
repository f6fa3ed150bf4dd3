"""How far the fork is from the reference, leaf by leaf, and which gate each figure has."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from checks.measure import Difference, measure
from checks.references.matrices import Array
from checks.result import Figure
from checks.tolerances import limit

from .state import Arrays, State


@dataclass(frozen=True)
class Side:
    """What one side has after a step, by leaf, in the source's units."""

    state: State
    updates: Arrays


@dataclass(frozen=True)
class Quantity:
    """Something that both sides have of a leaf.

    Attributes:
      name: for a reader, and in the name of its tolerance.
      gated: which figure of the difference.
    """

    name: str
    gated: str


QUANTITIES = (
    Quantity("update", "relative_l2"),
    Quantity("state", "relative_l2"),
    Quantity("weight", "max_abs"),
)


def quantity(side: Side, name: str, leaf: str) -> Array:
    """The array of that name; ``state`` is the momentum, or both moments, each by its own size."""
    if name == "update":
        return side.updates[leaf]
    if name == "weight":
        return side.state.weights[leaf]
    return side.state.first[leaf]


def figures(
    ours: Side, theirs: Side, rung: str, dtype: str, subject: str, step: int | None = None
) -> tuple[Figure, ...]:
    """Of each leaf that the reference has: update, state (of AdamW both moments) and weight."""
    found = []
    for leaf in theirs.state.weights:
        for what in QUANTITIES:
            if what.name == "update" and leaf not in theirs.updates:
                continue
            pair = (quantity(ours, what.name, leaf), quantity(theirs, what.name, leaf))
            found.append(_figure(measure(*pair), what, rung, dtype, subject, leaf, step))
        if leaf in theirs.state.second:
            second = ours.state.second.get(leaf, np.zeros(1))
            exact = theirs.state.second[leaf]
            gap = measure(np.broadcast_to(second, exact.shape), exact)
            found.append(_figure(gap, QUANTITIES[1], rung, dtype, subject, leaf, step))
    return tuple(found)


def _figure(
    gap: Difference,
    what: Quantity,
    rung: str,
    dtype: str,
    subject: str,
    leaf: str,
    step: int | None,
) -> Figure:
    gate = f"{rung}_{what.name}_{dtype}"
    return Figure(f"{what.name}, {subject}", gap, gate, limit(gate), what.gated, leaf, step)


def worst(figures: Iterable[Figure]) -> tuple[Figure, ...]:
    """Of figures about the same thing, the one nearest to its limit."""
    found: dict[tuple[str, str, str], Figure] = {}
    for figure in figures:
        key = (figure.subject, figure.parameter, figure.gate)
        if key not in found or excess(figure) > excess(found[key]):
            found[key] = figure
    return tuple(found.values())


def excess(figure: Figure) -> float:
    """The gated value over its limit; a NaN is beyond all."""
    ratio = figure.value / figure.limit
    return ratio if ratio == ratio else float("inf")


def with_floors(
    figures: Iterable[Figure], floors: Mapping[tuple[str, str], float]
) -> tuple[Figure, ...]:
    """The figures with the noise floor of the same leaf and gate."""
    return tuple(dataclasses.replace(f, floor=floors.get((f.parameter, f.gate))) for f in figures)


def floors_of(
    figures: Iterable[Figure], so_far: Mapping[tuple[str, str], float] | None = None
) -> dict[tuple[str, str], float]:
    """The largest value by leaf and gate, of these figures and of earlier ones."""
    found = dict(so_far or {})
    for figure in figures:
        key = (figure.parameter, figure.gate)
        found[key] = max(found.get(key, 0.0), figure.value)
    return found
