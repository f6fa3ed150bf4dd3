"""Which keys of a distributed checkpoint hold parameters, per format: state and model key of each.

Back ends differ in where an optimizer's state has its parameter's name: before it (torch_dist), in
the middle (fsdp_dtensor), or nowhere (torch_dcp, which numbers the parameters of its groups).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from converters.errors import CheckpointError
from converters.source import State

from . import names
from .run import Run, param_groups
from .torch_dist import Checkpoint

Keys = dict[str, tuple[State, str]]

_NAMED = re.compile(r"optimizer\.state\.((?:module\.)*.+)\.(\w+)")
_NUMBERED = re.compile(r"optimizer\.state\.(\d+)\.(\w+)")
_MODEL = "model."
# Of another optimizer than Muon and Adam, or of a form that nothing here reads.
_UNKNOWN = (
    "is optimizer state of a kind that is neither Muon's nor Adam's: convert the weights alone "
    "(--no-optimizer)"
)


def torch_dist_keys(checkpoint: Checkpoint, with_states: bool) -> Keys:
    """Of ``torch_dist``; the distributed optimizer's flat buffers are left out.

    Raises:
      CheckpointError: a tensor of the optimizer that is not known.
    """
    keys: Keys = {}
    for key in checkpoint.tensors:
        split = names.split_state(key)
        if split and split[0] in names.STATES:
            keys[key] = names.STATES[split[0]], split[1]
        elif "optimizer" not in key.split("."):
            keys[key] = State.WEIGHT, key
        elif with_states and not is_flat(key) and not (split and split[0] == "step"):
            raise CheckpointError(f"{checkpoint.folder}: {key} {_UNKNOWN}")
    return keys


def is_flat(key: str) -> bool:
    """Whether a tensor is a bucket of the distributed optimizer, without names inside."""
    return ".gbuf_idx_" in key


def fsdp_dtensor_keys(checkpoint: Checkpoint, with_states: bool) -> Keys:
    """Of ``fsdp_dtensor``: ``optimizer.state.<wrappers>.<model key>.<state>``.

    The model's tensors are the float32 masters there.
    """
    keys = _model_keys(checkpoint)
    for key in checkpoint.tensors:
        match = _NAMED.fullmatch(key)
        if match and match[2] in names.STATES:
            keys[key] = names.STATES[match[2]], match[1]
        elif with_states and key.startswith("optimizer.") and not key.endswith(".step"):
            raise CheckpointError(f"{checkpoint.folder}: {key} {_UNKNOWN}")
    return keys


def torch_dcp_keys(checkpoint: Checkpoint, run: Run, with_states: bool) -> Keys:
    """Of ``torch_dcp``: ``optimizer.state.<number>.<state>``, numbered through the groups.

    Within a group parameters keep the model's order, which is that of its keys. Which parameters a
    group has follows from its weight decay; counts and shapes must agree.

    Raises:
      CheckpointError: they do not.
    """
    keys = _model_keys(checkpoint)
    if not with_states:
        return keys
    owners = _numbers(checkpoint, list(keys), run.arguments)
    for key in checkpoint.tensors:
        match = _NUMBERED.fullmatch(key)
        if match and match[2] in names.STATES and int(match[1]) in owners:
            keys[key] = names.STATES[match[2]], owners[int(match[1])]
        elif key.startswith("optimizer.") and not (match and match[2] == "step"):
            raise CheckpointError(f"{checkpoint.folder}: {key} {_UNKNOWN}")
    return keys


def _model_keys(checkpoint: Checkpoint) -> Keys:
    return {key: (State.WEIGHT, key) for key in checkpoint.tensors if key.startswith(_MODEL)}


def _numbers(
    checkpoint: Checkpoint, model: Sequence[str], arguments: Mapping[str, Any]
) -> dict[int, str]:
    """Model key by number."""
    decays_norms = bool(arguments.get("apply_wd_to_qk_layernorm"))
    left = [key for key in model if not key.endswith(names.BUFFERS)]
    owners: dict[int, str] = {}
    for group in param_groups(checkpoint):
        decays = group.get("wd_mult") != 0.0
        mine = [k for k in left if _decays(k, checkpoint.tensors[k].shape, decays_norms) == decays]
        numbers = group.get("params")
        if not isinstance(numbers, list) or len(numbers) != len(mine) or not mine:
            raise CheckpointError(_undecided(checkpoint, f"group {group.get('params')!r}"))
        owners.update(zip(numbers, mine, strict=True))
        left = [key for key in left if key not in mine]
    if left:
        raise CheckpointError(_undecided(checkpoint, f"{left[0]} is in no group"))
    for number, key in owners.items():
        entry = checkpoint.tensors.get(f"optimizer.state.{number}.exp_avg")
        if entry is not None and entry.shape != checkpoint.tensors[key].shape:
            raise CheckpointError(_undecided(checkpoint, f"state {number} has shape {entry.shape}"))
    return owners


def _decays(key: str, shape: tuple[int, ...], decays_norms: bool) -> bool:
    if decays_norms and key.endswith((".q_layernorm.weight", ".k_layernorm.weight")):
        return True
    return len(shape) > 1 and not key.endswith(".bias")


def _undecided(checkpoint: Checkpoint, seen: str) -> str:
    return (
        f"{checkpoint.folder}: the optimizer's parameters are numbered, and {seen} does not fit "
        "the order of the model's keys: convert the weights alone (--no-optimizer), or save it "
        "again with --ckpt-format torch_dist"
    )
