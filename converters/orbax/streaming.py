"""An Orbax type handler whose leaves do not exist until they are written."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import numpy as np
import tensorstore as ts
from orbax.checkpoint._src.futures import future
from orbax.checkpoint._src.metadata import array_metadata_store, sharding
from orbax.checkpoint._src.serialization import tensorstore_utils, types
from orbax.checkpoint.type_handlers import ArrayHandler

from converters.budget import Budget, Stopped, run_within
from converters.errors import CheckpointError
from converters.target import TargetTensor

from . import arrays

Infos = Sequence[types.ParamInfo]
Done = Callable[[TargetTensor, str], None]


@dataclass(frozen=True)
class Pending:
    """What Orbax sees of a leaf: all it asks of an array but the elements."""

    target: TargetTensor

    @property
    def shape(self) -> tuple[int, ...]:
        return self.target.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.target.dtype

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def nbytes(self) -> int:
        return self.target.bytes


@dataclass(frozen=True)
class Limits:
    """How the leaves are worked off.

    Attributes:
      workers: threads.
      bytes: of leaves in memory at once; a larger leaf is worked on alone.
    """

    workers: int
    bytes: int


@dataclass
class Streamer:
    """Builds, writes, reads back and forgets leaf after leaf.

    Attributes:
      limits: threads and memory.
      mine: whether this process writes the target.
      done: told of each target of this process and its sha256, from the thread that saves.
      stop: set to call the work off.
    """

    limits: Limits
    mine: Callable[[TargetTensor], bool]
    done: Done
    stop: threading.Event = field(default_factory=threading.Event)

    def run(self, leaves: Sequence[Leaf]) -> None:
        window = arrays.window_for(self.limits.workers)
        context = arrays.writing_context()
        own = [leaf for leaf in leaves if self.mine(leaf.target)]
        jobs = (
            (
                sum(leaf.target.bytes for leaf in batch),
                partial(_work, batch, context, window, self.stop),
            )
            for batch in batches(own)
        )
        budget = Budget(self.limits.bytes)
        for results in run_within(budget, jobs, self.limits.workers, self.stop):
            for target, digest in results:
                self.done(target, digest)


@dataclass(frozen=True)
class Leaf:
    """A target and how Orbax wants it on disk."""

    target: TargetTensor
    info: types.ParamInfo
    spec: tensorstore_utils.ArrayWriteSpec


def batches(leaves: Sequence[Leaf], limit: int = arrays.CHUNK_BYTES) -> Iterator[list[Leaf]]:
    """Neighbours that are small together: their files are flushed once, not one by one."""
    batch: list[Leaf] = []
    size = 0
    for leaf in leaves:
        if batch and size + leaf.target.bytes > limit:
            yield batch
            batch, size = [], 0
        batch.append(leaf)
        size += leaf.target.bytes
    if batch:
        yield batch


def _work(
    batch: list[Leaf], context: ts.Context, window: int, stop: threading.Event
) -> list[tuple[TargetTensor, str]]:
    """Build the leaves, write them, hash them meanwhile, read them back."""
    built = []
    for leaf in batch:
        if stop.is_set():
            raise Stopped
        built.append(_build(leaf.target))
    writes = [
        arrays.write(leaf.spec.json, context, array, leaf.info.name, window)
        for leaf, array in zip(batch, built, strict=True)
    ]
    with contextlib.ExitStack() as opened:
        for write in writes:
            opened.callback(write.close)
        for write in writes:
            next(write)
        digests = [arrays.digest(array) for array in built]
        while writes:
            if stop.is_set():
                raise Stopped
            writes = [write for write in writes if next(write, _END) is not _END]
    return [(leaf.target, digest) for leaf, digest in zip(batch, digests, strict=True)]


_END = object()


def _build(target: TargetTensor) -> arrays.Array:
    array = target.build()
    if array.shape != target.shape or array.dtype != target.dtype:
        raise CheckpointError(
            f"{'/'.join(target.path)}: planned as {target.dtype} {list(target.shape)}, "
            f"built as {array.dtype} {list(array.shape)}"
        )
    return array


class StreamingHandler(ArrayHandler):  # type: ignore[misc]
    """Saves Pending leaves as the jax.Arrays that they stand for."""

    def __init__(self, streamer: Streamer) -> None:
        super().__init__(array_metadata_store=array_metadata_store.Store())
        self._streamer = streamer

    async def serialize(
        self, values: Sequence[Pending], infos: Infos, args: Sequence[types.SaveArgs] | None = None
    ) -> Sequence[future.Future]:
        """See the base class; the leaves are worked off in the future that is returned."""
        given = args or [types.SaveArgs()] * len(values)
        leaves = [
            Leaf(value.target, info, write_spec(value.target, info, arg))
            for value, info, arg in zip(values, infos, given, strict=True)
        ]
        save = future.CommitFutureAwaitingContractedSignals(self._save(leaves), name="streaming")
        return [save]

    async def _save(self, leaves: Sequence[Leaf]) -> None:
        folder = leaves[0].info.parent_dir
        await self._array_metadata_store.write(
            checkpoint_dir=folder,
            array_metadatas=[leaf.spec.metadata for leaf in leaves],
            process_index=jax.process_index(),
        )
        if jax.process_index() == 0:
            (folder / "_sharding").write_text(shardings(leaf.info.name for leaf in leaves))
        await asyncio.to_thread(self._streamer.run, leaves)


def write_spec(
    target: TargetTensor, info: types.ParamInfo, arg: types.SaveArgs
) -> tensorstore_utils.ArrayWriteSpec:
    """Orbax's own choice of files, codec and chunks for the leaf."""
    return tensorstore_utils.build_array_write_spec(
        info=info,
        arg=arg,
        global_shape=target.shape,
        local_shape=target.shape,
        dtype=target.dtype,
        use_ocdbt=True,
        process_index=jax.process_index(),
    )


def shardings(names: Iterator[str]) -> str:
    """Orbax's ``_sharding`` file: every leaf whole on the first device."""
    place = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    text = sharding.from_jax_sharding(place).to_serialized_string()
    return json.dumps({urlsafe_b64encode(name.encode()).decode(): text for name in names})
