"""Record a training run: start its processes, and lay down the folder that describes it."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from .stream import token_stream
from .training import Training

ROOT = Path(__file__).parents[3]
TOKENS = "tokens.npy"
LOSSES = "losses.txt"
FLOOR = "floor_losses.txt"
_POLL = 0.2  # seconds
_DIRECTIONS: tuple[Literal[-1, 1], ...] = (1, -1)


class TrainingFailed(RuntimeError):
    """A process ended badly; the message holds the end of what it said."""


def record(
    training: Training,
    folder: Path,
    *,
    floor: bool = False,
    progress: Callable[[str], None] = lambda _line: None,
) -> Path:
    """Train, and write checkpoints, ``tokens.npy``, ``losses.txt`` and ``run.json`` to ``folder``.

    Args:
      folder: does not exist yet, or is empty.
      floor: also train from the first checkpoint with every weight one unit in the last place up,
        and down, for ``floor_losses``: of each step the loss that is further off.

    Raises:
      TrainingFailed: a process ended badly.
    """
    folder.mkdir(parents=True, exist_ok=True)
    model = training.model
    stream = token_stream(max(training.steps, 1), model.batch, model.sequence, model.vocabulary)
    np.save(folder / TOKENS, stream)
    _run(training, folder, folder / TOKENS, progress)
    description: dict[str, object] = {"tokens": TOKENS, "losses": LOSSES}
    if floor:
        np.savetxt(folder / FLOOR, _floor(training, folder, progress), fmt="%.17g")
        description["floor_losses"] = FLOOR
    description["checkpoints"] = [f"iter_{step:07d}" for step in training.saves]
    description["notes"] = [_note(training)]
    (folder / "run.json").write_text(json.dumps(description, indent=1) + "\n")
    if training.saves:
        tracker = folder / "latest_checkpointed_iteration.txt"
        tracker.write_text(str(max(training.saves)))
    return folder


def _floor(
    training: Training, folder: Path, progress: Callable[[str], None]
) -> npt.NDArray[np.float64]:
    """What Megatron's losses become by rounding alone, from where the other trainer starts.

    One run is one sample: where a near tie of experts may or may not flip, two see more.
    """
    first = min(training.saves, default=0)
    start = str(folder / f"iter_{first:07d}") if training.saves else ""
    losses = np.loadtxt(folder / LOSSES)
    furthest = losses.copy()
    for direction in _DIRECTIONS:
        progress(f"the same from step {first}, every weight one unit in the last place off")
        moved = training.replace(nudge=direction, saves=(), start=start)
        with tempfile.TemporaryDirectory() as scratch:
            _run(moved, Path(scratch), folder / TOKENS, progress)
            # Megatron saw no other weights before.
            now = np.concatenate([losses[:first], np.loadtxt(Path(scratch) / LOSSES)])
        furthest = np.where(np.abs(now - losses) > np.abs(furthest - losses), now, furthest)
    return furthest


def _note(training: Training) -> str:
    packages = ["megatron-core", "torch"]
    packages += ["emerging-optimizers"] if training.reference == "core" else []
    installed = ", ".join(f"{name} {metadata.version(name)}" for name in packages)
    whose = "" if training.reference == "core" else " with the optimizer of RFC-0023"
    numbers = "" if training.dtype == "float32" else f" in {training.dtype}"
    return f"{training.model.name} trained{whose}{numbers} on a CPU by {installed}"


def resave(training: Training, folder: Path) -> Path:
    """The iteration that ``training.start`` holds, as the run's layout and form have it.

    Returns:
      the new iteration's folder in ``folder``.

    Raises:
      TrainingFailed: a process ended badly.
    """
    folder.mkdir(parents=True, exist_ok=True)
    step = int(Path(training.start).name.removeprefix("iter_"))
    model = training.model
    np.save(folder / TOKENS, token_stream(1, model.batch, model.sequence, model.vocabulary))
    stopped = training.replace(steps=step, saves=(step,))
    _run(stopped, folder, folder / TOKENS, lambda _line: None)
    (folder / TOKENS).unlink()
    return folder / Path(training.start).name


def _run(training: Training, folder: Path, tokens: Path, progress: Callable[[str], None]) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        plan = {"training": training.as_json(), "folder": str(folder), "tokens": str(tokens)}
        file = Path(scratch) / "plan.json"
        file.write_text(json.dumps(plan))
        outputs = [Path(scratch) / f"{rank}.txt" for rank in range(training.layout.processes)]
        started = []
        try:
            for rank, output in enumerate(outputs):
                started.append(_process(file, rank, output))
            _wait(started, outputs, progress)
        finally:
            for process in started:
                process.kill()
                process.wait()


def _process(plan: Path, rank: int, output: Path) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-m", "checks.trainers.megatron", str(plan), str(rank)]
    with output.open("wb") as stream:
        return subprocess.Popen(words, cwd=ROOT, stdout=stream, stderr=subprocess.STDOUT)


def _wait(
    processes: Sequence[subprocess.Popen[bytes]],
    outputs: Sequence[Path],
    progress: Callable[[str], None],
) -> None:
    """Until all are done or one failed, passing on what the first says."""
    shown = 0
    while True:
        codes = [process.poll() for process in processes]
        said = [s for s in outputs[-1].read_text(errors="replace").splitlines() if "step " in s]
        for line in said[shown:]:
            progress(line)
        shown = len(said)
        failed = [rank for rank, code in enumerate(codes) if code]
        if failed:
            tail = outputs[failed[0]].read_text(errors="replace")[-3000:]
            raise TrainingFailed(f"process {failed[0]} ended with {codes[failed[0]]}:\n{tail}")
        if all(code == 0 for code in codes):
            return
        time.sleep(_POLL)
