"""Both sides of one step from one state, and the same side with its inputs one ulp away."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from checks.references.matrices import Array

from . import exact, ours
from .gaps import Side
from .state import Arrays, Rates, State, in_leaves, state_in_leaves


@dataclass(frozen=True)
class Step:
    """A step to take: state and gradients by parameter, in the source's units."""

    before: State
    gradients: Arrays
    rates: Rates


def of_fork(side: ours.Ours, step: Step) -> Side:
    running = ours.start(side, state_in_leaves(step.before, side.tree))
    running, updates = ours.advance(side, running, in_leaves(step.gradients, side.tree), step.rates)
    return Side(ours.read(side, running), updates)


def of_reference(side: ours.Ours, step: Step) -> Side:
    before = exact.widened(step.before)
    after = exact.advance(side.tree, side.spec, before, step.gradients, step.rates)
    return reference_side(side, before, after)


def reference_side(side: ours.Ours, before: State, after: State) -> Side:
    updates = {n: after.weights[n] - before.weights[n] for n in after.weights}
    return Side(state_in_leaves(after, side.tree), in_leaves(updates, side.tree))


def moved(step: Step, dtype: str) -> Step:
    """Every input one unit in the last place up."""

    def up(arrays: Arrays) -> Arrays:
        return {name: _up(array, dtype) for name, array in arrays.items()}

    return Step(step.before.each(up), up(step.gradients), step.rates)


def _up(array: Array, dtype: str) -> Array:
    wide: Array = np.asarray(array, np.float64 if dtype == "f64" else np.float32)
    above: Array = np.nextafter(wide, np.asarray(np.inf, wide.dtype))
    return above
