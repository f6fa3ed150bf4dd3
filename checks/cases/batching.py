"""Rung: stacked, in chunks and one by one, the matrices give the same updates."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator

import jax
import numpy as np

from checks.measure import measure
from checks.parameters import Parameter
from checks.references.matrices import Array
from checks.result import Divergence, Figure, Outcome, Rung
from checks.setting import Case, Setting
from checks.sides import alike, devices, gaps, inputs
from checks.sides.ours import Ours
from checks.sides.pair import Step, moved, of_fork
from checks.sides.settled import settled
from checks.sides.state import Rates
from checks.tolerances import limit
from checks.tree import SMALL, TREE
from muon_fork.newton_schulz import NewtonSchulz, iterate, normalize
from muon_fork.spec import MuonSpec

NAME = "batching"
TITLE = "stacked matrices = matrices one by one"
# Matrices in the stack, and in a chunk of it; 16 is what RFC-0023 ran with.
_MATRICES, _CHUNKS = 20, (3, 16, 20)


def run(setting: Setting) -> Rung:
    """The tree with and without ``batch_update``, then one stack in chunks of every size."""
    plan = settled(setting)
    tree = TREE if setting.level == "full" else SMALL
    step = _step(tree, plan.spec)

    def side(**changes: object) -> Ours:
        spec = plan.spec.replace(**changes)
        return Ours(tree, spec, setting, setting.dtype, plan.trap)

    looped = side(batch_update=False)
    variants = {"one stack per shape": side(batch_update=True, batch_update_size=0)}
    if setting.level == "full":
        variants["stacks of at most three"] = side(batch_update=True, batch_update_size=3)
    whole = alike.rung(
        NAME,
        TITLE,
        setting.dtype,
        of_fork(looped, step),
        {name: of_fork(variant, step) for name, variant in variants.items()},
        of_fork(looped, moved(step, setting.dtype)),
        plan.notes,
    )
    return _with(whole, tuple(_stacks(plan.trap.spec(plan.spec), setting)))


def _step(tree: tuple[Parameter, ...], spec: MuonSpec) -> Step:
    gradients = inputs.inputs(tree, spec, 1).pool[0]
    return Step(inputs.under_way(tree, spec), gradients, Rates(0.02, 0.004))


def _stacks(spec: MuonSpec, setting: Setting) -> Iterator[Figure]:
    """Newton-Schulz of a stack, however many matrices a call gets."""
    rng = np.random.default_rng(7)
    stack = rng.standard_normal((_MATRICES, 16, 40)).astype(devices.numpy_dtype(setting.dtype))
    gate = f"alike_update_{setting.dtype}"
    with devices.pinned(setting, setting.dtype) as device:
        single = _mapped(spec, jax.device_put(stack, device), 1)
        up = np.nextafter(stack, np.asarray(np.inf, stack.dtype))
        near = _mapped(spec, jax.device_put(up, device), 1)
        floor = measure(near, single).relative_l2
        for size in _CHUNKS:
            ours = _mapped(spec, jax.device_put(stack, device), size)
            subject = f"update, a stack of {_MATRICES} in chunks of {size}"
            gap = measure(ours, single)
            yield Figure(subject, gap, gate, limit(gate), "relative_l2", "a stack", floor=floor)


def _mapped(spec: MuonSpec, stack: jax.Array, size: int) -> Array:
    pieces = [stack[start : start + size] for start in range(0, len(stack), size)]
    function = _orthogonalizer(spec)
    return np.concatenate([np.asarray(function(piece), np.float64) for piece in pieces])


@functools.cache
def _orthogonalizer(spec: MuonSpec) -> jax.stages.Wrapped:
    how = NewtonSchulz(
        spec.num_ns_steps,
        spec.ns_eps,
        spec.ns_eps_mode,
        spec.preconditioning,
        spec.ns_dtype,
        spec.cast_before_norm,
        spec.ns_rounding,
    )
    return jax.jit(lambda x: iterate(normalize(x, how), jax.numpy.asarray(spec.ns_coeffs), how))


def _with(rung: Rung, stacks: tuple[Figure, ...]) -> Rung:
    wrong = [figure for figure in stacks if not figure.passed]
    figures = (*rung.figures, *stacks)
    if not wrong or rung.divergence is not None:
        return dataclasses.replace(rung, figures=figures)
    first = max(wrong, key=gaps.excess)
    detail = f"{first.subject}: relative L2 {first.difference.relative_l2:.1e}"
    divergence = Divergence(NAME, None, "a stack", "newton_schulz", detail)
    return dataclasses.replace(rung, outcome=Outcome.FAILED, figures=figures, divergence=divergence)


CASE = Case(NAME, TITLE, ("quick", "full"), run)
