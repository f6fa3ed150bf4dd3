"""Write a TargetState through Orbax as MaxText itself would have saved it."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp
from orbax.checkpoint._src.serialization import type_handler_registry

from converters.errors import CheckpointError
from converters.target import TargetState, TargetTensor, leaves

from . import arrays
from .streaming import Limits, Pending, Streamer, StreamingHandler

ITEMS = "items"
STEP_METADATA = "_CHECKPOINT_METADATA"
# Leaves in memory may fill this much even where the largest is smaller.
_FLOOR = 64 << 20
_CHUNKS_OF_LARGEST = 64
# Of each chunk: as it is compressed, written and read back, for all that are in flight.
_COPIES = 24


def limits_for(state: TargetState, workers: int) -> Limits:
    """Two of the largest leaf in memory: one is built while the other is written."""
    largest = _largest(state)
    # What chunks take beyond those of the usual size.
    chunks = _COPIES * (chunk_bytes(state) - arrays.CHUNK_BYTES)
    return Limits(workers, max(2 * largest - chunks, _FLOOR))


def chunk_bytes(state: TargetState) -> int:
    """Of a chunk. Every few chunks the index of all is written anew: not too many, then."""
    return max(arrays.CHUNK_BYTES, _largest(state) // _CHUNKS_OF_LARGEST)


def _largest(state: TargetState) -> int:
    return max((target.bytes for target in leaves(state.tree)), default=0)


def write_state(
    state: TargetState,
    folder: Path,
    *,
    workers: int = 2,
    done: Callable[[TargetTensor, str], None] = lambda target, digest: None,
    stop: threading.Event | None = None,
) -> Path:
    """Write ``folder/<step - 1>`` and return it. Every leaf was read back and compared.

    With several JAX processes each must call this; each writes its share of the leaves.

    Args:
      state: what to write.
      folder: an existing, absolute path.
      workers: threads that build, compress and write.
      done: told of each leaf of this process with its sha256.
      stop: set it to call the work off.

    Raises:
      CheckpointError: a source cannot be read, or a leaf was read back differently.
      Stopped: ``stop`` was set.
      OSError: the disk is full or not writable.
    """
    for target in leaves(state.tree):
        if 0 in target.shape:
            raise CheckpointError(f"{'/'.join(target.path)}: no elements, shape {target.shape}")
    share = shares(state, jax.process_count())
    streamer = Streamer(
        limits_for(state, workers),
        mine=lambda target: share[target.path] == jax.process_index(),
        done=done,
        stop=stop or threading.Event(),
    )
    place = folder / str(state.step - 1)
    pending = jax.tree.map(Pending, state.tree, is_leaf=lambda x: isinstance(x, TargetTensor))
    metadata = {"scan_layers": state.scan_layers} if state.records_scan_layers else {}
    with ocp.Checkpointer(ocp.CompositeCheckpointHandler(**{ITEMS: _handler(streamer)})) as saver:
        saver.save(
            str(place),
            args=ocp.args.Composite(**{ITEMS: _arguments(pending, chunk_bytes(state))}),
            custom_metadata=metadata,
        )
    if metadata and jax.process_index() == 0:
        # MaxText looks for scan_layers in the folder that it is given, and documents items.
        shutil.copyfile(place / STEP_METADATA, place / ITEMS / STEP_METADATA)
    return place


def shares(state: TargetState, processes: int) -> dict[tuple[str, ...], int]:
    """Which process writes which leaf: the next largest to the one with the fewest bytes."""
    loads = [0] * processes
    share = {}
    for target in sorted(leaves(state.tree), key=lambda t: (-t.bytes, t.path)):
        process = loads.index(min(loads))
        loads[process] += target.bytes
        share[target.path] = process
    return share


def _handler(streamer: Streamer) -> ocp.PyTreeCheckpointHandler:
    handler = StreamingHandler(streamer)
    registry = type_handler_registry.create_type_handler_registry((Pending, handler))
    # Orbax asks the handler of jax.Array where the shapes of chunks are kept.
    registry.add(jax.Array, handler, override=True, ignore_warnings=True)
    return ocp.PyTreeCheckpointHandler(
        use_ocdbt=True, use_zarr3=True, type_handler_registry=registry
    )


def _arguments(tree: Any, chunk: int) -> ocp.args.PyTreeSave:
    chunked = ocp.SaveArgs(chunk_byte_size=chunk)
    return ocp.args.PyTreeSave(tree, save_args=jax.tree.map(lambda _: chunked, tree))
