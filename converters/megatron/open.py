"""Open a Megatron checkpoint of any format."""

from __future__ import annotations

from pathlib import Path

from converters.errors import CheckpointError
from converters.source import MomentumConvention, SetAside, Source, State

from . import folders, names
from .assemble import leftovers, table
from .integrity import require_files, require_model, require_one_iteration, require_states
from .keys import Keys, fsdp_dtensor_keys, is_flat, torch_dcp_keys, torch_dist_keys
from .legacy import open_legacy, read_reshardable
from .masters import with_matching_masters
from .run import Run, read_run
from .torch_dist import Checkpoint, open_index

# Why optimizer state is left where only weights are wanted.
_UNWANTED = "optimizer state, and only weights are asked for"
# Formats without metadata.json.
_FSDP_FORMATS = ("torch_dcp", "fsdp_dtensor")


def open_source(
    path: Path,
    *,
    iteration: int | None = None,
    opaque: tuple[str, ...] = (),
    optimizer: bool = True,
) -> Source:
    """Names, shapes and arguments of a checkpoint; tensors are read when they are loaded.

    Args:
      path: ``iter_XXXXXXX``, or the folder above it.
      iteration: one that is not the latest.
      opaque: qualified names of own classes that may be read as inert values.
      optimizer: False leaves the optimizer's state aside, whole or not.

    Raises:
      CheckpointError: missing, incomplete, damaged, mixed from two saves, or in a form that cannot
        be decoded with certainty.
    """
    folder = folders.resolve(path, iteration)
    files = folders.format_of(folder)
    if files == "torch":
        return open_legacy(folder, opaque, optimizer=optimizer)
    checkpoint = open_index(folder, opaque)
    require_files(checkpoint)
    run = read_run(checkpoint)
    require_one_iteration(folder, run)
    form = "torch_dist" if files == "torch_dist" else _fsdp_format(checkpoint, run)
    keys = _keys(form, checkpoint, run, optimizer)
    wanted = {k: v for k, v in keys.items() if optimizer or v[0] is State.WEIGHT}
    tensors = with_matching_masters(table(checkpoint, wanted))
    if optimizer and any(map(is_flat, checkpoint.tensors)):
        form += "+dp_reshardable"
        tensors |= read_reshardable(checkpoint, run.arguments, tensors)
    require_model(tensors, run)
    require_states(tensors)
    unwanted = [key for key in checkpoint.tensors if key not in wanted and _is_state(key)]
    return Source(
        folder,
        form,
        run,
        tensors,
        _convention(checkpoint),
        tuple(SetAside(k, _UNWANTED) for k in unwanted if not optimizer)
        + leftovers(checkpoint, {*wanted, *unwanted}),
    )


def _fsdp_format(checkpoint: Checkpoint, run: Run) -> str:
    form = run.arguments.get("ckpt_format")
    if form not in _FSDP_FORMATS:
        raise CheckpointError(
            f"{checkpoint.folder}: .metadata without metadata.json, but ckpt_format is {form!r} in "
            f"the arguments: metadata.json is missing, or this is none of {_FSDP_FORMATS}"
        )
    return str(form)


def _keys(form: str, checkpoint: Checkpoint, run: Run, optimizer: bool) -> Keys:
    if form == "torch_dcp":
        return torch_dcp_keys(checkpoint, run, optimizer)
    if form == "fsdp_dtensor":
        return fsdp_dtensor_keys(checkpoint, optimizer)
    return torch_dist_keys(checkpoint, optimizer)


def _is_state(key: str) -> bool:
    return "optimizer" in key.split(".") and not key.endswith(".step")


def _convention(checkpoint: Checkpoint) -> MomentumConvention | None:
    sums = set(names.SUM_BUFFERS)
    return "sum" if any(sums.intersection(key.split(".")) for key in checkpoint.tensors) else None
