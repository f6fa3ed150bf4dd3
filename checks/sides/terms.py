"""Which term of the step is wrong, found by experiments on the optimizer itself.

The update is a function of weights, momentum and gradient. Each experiment sets some of them to
zero, or makes the gradient too small to be clipped, so that one term alone is left.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from checks.measure import measure
from checks.references.matrices import Array

from . import ours
from .gaps import Side
from .pair import Step, of_fork, of_reference
from .state import Arrays, parameter_of

# Of the clipping limit: what is left of a gradient that must not be clipped.
_QUIET = 2.0**-6

Read = Callable[[Side], Array]


@dataclasses.dataclass(frozen=True)
class Term:
    """The name of a term, and both values in words."""

    name: str
    detail: str


@dataclasses.dataclass(frozen=True)
class Experiment:
    """Both sides under changed inputs, read at one leaf."""

    side: ours.Ours
    step: Step
    leaf: str
    threshold: float

    def pair(self, step: Step, read: Read) -> tuple[Array, Array]:
        return read(of_fork(self.side, step)), read(of_reference(self.side, step))

    def update(self, side: Side) -> Array:
        return side.updates[self.leaf]

    def first(self, side: Side) -> Array:
        return side.state.first[self.leaf]

    def without(self, *names: str, factor: float = 1.0) -> Step:
        """The step with weights, first or gradients zeroed, and the gradients multiplied."""
        before = self.step.before
        if "weights" in names:
            before = dataclasses.replace(before, weights=_zeros(before.weights))
        if "first" in names:
            before = dataclasses.replace(before, first=_zeros(before.first))
        scale = 0.0 if "gradients" in names else factor
        gradients = {n: g * np.float32(scale) for n, g in self.step.gradients.items()}
        return Step(before, gradients, self.step.rates)

    def differs(self, pair: tuple[Array, Array]) -> bool:
        return not measure(*pair).relative_l2 <= self.threshold


def term_of(side: ours.Ours, step: Step, leaf: str, threshold: float) -> Term:
    """The first term of the step, in its own order, that differs at the leaf.

    Args:
      side: the fork's.
      step: from a state that both sides share.
      leaf: where they part.
      threshold: relative L2 above which two arrays differ.
    """
    owner = ours.owners(side)[leaf]
    expected = "muon" if _parameter_uses_muon(side, leaf) else "adam"
    if owner != expected:
        return Term("routing", f"trained by {owner}, the reference by {expected}")
    run = Experiment(side, step, leaf, threshold)
    own = (_buffer, _direction, _look_ahead) if owner == "muon" else (_adam,)
    experiments: tuple[Callable[[Experiment], Term | None], ...] = (_clip, *own, _decay)
    for find in experiments:
        found = find(run)
        if found is not None:
            return found
    name = "momentum" if owner == "muon" else "adam"
    return Term(name, "no single step differs: rounding that accumulates")


def _clip(run: Experiment) -> Term | None:
    """What the gradient adds to an empty buffer, at full size and too small to be clipped."""
    loud = run.pair(run.without("first"), run.first)
    quiet = run.pair(run.without("first", factor=_QUIET), run.first)
    if not run.differs(loud) or run.differs(quiet):
        return None
    return Term("clip", f"the clipped gradient is {_ratio(loud):.6g} x the reference's")


def _buffer(run: Experiment) -> Term | None:
    """What a gradient adds to an empty buffer, then what becomes of a full one."""
    empty = run.pair(run.without("first", factor=_QUIET), run.first)
    if run.differs(empty):
        return Term("momentum", f"a gradient adds {_ratio(empty):.6g} x as much to the buffer")
    kept = run.pair(run.without("gradients"), run.first)
    if run.differs(kept):
        return Term("momentum", f"without a gradient {_ratio(kept):.6g} x as much of it is kept")
    return None


def _direction(run: Experiment) -> Term | None:
    """Without gradient and weights the update is the buffer, orthogonalised and scaled."""
    pair = run.pair(run.without("weights", "gradients"), run.update)
    ratio = _ratio(pair)
    turned = measure(pair[0], pair[1] * ratio)
    if not turned.relative_l2 <= run.threshold:
        words = f"cosine {turned.cosine:.6f}, relative L2 {turned.relative_l2:.1e}"
        return Term("newton_schulz", f"another matrix for the same momentum: {words}")
    if run.differs(pair):
        return Term("scale", f"the same direction, {ratio:.6g} x as long")
    return None


def _look_ahead(run: Experiment) -> Term | None:
    pair = run.pair(run.without("weights", factor=_QUIET), run.update)
    if not run.differs(pair):
        return None
    gap = measure(*pair)
    return Term(
        "momentum",
        "equal buffers, another mix of momentum and gradient enters Newton-Schulz: update "
        f"relative L2 {gap.relative_l2:.1e}",
    )


def _adam(run: Experiment) -> Term | None:
    pair = run.pair(run.without("weights", factor=_QUIET), run.update)
    if not run.differs(pair):
        return None
    gap = measure(*pair)
    apart = f"relative L2 {gap.relative_l2:.1e}"
    return Term("adam", f"update without decay: RMS ratio {gap.rms_ratio:.6g}, {apart}")


def _decay(run: Experiment) -> Term | None:
    """The update is affine in the weight: the difference to a zero weight is the decay."""
    with_weight = run.pair(run.without(factor=_QUIET), run.update)
    without = run.pair(run.without("weights", factor=_QUIET), run.update)
    ours_decay, their_decay = (a - b for a, b in zip(with_weight, without, strict=True))
    size = max(float(np.abs(a).max(initial=0.0)) for a in with_weight)
    if float(np.abs(ours_decay - their_decay).max(initial=0.0)) <= run.threshold * size:
        return None
    norms = f"{np.linalg.norm(ours_decay):.3g} against {np.linalg.norm(their_decay):.3g}"
    return Term("decay", f"norm of what the decay adds to the update: {norms}")


def _parameter_uses_muon(side: ours.Ours, leaf: str) -> bool:
    return parameter_of(side.tree)[leaf].muon(side.spec)


def _ratio(pair: tuple[Array, Array]) -> float:
    """The factor that brings the reference nearest to the fork."""
    size = float(np.vdot(pair[1], pair[1]))
    return float(np.vdot(pair[0], pair[1])) / size if size else float("nan")


def _zeros(arrays: Arrays) -> dict[str, Array]:
    return {n: np.zeros_like(a) for n, a in arrays.items()}
