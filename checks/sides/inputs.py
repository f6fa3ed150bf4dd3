"""Weights, states and gradients of a run, the same numbers for every side and every dtype.

Gradients are drawn from a small pool and multiplied by powers of two, so that each is exact in
float32 and the sides never round their inputs differently.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from checks.parameters import Kind, Parameter
from checks.references.matrices import Array
from muon_fork.spec import MuonSpec

from .state import Arrays, Rates, State

_POOL = 16
# Steps before the state that ``under_way`` makes.
COUNT = 7


@dataclass(frozen=True)
class Inputs:
    """A run.

    Attributes:
      pool: gradient arrays by parameter, float32.
      picks: entry of the pool for each step.
      factors: power of two, with a sign, for each step.
      rates: of each step.
    """

    pool: tuple[Arrays, ...]
    picks: tuple[int, ...]
    factors: tuple[float, ...]
    rates: tuple[Rates, ...]

    @property
    def steps(self) -> int:
        return len(self.picks)

    def gradients(self, step: int) -> dict[str, Array]:
        factor = np.float32(self.factors[step])
        return {name: g * factor for name, g in self.pool[self.picks[step]].items()}


def inputs(tree: tuple[Parameter, ...], spec: MuonSpec, steps: int, seed: int = 0) -> Inputs:
    """Gradients whose global norm is between a quarter of the clipping limit and four times it.

    Learning rates warm up and decay, with different peaks for Muon and AdamW.
    """
    rng = np.random.default_rng(seed)
    size = spec.clip_grad or 1.0
    pool = tuple(_scaled(_gradients(rng, tree), size) for _ in range(_POOL))
    warm_up = np.minimum(1.0, np.arange(1, steps + 1) / 10)
    decay = 0.55 + 0.45 * np.cos(np.pi * np.arange(steps) / max(steps, 1))
    shape: Array = (warm_up * decay).astype(np.float32)
    return Inputs(
        pool,
        tuple(int(k) for k in rng.integers(_POOL, size=steps)),
        tuple(float(s) for s in 2.0 ** rng.integers(-2, 3, steps) * rng.choice([-1.0, 1.0], steps)),
        tuple(Rates(float(s * np.float32(0.02)), float(s * np.float32(0.004))) for s in shape),
    )


def fresh(tree: tuple[Parameter, ...], spec: MuonSpec, seed: int = 1) -> State:
    """Random weights with empty states."""
    rng = np.random.default_rng(seed)
    weights = {p.name: _weight(rng, p) for p in tree}
    first = {p.name: np.zeros(p.shape, np.float32) for p in tree}
    second = {p.name: np.zeros(p.shape, np.float32) for p in tree if not p.muon(spec)}
    return State(weights, first, second, 0)


def under_way(tree: tuple[Parameter, ...], spec: MuonSpec, seed: int = 2) -> State:
    """Random weights and states as ``COUNT`` steps leave them: what a converted run starts from.

    Momentum has the spec's own convention, a mean or a sum.
    """
    rng = np.random.default_rng(seed)
    start = fresh(tree, spec, seed)
    size = spec.clip_grad or 1.0
    means = _scaled(_gradients(rng, tree), size / 2)
    squares = _scaled(_gradients(rng, tree), size / 2)
    first = {
        p.name: means[p.name] * np.float32(spec.buffer_scale if p.muon(spec) else 1.0) for p in tree
    }
    # No entry near zero: a real second moment has seen several gradients.
    second = {n: np.square(squares[n]) + np.mean(np.square(squares[n])) for n in start.second}
    return State(start.weights, first, second, COUNT)


def _weight(rng: np.random.Generator, parameter: Parameter) -> Array:
    noise = 0.1 * rng.standard_normal(parameter.shape)
    norm = parameter.kind in (Kind.NORM, Kind.QK_NORM)
    return (noise + norm).astype(np.float32)


def _gradients(rng: np.random.Generator, tree: tuple[Parameter, ...]) -> dict[str, Array]:
    """Every second matrix has a spectrum that decays, as real gradients have."""
    found = {}
    for number, parameter in enumerate(tree):
        array = rng.standard_normal(parameter.shape)
        if number % 2:
            array = array * np.exp(-0.1 * np.arange(parameter.shape[-1]))
        found[parameter.name] = array
    return found


def _scaled(arrays: Arrays, norm: float) -> dict[str, Array]:
    """The arrays with that global norm, rounded to float32."""
    whole = np.sqrt(sum(float(np.sum(np.square(a))) for a in arrays.values()))
    return {name: (a * (norm / whole)).astype(np.float32) for name, a in arrays.items()}
