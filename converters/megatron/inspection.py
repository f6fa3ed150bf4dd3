"""Describe a checkpoint from its metadata and common state, for ``muon-convert inspect``."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from muon_fork.megatron_args import settle
from muon_fork.spec import SpecError

from . import archives, pickles
from .run import Run, read_run
from .torch_dist import Checkpoint, open_checkpoint


def inspect_checkpoint(path: Path, opaque: tuple[str, ...] = ()) -> dict[str, Any]:
    """A report of JSON values: tensors, run, arguments, MuonSpec and how it was settled.

    ``muon_spec`` is None where the arguments do not settle one; the reason is among the notes.

    Raises:
      CheckpointError: the checkpoint cannot be read.
    """
    checkpoint = open_checkpoint(path, opaque)
    run = read_run(checkpoint)
    spec, notes = _spec(run)
    return {
        "folder": str(checkpoint.folder),
        "iteration": run.iteration,
        "tensors": [
            {"key": key, "shape": list(entry.shape), "dtype": entry.dtype}
            for key, entry in checkpoint.tensors.items()
        ],
        "bytes": _bytes(checkpoint),
        "muon_spec": spec,
        "notes": notes,
        "optimizers": [
            {"step": o.step, "groups": [plain(group) for group in o.groups]} for o in run.optimizers
        ],
        "schedule": plain(run.schedule),
        "args": plain(run.arguments),
    }


def plain(value: Any) -> Any:
    """The value in JSON's types; dtypes by torch's name, other objects as their description."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(v) for v in value]
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, pickles.DType):
        return f"torch.{value.name}"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, (bool, int, float, str, type(None))) else str(value)


def _spec(run: Run) -> tuple[dict[str, Any] | None, list[str]]:
    try:
        spec, notes = settle(run.arguments, {})
    except SpecError as error:
        return None, [f"no MuonSpec: {error}"]
    return dataclasses.asdict(spec), list(notes)


def _bytes(checkpoint: Checkpoint) -> int:
    return sum(
        math.prod(entry.shape) * archives.numpy_dtype(entry.dtype, key).itemsize
        for key, entry in checkpoint.tensors.items()
    )
