"""The migrated tree in the checkout's own Python: does it compile, does the optimizer build?"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import tempfile

from codemods.errors import MigrateError, Problem
from codemods.plan import Plan

_TIMEOUT_SECONDS = 300

_SCRIPT = """\
import importlib, json, sys
job = json.load(sys.stdin)
for path in job["sources"]:
    with open(path, "rb") as file:
        compile(file.read(), path, "exec", dont_inherit=True)
spec = importlib.import_module(job["module"] + ".spec").MuonSpec(**job["spec"])
fork = importlib.import_module(job["module"] + "._muon")
import jax.numpy as jnp
params = {"kernel": jnp.ones((8, 4)), "bias": jnp.ones((4,))}
optimizer = fork.muon(1e-3, **spec.muon_kwargs())
updates, _ = optimizer.update(params, optimizer.init(params), params)
assert all(bool(jnp.isfinite(leaf).all()) for leaf in updates.values()), updates
"""


def build_optimizer(python: str, plan: Plan) -> None:
    """Compile every changed file, import the fork, build its optimizer and take one step.

    Raises:
      MigrateError: that Python cannot be run, or the step fails; the last line says why.
    """
    job = {
        "module": plan.context.module,
        "spec": dataclasses.asdict(plan.context.spec),
        "sources": [str(c.path) for c in plan.changes if c.path.suffix == ".py" and c.after],
    }
    environment = {
        "JAX_PLATFORMS": "cpu",
        **os.environ,
        "PYTHONPATH": str(plan.layout.package.parent),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    try:
        answer = subprocess.run(
            [_executable(python), "-c", _SCRIPT],
            input=json.dumps(job),
            capture_output=True,
            text=True,
            env=environment,
            cwd=tempfile.gettempdir(),
            timeout=_TIMEOUT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        message = f"--python {python!r} cannot be run: {error}"
        raise MigrateError(Problem(message)) from None
    if answer.returncode:
        lines = answer.stderr.strip().splitlines() or [f"exit {answer.returncode}"]
        message = f"the migrated optimizer does not run there, nothing was kept: {lines[-1]}"
        raise MigrateError(Problem(message, python))


def _executable(python: str) -> str:
    """A path holds in the user's directory, a bare name is looked up in PATH."""
    return os.path.abspath(python) if os.path.dirname(python) else python
