"""Weights and optimizer state that both sides exchange: plain NumPy, in the source's units."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from checks.parameters import Parameter
from checks.references.matrices import Array

Arrays = Mapping[str, Array]


@dataclass(frozen=True)
class State:
    """After ``count`` steps.

    Attributes:
      weights: by parameter name, or by leaf after ``in_leaves``.
      first: momentum buffer of a Muon parameter, first moment of an AdamW one.
      second: second moment of the AdamW ones.
      count: finished steps.
    """

    weights: Arrays
    first: Arrays
    second: Arrays
    count: int

    def each(self, change: Callable[[Arrays], Arrays]) -> State:
        """The state with its weights and both moments changed alike."""
        return State(change(self.weights), change(self.first), change(self.second), self.count)


@dataclass(frozen=True)
class Rates:
    """Learning rates of one step."""

    muon: float
    adam: float


def in_leaves(arrays: Arrays, tree: tuple[Parameter, ...]) -> dict[str, Array]:
    """Arrays by parameter as MaxText-shaped arrays by leaf, still in the source's units."""
    return {
        leaf: part
        for parameter in tree
        if parameter.name in arrays
        for leaf, part in parameter.leaves(arrays[parameter.name]).items()
    }


def state_in_leaves(state: State, tree: tuple[Parameter, ...]) -> State:
    return state.each(lambda arrays: in_leaves(arrays, tree))


def parameter_of(tree: tuple[Parameter, ...]) -> dict[str, Parameter]:
    """The parameter that each leaf belongs to."""
    return {leaf: p for p in tree for leaf in p.leaves(np.zeros(p.shape, np.float32))}
