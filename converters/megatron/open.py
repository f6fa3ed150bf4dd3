"""Open a Megatron checkpoint of any format."""

from __future__ import annotations

from pathlib import Path

from converters.errors import CheckpointError
from converters.source import MomentumConvention, SetAside, Source, State

from . import folders, names
from .assemble import leftovers, table
from .integrity import require_files, require_layers, require_one_iteration, require_states
from .run import read_run
from .torch_dist import Checkpoint, open_index

# Why optimizer state is left where only weights are wanted.
_UNWANTED = "optimizer state, and only weights are asked for"


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
    found = folders.format_of(folder)
    if found != "torch_dist":
        folders.require_torch_dist(folder)
    checkpoint = open_index(folder, opaque)
    require_files(checkpoint)
    run = read_run(checkpoint)
    require_one_iteration(folder, run)
    keys = _keys(checkpoint)
    wanted = {k: v for k, v in keys.items() if optimizer or v[0] is State.WEIGHT}
    tensors = table(checkpoint, wanted)
    require_layers(tensors, run)
    require_states(tensors)
    unwanted = tuple(SetAside(key, _UNWANTED) for key in keys if key not in wanted)
    return Source(
        folder,
        found,
        run,
        tensors,
        _convention(checkpoint),
        unwanted + leftovers(checkpoint, keys),
    )


def _keys(checkpoint: Checkpoint) -> dict[str, tuple[State, str]]:
    """State and model key of every key that holds a parameter."""
    keys = {}
    for key in checkpoint.tensors:
        split = names.split_state(key)
        if split is None:
            if "optimizer" not in key.split("."):
                keys[key] = State.WEIGHT, key
        elif split[0] in names.STATES:
            keys[key] = names.STATES[split[0]], split[1]
    if any(".gbuf_idx_" in key for key in checkpoint.tensors):
        raise CheckpointError(
            f"{checkpoint.folder}: the distributed optimizer's state is in flat buffers without "
            "names (dp_reshardable): save it again with --dist-ckpt-optim-fully-reshardable"
        )
    return keys


def _convention(checkpoint: Checkpoint) -> MomentumConvention | None:
    split = map(names.split_state, checkpoint.tensors)
    return "sum" if any(s and s[0] in names.SUM_BUFFERS for s in split) else None
