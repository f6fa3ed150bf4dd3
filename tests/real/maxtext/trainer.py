"""Run a released or migrated MaxText for a few steps in its own Python and read back the run."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from checks.training.tree import imports_tensorflow

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
TIMEOUT = 420  # seconds; a run takes 15 to 30 on an idle core
# Enough tokens for every expert: a rank-deficient gradient has directions that are rounding alone,
# and Newton-Schulz blows these up until no float32 implementation can follow float64.
BATCH, LENGTH, VOCABULARY = 8, 32, 256

# A CPU run without checkpoints or randomness, at constant learning rate and unclipped. 0.2.2
# does not log without TensorBoard.
BASE = {
    "run_name": "run",
    "hardware": "cpu",
    "skip_jax_distributed_system": True,
    "model_name": "default",
    "vocab_size": VOCABULARY,
    "max_target_length": LENGTH,
    "dataset_type": "synthetic",
    "packing": False,
    "opt_type": "muon",
    "attention": "dot_product",
    "dtype": "float32",
    "weight_dtype": "float32",
    "matmul_precision": "highest",
    "dropout_rate": 0.0,
    "enable_dropout": False,
    "enable_checkpointing": False,
    "enable_goodput_recording": False,
    "enable_tensorboard": True,
    "log_period": 1,
    "learning_rate": 0.02,
    "learning_rate_final_fraction": 1.0,
    "warmup_steps_fraction": 0,
    "gradient_clipping_threshold": 0,
}


@dataclass(frozen=True)
class Run:
    """What one training run showed.

    Attributes:
      losses: float64 [steps].
      record: ``<step>/{grad,param,update,before,state}/<path>`` to array; empty without capture.
      config: MaxText's scalar configuration values as the trainer held them.
      state_types: qualified names of the named tuples in the optimizer state.
      modules: imported modules with ``muon`` in their name.
    """

    losses: np.ndarray
    record: Mapping[str, np.ndarray]
    config: Mapping[str, Any]
    state_types: tuple[str, ...]
    modules: tuple[str, ...]

    def tree(self, step: int, kind: str) -> dict[str, np.ndarray]:
        """The leaves of one recorded tree, by path."""
        prefix = f"{step}/{kind}/"
        return {k[len(prefix) :]: v for k, v in self.record.items() if k.startswith(prefix)}


def train(
    tree: Path,
    folder: Path,
    overrides: Mapping[str, object],
    *,
    steps: int,
    capture: bool = False,
    devices: int = 1,
    resumed: int = 0,
    tokens: np.ndarray | None = None,
) -> Run:
    """Train ``steps`` steps of the MaxText whose package lies in ``tree``.

    ``resumed`` steps were already taken in a checkpoint that lies in ``folder``. ``tokens``, int32
    [steps, batch, length + 1], replace the synthetic ones.

    Raises:
      AssertionError: the run failed or ran another MaxText; the message ends with its output.
    """
    folder.mkdir(parents=True, exist_ok=True)
    options = dict(BASE) | {"base_output_directory": folder} | dict(overrides)
    options["steps"] = resumed + steps
    if tokens is None:
        batch = int(str(options.setdefault("per_device_batch_size", BATCH))) * devices
        tokens = synthetic_tokens(steps, batch)
    options |= {"per_device_batch_size": tokens.shape[1] // devices}
    options["metrics_file"] = folder / "metrics.jsonl"
    np.save(folder / "tokens.npy", tokens)
    plan = {
        "argv": [str(tree / "maxtext/configs/base.yml"), *(f"{k}={v}" for k, v in options.items())],
        "tokens": str(folder / "tokens.npy"),
        "capture": capture,
        "out": str(folder),
    }
    (folder / "plan.json").write_text(json.dumps(plan))
    output = _run_driver(tree, folder, devices)
    facts = json.loads((folder / "facts.json").read_text())
    assert Path(facts["package"]) == tree / "maxtext", f"ran {facts['package']}, not {tree}"
    losses = _losses(folder / "metrics.jsonl")
    assert len(losses) == steps, f"{len(losses)} of {steps} steps were logged\n{output}"
    record = dict(np.load(folder / "record.npz")) if capture else {}
    types, modules = facts["state_types"], facts["modules"]
    return Run(losses, record, facts["config"], tuple(types), tuple(modules))


def synthetic_tokens(steps: int, batch: int) -> np.ndarray:
    """int32 [steps, batch, LENGTH + 1]: the same stream on every machine."""
    generator = np.random.Generator(np.random.PCG64(20230))
    shape = (steps, batch, LENGTH + 1)
    return generator.integers(0, VOCABULARY, shape, dtype=np.int32)


@functools.cache
def built(what: str) -> Path:
    """Path that ``environments/build.py`` prints for ``maxtext`` or ``releases``."""
    command = [sys.executable, str(ROOT / "environments/build.py"), what]
    answer = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    assert answer.returncode == 0, f"environments/build.py {what} failed: see its message above"
    return Path(answer.stdout.strip())


def _run_driver(tree: Path, folder: Path, devices: int) -> str:
    search = [str(tree), str(ROOT)]
    if imports_tensorflow(tree):
        search.append(str(ROOT / "checks/trainers/stand_ins"))
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(search),
        "PYTHONDONTWRITEBYTECODE": "1",
        "JAX_PLATFORMS": "cpu",
        "DECOUPLE_GCLOUD": "TRUE",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
    }
    command = [str(built("maxtext")), str(HERE / "child/driver.py"), str(folder / "plan.json")]
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        timeout=TIMEOUT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    (folder / "output.txt").write_text(done.stdout)
    tail = "\n".join(done.stdout.splitlines()[-40:])
    assert done.returncode == 0, f"MaxText in {tree} ended with {done.returncode}:\n{tail}"
    return tail


def _losses(metrics: Path) -> np.ndarray:
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    by_step = {int(row["step"]): float(row["learning/loss"]) for row in rows}
    return np.array([by_step[step] for step in sorted(by_step)])
