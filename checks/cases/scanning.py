"""Rung: scanned layers give the updates of layers that are kept apart."""

from __future__ import annotations

from checks.result import Rung
from checks.setting import Case, Setting
from checks.sides import alike, inputs, layers
from checks.sides.gaps import Side
from checks.sides.ours import Ours
from checks.sides.pair import Step, moved, of_fork
from checks.sides.settled import settled
from checks.sides.state import Rates
from checks.tree import SMALL, TREE

NAME = "scanning"
TITLE = "scanned layers = layers apart"


def run(setting: Setting) -> Rung:
    """Two layers of every kind, from one state."""
    plan = settled(setting)
    tree = TREE if setting.level == "full" else SMALL
    apart, scanned = (
        Ours(layered, plan.spec, setting, setting.dtype, plan.trap)
        for layered in (layers.apart(tree), layers.scanned(tree))
    )
    gradients = inputs.inputs(apart.tree, plan.spec, 1).pool[0]
    step = Step(inputs.under_way(apart.tree, plan.spec), gradients, Rates(0.02, 0.004))
    stacked = Step(
        step.before.each(lambda arrays: layers.stacked(arrays, tree)),
        layers.stacked(step.gradients, tree),
        step.rates,
    )
    found = of_fork(scanned, stacked)
    ours = Side(found.state.each(layers.unscanned), layers.unscanned(found.updates))
    near = of_fork(apart, moved(step, setting.dtype))
    expected = of_fork(apart, step)
    variants = {f"{layers.COUNT} layers scanned": ours}
    return alike.rung(NAME, TITLE, setting.dtype, expected, variants, near, plan.notes)


CASE = Case(NAME, TITLE, ("quick", "full"), run)
