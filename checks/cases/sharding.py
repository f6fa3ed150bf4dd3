"""Rung: leaves spread over eight devices give the updates of one device."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from checks.mesh import layouts, transfer
from checks.mesh.layouts import DEVICES, Spread
from checks.result import Outcome, Rung
from checks.setting import Case, Setting
from checks.sides import alike, inputs
from checks.sides.ours import Ours
from checks.sides.pair import Step, moved, of_fork
from checks.sides.settled import settled
from checks.sides.state import Rates
from checks.training.last_words import ended, last_words
from checks.tree import SMALL, TREE

NAME = "sharding"
TITLE = "sharded leaves = whole leaves"
_SIMULATED = "--xla_force_host_platform_device_count=8"


def run(setting: Setting) -> Rung:
    """Every layout against one device: simulated devices on a CPU, else real ones."""
    side, step = problem(setting)
    spreads = _simulated(setting) if setting.device == "cpu" else _real(setting, side, step)
    if isinstance(spreads, Rung):
        return spreads
    plan = settled(setting)
    rung = alike.rung(
        NAME,
        TITLE,
        setting.dtype,
        of_fork(side, step),
        {name: spread.side for name, spread in spreads.items()},
        of_fork(side, moved(step, setting.dtype)),
        plan.notes,
    )
    cut = {name: f"{spread.cut} of {spread.leaves}" for name, spread in spreads.items()}
    collectives = {name: spread.collectives for name, spread in spreads.items()}
    return dataclasses.replace(rung, details={"leaves cut": cut, "collectives": collectives})


def problem(setting: Setting) -> tuple[Ours, Step]:
    """The tree, and the step that every layout takes."""
    plan = settled(setting)
    tree = TREE if setting.level == "full" else SMALL
    side = Ours(tree, plan.spec, setting, setting.dtype, plan.trap)
    gradients = inputs.inputs(tree, plan.spec, 1).pool[0]
    return side, Step(inputs.under_way(tree, plan.spec), gradients, Rates(0.02, 0.004))


def _real(setting: Setting, side: Ours, step: Step) -> dict[str, Spread] | Rung:
    import jax

    found = jax.devices(setting.device)
    if len(found) < DEVICES:
        reason = f"it needs {DEVICES} devices, this machine has {len(found)}"
        return Rung(NAME, TITLE, Outcome.NOT_RUN, reason=reason)
    return {layout.name: spread for layout, spread in layouts.run(side, step, found)}


def _simulated(setting: Setting) -> dict[str, Spread] | Rung:
    environment = dict(os.environ, JAX_PLATFORMS="cpu")
    environment["XLA_FLAGS"] = f"{environment.get('XLA_FLAGS', '')} {_SIMULATED}".strip()
    with tempfile.TemporaryDirectory() as scratch:
        request, answer = Path(scratch) / "request.json", Path(scratch) / "answer.npz"
        transfer.write_request(request, setting)
        # -P: the folder that the user is in may have a package of the same name.
        command = [sys.executable, "-P", "-m", "checks.mesh", str(request), str(answer)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            reason = (
                f"nothing was compared: the process with {DEVICES} simulated devices "
                f"{ended(done.returncode)}:\n{last_words(done.stderr)}"
            )
            return Rung(NAME, TITLE, Outcome.NOT_RUN, reason=reason)
        return transfer.read_answer(answer)


CASE = Case(NAME, TITLE, ("quick", "full"), run)
