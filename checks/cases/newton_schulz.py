"""Rung: one matrix, orthogonalised."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from checks.measure import measure
from checks.references import numpy_muon
from checks.references.matrices import Array
from checks.result import Divergence, Figure, Outcome, Rung
from checks.setting import Case, Setting
from checks.sides import devices, gaps, reals
from checks.sides.settled import settled
from checks.tolerances import limit
from muon_fork.newton_schulz import orthogonalize_via_newton_schulz
from muon_fork.spec import MuonSpec

NAME = "newton_schulz"
TITLE = "one matrix, orthogonalised"

_SHAPE = (16, 40)


def _matrices() -> Iterator[tuple[str, Array]]:
    """Every way in which a matrix may be awkward, float32."""
    rng = np.random.default_rng(5)
    wide = rng.standard_normal(_SHAPE)
    yield "wide", wide
    yield "tall", rng.standard_normal(_SHAPE[::-1])
    yield "square", rng.standard_normal((16, 16))
    yield "one row", rng.standard_normal((1, 16))
    yield "large entries", 1e6 * wide
    # Its norm is about the guard's size, so both the eps and how it is added show.
    yield "tiny entries", 2e-8 * wide / np.linalg.norm(wide)
    yield "decaying spectrum", _with_spectrum(rng, np.exp(-0.5 * np.arange(16)))
    yield "two equal rows", np.concatenate([wide[:8], wide[:8]])
    yield "zero", np.zeros(_SHAPE)


def _with_spectrum(rng: np.random.Generator, values: Array) -> Array:
    left, _, right = np.linalg.svd(rng.standard_normal(_SHAPE), full_matrices=False)
    product: Array = left * values @ right
    return product


def run(setting: Setting) -> Rung:
    """Every matrix, in the setting's dtype, against float64 and the real thing."""
    plan = settled(setting)
    own = plan.trap.spec(plan.spec)
    figures = []
    with devices.pinned(setting, setting.dtype) as device:
        function = _compiled(own)
        real, notes = reals.orthogonalizer(plan.spec, setting.dtype)
        for name, matrix in _matrices():
            x = matrix.astype(devices.numpy_dtype(setting.dtype))
            ours = np.asarray(function(jax.device_put(x, device)), np.float64)
            up = np.nextafter(x, np.asarray(np.inf, x.dtype)) if name != "zero" else x
            near = np.asarray(function(jax.device_put(up, device)), np.float64)
            floor = measure(near, ours).relative_l2
            exact = numpy_muon.orthogonalize(plan.spec, x.astype(np.float64))
            figures.append(_figure(name, "float64", ours, exact, floor, setting.dtype))
            if real is not None:
                theirs = real.run(x)
                figures.append(_figure(name, real.name, ours, theirs, floor, setting.dtype))
    return _rung(tuple(figures), (*plan.notes, *notes))


@functools.cache
def _compiled(spec: MuonSpec) -> Callable[..., Any]:
    def function(x: jax.Array) -> jax.Array:
        return orthogonalize_via_newton_schulz(
            x,
            jax.numpy.asarray(spec.ns_coeffs),
            spec.num_ns_steps,
            spec.preconditioning,
            spec.ns_eps,
            eps_mode=spec.ns_eps_mode,
            ns_dtype=spec.ns_dtype,
            cast_before_norm=spec.cast_before_norm,
            ns_rounding=spec.ns_rounding,
        )

    return jax.jit(function)


def _figure(
    name: str, reference: str, ours: Array, theirs: Array, floor: float, dtype: str
) -> Figure:
    gate = f"newton_schulz_{dtype}"
    if dtype == "bf16" and reference != "float64":
        gate = "newton_schulz_bf16_released"
    return Figure(
        f"{name}, against {reference}",
        measure(ours, theirs),
        gate,
        limit(gate),
        "relative_l2",
        name,
        floor=floor,
    )


def _rung(figures: tuple[Figure, ...], notes: tuple[str, ...]) -> Rung:
    wrong = [figure for figure in figures if not figure.passed]
    if not wrong:
        return Rung(NAME, TITLE, Outcome.PASSED, figures, notes=notes)
    first = max(wrong, key=gaps.excess)
    gap = first.difference
    detail = (
        f"{first.subject}: relative L2 {gap.relative_l2:.1e}, cosine {gap.cosine:.6f}, "
        f"RMS ratio {gap.rms_ratio:.6g}"
    )
    divergence = Divergence(NAME, None, first.parameter, "newton_schulz", detail)
    return Rung(NAME, TITLE, Outcome.FAILED, figures, divergence, notes=notes)


CASE = Case(NAME, TITLE, ("quick", "full"), run)
