"""What a checkpoint says about its run: arguments, optimizer groups, schedule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from converters.errors import CheckpointError

from . import archives, folders, pickles
from .torch_dist import Checkpoint, read_blob

# Since 0.19 the common state is an entry among the tensors; before, a file beside them.
COMMON_ENTRY = "common_state/shard_0_1"
COMMON_FILE = "common.pt"


@dataclass(frozen=True)
class OptimizerState:
    """One optimizer of the chain: its parameter groups and its common step, where it keeps one.

    Groups hold ``lr`` and ``weight_decay`` of the step that comes next.
    """

    groups: tuple[Mapping[str, Any], ...]
    step: int | None


@dataclass(frozen=True)
class Run:
    """The common state, as plain values.

    Attributes:
      arguments: ``args`` of the training script by name; enum members and objects are records.
      iteration: finished steps.
      optimizers: in Megatron's order, Muon before Adam; empty where none was saved.
      schedule: ``opt_param_scheduler``, empty where none was saved.
    """

    arguments: Mapping[str, Any]
    iteration: int
    optimizers: tuple[OptimizerState, ...]
    schedule: Mapping[str, Any]


def read_run(checkpoint: Checkpoint) -> Run:
    """The run's common state.

    Raises:
      CheckpointError: it is missing, damaged or refused, or has no arguments or iteration.
    """
    common = _common_state(checkpoint)
    arguments = common.get("args")
    if not isinstance(arguments, pickles.Record) or not arguments.attributes:
        raise CheckpointError(f"{checkpoint.folder}: the common state has no 'args'")
    return Run(
        arguments=arguments.attributes,
        iteration=_iteration(checkpoint, common),
        optimizers=tuple(_optimizer(o) for o in _chain(common.get("optimizer"))),
        schedule=_mapping(common.get("opt_param_scheduler")),
    )


def _common_state(checkpoint: Checkpoint) -> Mapping[Any, Any]:
    if COMMON_ENTRY in checkpoint.blobs:
        value = read_blob(checkpoint, COMMON_ENTRY)
    else:
        file = checkpoint.folder / COMMON_FILE
        folders.require_content(file)
        value = archives.load(file, str(file), checkpoint.opaque)
    # A sharded object is saved as a list of one.
    while isinstance(value, list) and len(value) == 1:
        value = value[0]
    if not isinstance(value, dict):
        raise CheckpointError(f"{checkpoint.folder}: the common state is no dictionary")
    return value


def _iteration(checkpoint: Checkpoint, common: Mapping[Any, Any]) -> int:
    value = _scalar(common.get("iteration"))
    if not isinstance(value, int):
        raise CheckpointError(f"{checkpoint.folder}: 'iteration' is {value!r}")
    return value


def _chain(value: Any) -> list[Mapping[Any, Any]]:
    """The optimizers: Megatron numbers them, or saves the only one bare."""
    if not isinstance(value, dict):
        return []
    if "param_groups" in value or "optimizer" in value:
        return [value]
    return [value[k] for k in sorted(value, key=str) if isinstance(value[k], dict)]


def _optimizer(value: Mapping[Any, Any]) -> OptimizerState:
    # Mixed precision wraps the state once more.
    inner = value["optimizer"] if isinstance(value.get("optimizer"), dict) else value
    groups = tuple(_mapping(group) for group in inner.get("param_groups", ()))
    step = _mapping(inner.get("state")).get("common_step")
    if step is None and groups:
        step = groups[0].get("step")
    step = _scalar(step)
    return OptimizerState(groups, None if step is None else int(step))


def _mapping(value: Any) -> Mapping[str, Any]:
    return {str(k): v for k, v in value.items()} if isinstance(value, dict) else {}


def _scalar(value: Any) -> Any:
    return value.item() if isinstance(value, np.ndarray) and value.size == 1 else value
