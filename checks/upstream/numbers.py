"""The same few steps by optax and by the fork, under each option that they share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from checks.measure import Difference, measure
from muon_fork import _muon as fork

from .api import Change

STEPS = 3
RATE = 0.1
# Leaves, their (reduction, output) axes; None belongs to the AdamW branch.
_LEAVES: Mapping[str, tuple[tuple[int, ...], tuple[Any, Any] | None]] = {
    "wide": ((8, 12), (0, 1)),
    "heads": ((12, 3, 2), ((0,), (-2, -1))),
    "bias": ((7,), None),
}
Array = NDArray[Any]
Tree = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """Arguments of ``muon()`` that both take."""

    name: str
    arguments: Mapping[str, Any]


CASES: tuple[Case, ...] = (
    Case("defaults", {}),
    Case("nesterov off", {"nesterov": False, "ns_steps": 3, "eps": 1e-3, "beta": 0.8}),
    Case("adaptive", {"adaptive": True}),
    Case("preconditioning spectral", {"preconditioning": "spectral"}),
    Case("preconditioning aol", {"preconditioning": "aol"}),
    Case("preconditioning schatten", {"preconditioning": "schatten"}),
    Case("ns_coeffs dion", {"ns_coeffs": "dion", "adam_eps_root": 1e-6, "adam_b1": 0.8}),
    Case(
        "decay, scale, rates",
        {
            "consistent_rms": 0.2,
            "weight_decay": 0.1,
            "adam_weight_decay": 0.3,
            "adam_learning_rate": 0.3,
            "adam_b2": 0.9,
        },
    ),
)
# Nothing here runs long: what is compiled is not worth optimising.
_QUICK_TO_COMPILE = {"xla_backend_optimization_level": 0}


@dataclass(frozen=True)
class Agreement:
    """A case: the largest difference over steps and leaves, and where."""

    case: str
    worst: Difference
    leaf: str
    step: int
    change: Change | None


def agreements(module: Any, limit: float, cases: tuple[Case, ...] = CASES) -> Iterator[Agreement]:
    """One per case: ``change`` is set where a step differs by more than ``limit``, or fails.

    ``module`` stands for ``optax.contrib._muon``. Float32 on the default device; updates have the
    size of the learning rate, 0.1.
    """
    for case in cases:
        ours = _run(fork.muon, fork.MuonDimensionNumbers, case)
        try:
            theirs = _run(module.muon, module.MuonDimensionNumbers, case)
        except Exception as error:  # whatever the changed function raises is the finding
            nothing = measure([float("nan")], [0.0])
            detail = f"optax fails: {type(error).__name__}: {error}"
            yield Agreement(case.name, nothing, "", 0, Change(case.name, "numbers", detail))
            continue
        yield _agreement(case, theirs, ours, limit)


@dataclass(frozen=True)
class _Step:
    updates: Mapping[str, Array]
    momentum: Mapping[str, Array]


def _run(muon: Callable[..., Any], numbers: Callable[..., Any], case: Case) -> list[_Step]:
    dims = {name: None if axes is None else numbers(*axes) for name, (_, axes) in _LEAVES.items()}
    optimizer = muon(RATE, muon_weight_dimension_numbers=dims, **case.arguments)
    params = _values(0)
    state = optimizer.init(params)
    update = jax.jit(optimizer.update, compiler_options=_QUICK_TO_COMPILE)
    steps = []
    for step in range(STEPS):
        updates, state = update(_values(step + 1), state, params)
        momentum = state.inner_states["muon"].inner_state[0].mu
        kept = {name: np.asarray(momentum[name]) for name in updates if dims[name] is not None}
        steps.append(_Step({name: np.asarray(leaf) for name, leaf in updates.items()}, kept))
    return steps


def _values(seed: int) -> Tree:
    rng = np.random.default_rng(seed)
    return {
        name: jnp.asarray(rng.standard_normal(shape), jnp.float32)
        for name, (shape, _) in _LEAVES.items()
    }


def _agreement(case: Case, theirs: list[_Step], ours: list[_Step], limit: float) -> Agreement:
    found = [
        (measure(a.updates[leaf], b.updates[leaf]), leaf, step)
        for step, (a, b) in enumerate(zip(theirs, ours, strict=True))
        for leaf in _LEAVES
    ]
    first = next((row for row in found if not row[0].max_abs <= limit), None)
    worst, leaf, step = max(found, key=lambda row: row[0].max_abs)
    if first is None:
        return Agreement(case.name, worst, leaf, step, None)
    difference, leaf, step = first
    term = _term(leaf, theirs[step], ours[step], difference, limit)
    detail = f"{term}: {leaf} differs by {difference.max_abs:.1e} at step {step}"
    return Agreement(case.name, worst, leaf, step, Change(case.name, "numbers", detail))


def _term(leaf: str, theirs: _Step, ours: _Step, difference: Difference, limit: float) -> str:
    """What parts first: the branch, the buffer, the size or the direction of the update."""
    if leaf not in ours.momentum:
        return "AdamW"
    if not measure(theirs.momentum[leaf], ours.momentum[leaf]).max_abs <= limit:
        return "momentum"
    a = theirs.updates[leaf] / max(difference.rms_ratio, 1e-30)
    return "scale" if measure(a, ours.updates[leaf]).max_abs <= limit else "Newton-Schulz"
