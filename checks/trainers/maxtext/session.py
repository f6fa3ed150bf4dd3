"""One or more training runs of MaxText in one process, on given tokens.

A plan, in JSON: ``runs``, each with ``argv`` (base.yml and overrides), ``tokens`` (an .npy of
integers [steps, batch, length + 1]), ``first`` (the batch of the run's first step) and ``batch``
(sequences of a step); ``facts``, the file that receives what trained: package, versions, device;
``x64``, whether JAX has float64.
"""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import numpy as np

from checks.trainers.fixed_batches import fixed_batches

_PACKAGES = ("jax", "jaxlib", "optax", "flax", "orbax-checkpoint", "numpy")


def run(plan_file: str) -> None:
    """Carry out the plan; an exception of MaxText ends the process."""
    plan = json.loads(Path(plan_file).read_text())
    jax.config.update("jax_enable_x64", plan["x64"])  # type: ignore[no-untyped-call]
    from maxtext.trainers.pre_train import train as trainer

    facts = _facts(Path(trainer.__file__))
    Path(plan["facts"]).write_text(json.dumps(facts, indent=1))
    for planned in plan["runs"]:
        tokens = np.load(planned["tokens"], mmap_mode="r")[planned["first"] :]
        share = planned["batch"] / jax.device_count()
        train([*planned["argv"], f"per_device_batch_size={share:g}"], tokens)


def train(argv: list[str], tokens: np.ndarray) -> None:
    """Train with MaxText's own ``main``; step s of this run reads ``tokens[s]``."""
    from maxtext.input_pipeline import input_pipeline_interface
    from maxtext.trainers.pre_train import train as trainer

    input_pipeline_interface.SyntheticDataIterator = fixed_batches(tokens)
    trainer.main(["train", *argv])


def _facts(trainer: Path) -> dict[str, Any]:
    device = jax.devices()[0]
    return {
        "package": str(trainer.parents[2]),
        "device": device.device_kind,
        "platform": device.platform,
        "devices": jax.device_count(),
        "versions": dict(_versions()),
    }


def _versions() -> list[tuple[str, str]]:
    found = []
    for name in _PACKAGES:
        try:
            found.append((name, metadata.version(name)))
        except metadata.PackageNotFoundError:
            continue
    return found
