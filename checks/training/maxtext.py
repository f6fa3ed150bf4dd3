"""Train real MaxText in a subprocess and read its losses in full precision."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from converters.maxtext.config import command_line

from .errors import RunError
from .last_words import ended, last_words
from .tree import Tree

_TRAINERS = Path(__file__).resolve().parents[1] / "trainers"
_SHIPPED = ("__init__.py", "fixed_batches.py", "maxtext", "stand_ins")
_PLATFORMS = {"cpu": "cpu", "gpu": "cuda", "tpu": "tpu"}

# What equality needs besides what the run's own arguments say, whatever is trained and wherever.
PINNED: Mapping[str, object] = {
    "matmul_precision": "highest",
    "attention": "dot_product",
    "dataset_type": "synthetic",
    "packing": False,
    "enable_dropout": False,
    "dropout_rate": 0.0,
    "sparse_matmul": False,
    "megablox": False,
}
# A run that leaves nothing but its losses.
QUIET: Mapping[str, object] = {
    "skip_jax_distributed_system": True,
    "enable_goodput_recording": False,
    "enable_tensorboard": False,
    "async_checkpointing": False,
    "checkpoint_period": 1_000_000_000,
    "log_period": 1_000_000_000,
}
# Where the release knows them: a loss that is NaN is a finding, not the end.
GOING_ON: Mapping[str, object] = {"abort_on_nan_loss": False, "abort_on_inf_loss": False}


@dataclass(frozen=True)
class Job:
    """One training run.

    Attributes:
      name: a fresh one: MaxText would resume a run of the same name.
      config: MaxText's keys; what this module pins comes on top.
      start: step that the run begins with, as MaxText counts.
      steps: how many.
      tokens: .npy of integers [steps, batch, length + 1].
      first_batch: index there of the run's first batch.
      batch: sequences of a step.
    """

    name: str
    config: Mapping[str, Any]
    start: int
    steps: int
    tokens: Path
    first_batch: int
    batch: int


@dataclass(frozen=True)
class Trained:
    """Losses, float64 [steps], of each job in their order, and what trained them."""

    losses: tuple[npt.NDArray[np.float64], ...]
    facts: Mapping[str, Any]


def train(
    tree: Tree,
    python: Path,
    jobs: Sequence[Job],
    folder: Path,
    *,
    device: str = "cpu",
    x64: bool = False,
    progress: Callable[[str], None] = lambda _line: None,
) -> Trained:
    """Run the jobs one after the other in one process of ``python``.

    Args:
      x64: JAX has float64 there.

    Raises:
      RunError: MaxText failed or stopped early; the message ends with its last lines.
    """
    folder.mkdir(parents=True, exist_ok=True)
    plan = {
        "facts": str(folder / "facts.json"),
        "x64": x64,
        "runs": [
            {
                "argv": [str(tree.base_yml), *_words(tree, job, folder, device)],
                "tokens": str(job.tokens.resolve()),
                "first": job.first_batch,
                "batch": job.batch,
            }
            for job in jobs
        ],
    }
    (folder / "plan.json").write_text(json.dumps(plan, indent=1))
    report = _reporting([_metrics(folder, job) for job in jobs], jobs, progress)
    _run(tree, python, folder, device, report)
    facts = json.loads((folder / "facts.json").read_text())
    if Path(facts["package"]).resolve() != (tree.base / "maxtext").resolve():
        raise RunError(f"{python}: ran the MaxText in {facts['package']}, not {tree.base}")
    return Trained(tuple(_losses(folder, job) for job in jobs), facts)


def _words(tree: Tree, job: Job, folder: Path, device: str) -> tuple[str, ...]:
    config: dict[str, Any] = {
        **job.config,
        **PINNED,
        **QUIET,
        **{key: value for key, value in GOING_ON.items() if key in tree.keys},
        "hardware": device,
        "run_name": job.name,
        "base_output_directory": str(folder),
        "metrics_file": str(_metrics(folder, job)),
        "jax_cache_dir": str(folder / "jax_cache"),
        "steps": job.start + job.steps,
    }
    if tree.version == "0.2.2":
        # It logs nothing without.
        config["enable_tensorboard"] = True
    return command_line(config)


def _metrics(folder: Path, job: Job) -> Path:
    return folder / f"{job.name}.jsonl"


def _run(tree: Tree, python: Path, folder: Path, device: str, report: Callable[[], None]) -> None:
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(_search_path(tree, folder)),
        "PYTHONDONTWRITEBYTECODE": "1",
        "JAX_PLATFORMS": _PLATFORMS[device],
        "DECOUPLE_GCLOUD": "TRUE",
    }
    if device == "cpu":
        environment["XLA_FLAGS"] = "--xla_force_host_platform_device_count=1"
    command = [str(python), "-m", "checks.trainers.maxtext", str(folder / "plan.json")]
    output = folder / "output.txt"
    with output.open("wb") as log:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT
        )
        try:
            while process.poll() is None:
                try:
                    process.wait(timeout=2)
                except subprocess.TimeoutExpired:
                    report()
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    if process.returncode or not (folder / "facts.json").exists():
        said = last_words(output.read_text(errors="replace"))
        raise RunError(f"MaxText in {tree.named} {ended(process.returncode)}:\n{said}")


def _search_path(tree: Tree, folder: Path) -> list[str]:
    """The tree, and a copy of the few files of ours that run in MaxText's Python.

    Not the folder that we are installed in: its packages are of another Python.
    """
    ours = folder / "search_path"
    package = ours / "checks"
    if not package.exists():
        (package / "trainers").mkdir(parents=True)
        (package / "__init__.py").touch()
        for name in _SHIPPED:
            source, target = _TRAINERS / name, package / "trainers" / name
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copyfile(source, target)
    stand_ins = [str(package / "trainers" / "stand_ins")] if tree.needs_tensorflow else []
    return [str(tree.base), str(ours), *stand_ins]


def _reporting(
    metrics: Sequence[Path], jobs: Sequence[Job], progress: Callable[[str], None]
) -> Callable[[], None]:
    """Says how many steps are done, whenever a tenth of them is more than at the last time."""
    total, said = sum(job.steps for job in jobs), -1

    def report() -> None:
        nonlocal said
        done = min(total, sum(map(_rows, metrics)))
        if done * 10 // total > said:
            progress(f"MaxText: about step {done} of {total}" if done else "MaxText: compiling")
            said = done * 10 // total

    return report


def _rows(metrics: Path) -> int:
    """About how many rows a growing file has; they are of nearly one length."""
    if not metrics.exists():
        return 0
    with metrics.open("rb") as stream:
        return round(metrics.stat().st_size / max(1, len(stream.readline())))


def _losses(folder: Path, job: Job) -> npt.NDArray[np.float64]:
    file = _metrics(folder, job)
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    by_step = {int(row["step"]): float(row["learning/loss"]) for row in rows}
    wanted = range(job.start, job.start + job.steps)
    if sorted(by_step) != list(wanted):
        found = f"the steps {min(by_step)} to {max(by_step)}" if by_step else "no step"
        raise RunError(
            f"MaxText logged {found}, expected {job.start} to {job.start + job.steps - 1}:\n"
            + last_words((folder / "output.txt").read_text(errors="replace"))
        )
    return np.array([by_step[step] for step in wanted], np.float64)
