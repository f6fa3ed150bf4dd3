"""Both sides of a long run; the first step at which they part is found again and taken apart."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from checks.result import Divergence, Figure, Outcome, Rung
from checks.setting import Setting
from checks.tree import TREE

from . import exact, gaps, inputs, ours
from .gaps import Side
from .ours import Ours
from .pair import Step, moved, reference_side
from .reals import Tracker, trackers
from .settled import settled
from .state import State, in_leaves, state_in_leaves
from .terms import term_of

STEPS = {"quick": 60, "full": 1000}
# Figures are taken at every such step, and at the last.
_EVERY = 20
# Both trajectory rungs have the same tolerances.
GATES = "trajectory"


@dataclass
class _Found:
    """Figures so far, and the first step at which one was beyond its limit."""

    figures: tuple[Figure, ...] = ()
    floors: dict[tuple[str, str], float] = field(default_factory=dict)
    step: int | None = None
    before: State | None = None
    worst: Figure | None = None


def follow(rung: str, title: str, setting: Setting, dtype: str) -> Rung:
    """The run in ``dtype``, compared with float64 and with the real optimizers."""
    plan = settled(setting, dtype)
    side = Ours(TREE, plan.spec, setting, dtype, plan.trap)
    steps = STEPS[setting.level]
    drawn = inputs.inputs(TREE, plan.spec, steps)
    real, notes = trackers(TREE, plan.spec, dtype)
    found = _compare(rung, side, drawn, real, setting)
    notes = (f"{steps} steps", *plan.notes, *notes)
    figures = gaps.with_floors(found.figures, found.floors)
    if found.worst is None or found.before is None or found.step is None:
        return Rung(rung, title, Outcome.PASSED, figures, notes=notes)
    step = Step(found.before, drawn.gradients(found.step), drawn.rates[found.step])
    term = term_of(side, step, found.worst.parameter, found.worst.limit)
    divergence = Divergence(rung, found.step, found.worst.parameter, term.name, term.detail)
    return Rung(rung, title, Outcome.FAILED, figures, divergence, notes=notes)


def _compare(
    rung: str, side: Ours, drawn: inputs.Inputs, real: tuple[Tracker, ...], setting: Setting
) -> _Found:
    """Stops at the first step beyond a limit: what comes after it says nothing more."""
    found = _Found()
    for step, before, fork, near, others in _steps(side, drawn, real):
        if step % 100 == 99:
            setting.progress(f"{rung}: step {step + 1} of {drawn.steps}")
        last = step == drawn.steps - 1
        fresh: list[Figure] = []
        for name, theirs in others:
            fresh += gaps.figures(fork, theirs, GATES, side.dtype, f"against {name}", step)
        wrong = [figure for figure in fresh if not figure.passed]
        if wrong or last or step % _EVERY == 0:
            moved_by = gaps.figures(near, fork, GATES, side.dtype, "one ulp")
            found.floors = gaps.floors_of(moved_by, found.floors)
        found.figures = gaps.worst((*found.figures, *fresh))
        if wrong:
            found.step, found.before, found.worst = step, before, max(wrong, key=gaps.excess)
            return found
    return found


def _steps(
    side: Ours, drawn: inputs.Inputs, real: tuple[Tracker, ...]
) -> Iterator[tuple[int, State, Side, Side, list[tuple[str, Side]]]]:
    """Each step with the reference's state before it, and after it: the fork, the fork from inputs
    one unit in the last place away, and every reference by name."""
    state = exact.widened(inputs.fresh(side.tree, side.spec))
    first = Step(state, {}, drawn.rates[0])
    running = ours.start(side, state_in_leaves(state, side.tree))
    near = ours.start(side, state_in_leaves(moved(first, side.dtype).before, side.tree))
    for tracker in real:
        tracker.start(state)
    for step in range(drawn.steps):
        gradients, rates = drawn.gradients(step), drawn.rates[step]
        by_leaf = in_leaves(gradients, side.tree)
        running, updates = ours.advance(side, running, by_leaf, rates)
        up = in_leaves(moved(Step(state, gradients, rates), side.dtype).gradients, side.tree)
        near, near_updates = ours.advance(side, near, up, rates)
        after = exact.advance(side.tree, side.spec, state, gradients, rates)
        others = [("float64", reference_side(side, state, after))]
        clipped = exact.clipped(side.spec, gradients)
        others += [(t.name, t.advance(clipped, rates)) for t in real]
        fork = Side(ours.read(side, running), updates)
        yield step, state, fork, Side(ours.read(side, near), near_updates), others
        state = after
