"""What a checkpoint says about its run: arguments, optimizer groups, schedule."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from converters.errors import CheckpointError

from . import archives, folders, pickles
from .torch_dist import Checkpoint, read_blob, read_tensor

# Since 0.19 the common state is an entry among the tensors; before, a file beside them.
COMMON_ENTRY = "common_state/shard_0_1"
COMMON_FILE = "common.pt"
# The FSDP back ends have no common state: each of its values is an entry.
ARGUMENTS_ENTRY = "args"
# Where the distributed optimizer keeps its groups beside flat buffers.
_DISTRIBUTED = re.compile(r"(?:chained_\d+\.)*optimizer\.distributed\.dp_group_idx_0\.optimizer/.+")
_GROUPS = re.compile(r"optimizer\.param_groups\.(\d+)\.(\w+)")
_GROUP_OF = re.compile(r"optimizer\.param_to_group_meta\.(.+)\.(\w+)")
_STEP = re.compile(r"optimizer\.state\..+\.step")


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
    entries = ARGUMENTS_ENTRY in checkpoint.blobs
    common = _entries(checkpoint) if entries else _common_state(checkpoint)
    arguments = common.get("args")
    if not isinstance(arguments, pickles.Record) or not arguments.attributes:
        raise CheckpointError(
            f"{checkpoint.folder}: the common state has no 'args', the arguments that "
            "Megatron-LM's training script saves; other trainers on Megatron-Core do not: save it "
            "with that script, or add its Namespace to the common state"
        )
    optimizers = [_optimizer(o) for o in _chain(common.get("optimizer"))]
    if entries and (groups := param_groups(checkpoint)):
        optimizers = [OptimizerState(tuple(map(_without_params, groups)), _step(checkpoint))]
    return Run(
        arguments=arguments.attributes,
        iteration=_iteration(checkpoint, common),
        optimizers=(*optimizers, *_distributed(checkpoint)),
        schedule=_mapping(common.get("opt_param_scheduler")),
    )


def param_groups(checkpoint: Checkpoint) -> list[dict[str, Any]]:
    """The optimizer's groups where each of their fields is an entry, ``params`` included."""
    groups: dict[int, dict[str, Any]] = {}
    of_parameter: dict[str, dict[str, Any]] = {}
    for key in checkpoint.blobs:
        if match := _GROUPS.fullmatch(key):
            groups.setdefault(int(match[1]), {})[match[2]] = read_blob(checkpoint, key)
        elif match := _GROUP_OF.fullmatch(key):
            of_parameter.setdefault(match[1], {})[match[2]] = read_blob(checkpoint, key)
    if groups:
        return [groups[number] for number in sorted(groups)]
    return list({repr(sorted(g.items())): g for g in of_parameter.values()}.values())


def _without_params(group: Mapping[str, Any]) -> Mapping[str, Any]:
    return {key: value for key, value in group.items() if key != "params"}


def _step(checkpoint: Checkpoint) -> int | None:
    """The step that every parameter's own count agrees on."""
    keys = [key for key in checkpoint.tensors if _STEP.fullmatch(key)]
    counts = {key: read_tensor(checkpoint, key).item() for key in keys}
    if len(set(counts.values())) > 1:
        odd = max(counts, key=lambda key: abs(counts[key] - counts[keys[0]]))
        raise CheckpointError(
            f"{checkpoint.folder}: {odd} is {counts[odd]}, {keys[0]} is {counts[keys[0]]}: the "
            "parameters are of two checkpoints, or were not all trained"
        )
    return int(counts[keys[0]]) if keys else None


def is_distributed_groups(key: str) -> bool:
    """Whether an entry holds the groups of a distributed optimizer with flat buffers."""
    return _DISTRIBUTED.fullmatch(key) is not None


def _distributed(checkpoint: Checkpoint) -> list[OptimizerState]:
    found = []
    for key in checkpoint.blobs:
        if is_distributed_groups(key):
            value = _unwrapped(read_blob(checkpoint, key))
            if not isinstance(value, dict):
                raise CheckpointError(f"{checkpoint.folder}: {key} is no optimizer's state")
            found.append(_optimizer(value))
    return found


def _entries(checkpoint: Checkpoint) -> Mapping[Any, Any]:
    """The common state from entries of its values."""
    schedule = "opt_param_scheduler."
    return {
        **{k: read_blob(checkpoint, k) for k in ("args", "iteration") if k in checkpoint.blobs},
        "opt_param_scheduler": {
            key.removeprefix(schedule): read_blob(checkpoint, key)
            for key in checkpoint.blobs
            if key.startswith(schedule)
        },
    }


def _common_state(checkpoint: Checkpoint) -> Mapping[Any, Any]:
    if COMMON_ENTRY in checkpoint.blobs:
        value = read_blob(checkpoint, COMMON_ENTRY)
    else:
        file = checkpoint.folder / COMMON_FILE
        folders.require_content(file)
        value = archives.load(file, str(file), checkpoint.opaque)
    value = _unwrapped(value)
    if not isinstance(value, dict):
        raise CheckpointError(f"{checkpoint.folder}: the common state is no dictionary")
    return value


def _unwrapped(value: Any) -> Any:
    """A sharded object is saved as a list of one."""
    while isinstance(value, list) and len(value) == 1:
        value = value[0]
    return value


def _iteration(checkpoint: Checkpoint, common: Mapping[Any, Any]) -> int:
    value = _scalar(common.get("iteration"))
    if not isinstance(value, int):
        raise CheckpointError(f"{checkpoint.folder}: 'iteration' is {value!r}")
    return value


def _chain(value: Any) -> list[Mapping[Any, Any]]:
    """The optimizers: Megatron numbers them, chains chains, or saves the only one bare."""
    if not isinstance(value, dict):
        return []
    if "param_groups" in value or "optimizer" in value:
        return [value]
    children = [value[k] for k in sorted(value, key=_number) if isinstance(value[k], dict)]
    return [optimizer for child in children for optimizer in _chain(child)]


def _number(key: Any) -> tuple[bool, int, str]:
    return (False, key, "") if isinstance(key, int) else (True, 0, str(key))


def _optimizer(value: Mapping[Any, Any]) -> OptimizerState:
    # Mixed precision wraps the state once more.
    inner = value["optimizer"] if isinstance(value.get("optimizer"), dict) else value
    groups = tuple(_mapping(group) for group in inner.get("param_groups", ()))
    step = _mapping(inner.get("state")).get("common_step")
    if step is None and groups:
        step = groups[0].get("step")
    step = _scalar(step)
    if step is not None and not (isinstance(step, (int, float)) and step == int(step)):
        raise CheckpointError(f"the optimizer's step is {step!r}, expected a whole number")
    return OptimizerState(groups, None if step is None else int(step))


def _mapping(value: Any) -> Mapping[str, Any]:
    return {str(k): v for k, v in value.items()} if isinstance(value, dict) else {}


def _scalar(value: Any) -> Any:
    return value.item() if isinstance(value, np.ndarray) and value.size == 1 else value
