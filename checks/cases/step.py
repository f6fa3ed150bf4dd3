"""Rung: one step of every kind of parameter, from the state of a run that is under way."""

from __future__ import annotations

from collections.abc import Iterator

from checks.result import Divergence, Figure, Outcome, Rung
from checks.setting import Case, Setting
from checks.sides import exact, gaps, inputs
from checks.sides.ours import Ours
from checks.sides.pair import Step, moved, of_fork, of_reference
from checks.sides.reals import Tracker, trackers
from checks.sides.settled import settled
from checks.sides.state import Rates
from checks.sides.terms import term_of
from checks.tree import TREE

NAME = "step"
TITLE = "one step of every kind of parameter, from a converted state"
_RATES = Rates(0.02, 0.004)
# Global gradient norms over the clipping limit: one step that is not clipped, and one that is.
_NORMS = (0.25, 4.0)


def run(setting: Setting) -> Rung:
    """Both steps against float64, the earlier one deciding what is named."""
    plan = settled(setting)
    side = Ours(TREE, plan.spec, setting, setting.dtype, plan.trap)
    real, why_not = trackers(TREE, plan.spec, setting.dtype)
    notes = (*plan.notes, *why_not)
    stages = [_figures(side, step, real) for step in _steps(side)]
    figures = gaps.worst(figure for stage in stages for figure in stage)
    for step, stage in zip(_steps(side), stages, strict=True):
        wrong = [figure for figure in stage if not figure.passed]
        if wrong:
            divergence = _name(side, step, max(wrong, key=gaps.excess))
            return Rung(NAME, TITLE, Outcome.FAILED, figures, divergence, notes=notes)
    return Rung(NAME, TITLE, Outcome.PASSED, figures, notes=notes)


def _steps(side: Ours) -> Iterator[Step]:
    before = inputs.under_way(TREE, side.spec)
    drawn = inputs.inputs(TREE, side.spec, 1).pool[0]
    for norm in _NORMS:
        yield Step(before, {n: g * g.dtype.type(norm) for n, g in drawn.items()}, _RATES)


def _figures(side: Ours, step: Step, real: tuple[Tracker, ...]) -> tuple[Figure, ...]:
    ours = of_fork(side, step)
    near = of_fork(side, moved(step, side.dtype))
    found = list(gaps.figures(ours, of_reference(side, step), NAME, side.dtype, "against float64"))
    for tracker in real:
        tracker.start(step.before)
        theirs = tracker.advance(exact.clipped(side.spec, step.gradients), step.rates)
        found += gaps.figures(ours, theirs, NAME, side.dtype, f"against {tracker.name}")
    one_ulp = gaps.figures(near, ours, NAME, side.dtype, "one ulp")
    return gaps.with_floors(found, gaps.floors_of(one_ulp))


def _name(side: Ours, step: Step, figure: Figure) -> Divergence:
    term = term_of(side, step, figure.parameter, figure.limit)
    return Divergence(NAME, 0, figure.parameter, term.name, term.detail)


CASE = Case(NAME, TITLE, ("quick", "full"), run)
