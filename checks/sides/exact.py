"""A step of the whole tree in float64, straight from the MuonSpec: what the fork must equal."""

from __future__ import annotations

import numpy as np

from checks.parameters import Parameter
from checks.references import numpy_muon
from checks.references.matrices import Array, Trajectory
from muon_fork.spec import MuonSpec

from .state import Arrays, Rates, State


def widened(state: State) -> State:
    """The state in float64."""
    return state.each(lambda arrays: {n: np.asarray(a, np.float64) for n, a in arrays.items()})


def clipped(spec: MuonSpec, gradients: Arrays) -> dict[str, Array]:
    """Gradients under the global norm limit, float64."""
    wide = [np.asarray(g, np.float64) for g in gradients.values()]
    return dict(zip(gradients, numpy_muon.clip(spec, wide), strict=True))


def advance(
    tree: tuple[Parameter, ...], spec: MuonSpec, state: State, gradients: Arrays, rates: Rates
) -> State:
    """The state after one step; every array by parameter."""
    weights: dict[str, Array] = {}
    first: dict[str, Array] = {}
    second: dict[str, Array] = {}
    by_name = {parameter.name: parameter for parameter in tree}
    for name, gradient in clipped(spec, gradients).items():
        parameter = by_name[name]
        if parameter.muon(spec):
            weights[name], first[name] = _muon(parameter, spec, state, gradient, rates.muon)
        else:
            new = numpy_muon.adam_step(
                spec,
                numpy_muon.AdamState(state.weights[name], state.first[name], state.second[name]),
                gradient,
                rates.adam,
                state.count,
                parameter.decays(spec),
            )
            weights[name], first[name], second[name] = new.weight, new.first, new.second
    return State(weights, first, second, state.count + 1)


def _muon(
    parameter: Parameter, spec: MuonSpec, state: State, gradient: Array, rate: float
) -> tuple[Array, Array]:
    weight, buffer = np.empty(parameter.shape), np.empty(parameter.shape)
    blocks = parameter.blocks(spec)
    for index, matrix in parameter.matrices(state.weights[parameter.name]):
        before = Trajectory(matrix, state.first[parameter.name][index])
        end = numpy_muon.step(spec, before, gradient[index], rate, state.count, blocks)
        weight[index], buffer[index] = end.weight, end.buffer
    return weight, buffer
