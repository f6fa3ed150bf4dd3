"""One array into a checkpoint and back, piece by piece, so that no second copy of it exists."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
from collections import deque
from collections.abc import Generator, Iterator
from typing import Any

import numpy as np
import tensorstore as ts
from numpy.typing import NDArray

from converters.errors import CheckpointError

Array = NDArray[Any]
# Large enough for a disk, and small enough to be compressed, read back and restored piecewise.
CHUNK_BYTES = 8 << 20
# Chunks that are being compressed, all arrays together, and as many that wait for the disk.
_IN_FLIGHT = 4
_LEVEL = 2
_SCRATCH = {"driver": "memory", "path": "array/"}
# Orbax's own context keeps 100 MB of the index of all pieces, in each of its past states.
_WRITING = {"cache_pool#ocdbt": {"total_bytes_limit": 8 << 20}}
# Files are mapped: each read is from the file as it is now.
_READING = {"cache_pool#ocdbt": {"total_bytes_limit": 0}, "file_io_mode": {"mode": "memmap"}}


def writing_context() -> ts.Context:
    """Of all arrays of a checkpoint together: they share one index."""
    return ts.Context(_WRITING)


def window_for(workers: int) -> int:
    """Chunks in flight for each of so many arrays that are written at once."""
    return max(1, _IN_FLIGHT // workers)


def write(
    spec: dict[str, Any], context: ts.Context, array: Array, name: str, window: int = 2
) -> Generator[None]:
    """Encode, write and read back an array. A generator: each step waits for one chunk.

    TensorStore encodes as ``spec`` says, into memory; the pieces are moved to the store of the
    spec, and once they are on disk their files are read and compared with what was encoded.

    Closed before its end, it waits for what is on its way to the disk, so that nothing arrives in a
    folder that is being removed.

    Raises:
      CheckpointError: a piece was read back differently.
    """
    disk = Disk(spec["kvstore"], context, name, window)
    try:
        yield from _write(spec, array, disk, window)
    finally:
        disk.wait()


def _write(spec: dict[str, Any], array: Array, disk: Disk, window: int) -> Generator[None]:
    _, described = _scratch(spec)
    _move(described, disk)
    encoder, encoded = _scratch(quicker(spec))
    _drop(encoded)
    running: deque[Any] = deque()
    chunk = spec["metadata"]["chunk_grid"]["configuration"]["chunk_shape"]
    for region in regions(array.shape, chunk):
        part = array[region] if region else array
        running.append(encoder[region].write(part, can_reference_source_data_indefinitely=True))
        if len(running) == window:
            running.popleft().result()
            _move(encoded, disk)
        yield
    for future in running:
        future.result()
        _move(encoded, disk)
        yield
    disk.settle(0)


def quicker(spec: Any) -> Any:
    """The spec with Zstandard at the level that packs floats best for its time.

    A frame does not depend on the level to be read, and level 2 makes floats no larger than
    Orbax's 3, in three quarters of its time: float32 weights 0.927 of their size at both, numbers
    of bfloat16 in float32 0.448 at level 2 and 0.459 at 3.
    """
    if isinstance(spec, list):
        return [quicker(part) for part in spec]
    if not isinstance(spec, dict):
        return spec
    if spec.get("name") == "zstd":
        return {**spec, "configuration": {**spec["configuration"], "level": _LEVEL}}
    return {key: quicker(part) for key, part in spec.items()}


def _scratch(spec: dict[str, Any]) -> tuple[ts.TensorStore, ts.KvStore]:
    """An array of the spec in memory, and the store that has its metadata and will have chunks."""
    memory = ts.Context()
    array = ts.open({**spec, "kvstore": _SCRATCH}, create=True, context=memory).result()
    return array, ts.KvStore.open(_SCRATCH, context=memory).result()


def _drop(store: ts.KvStore) -> None:
    for key in store.list().result():
        store.delete_range(ts.KvStore.KeyRange(key, key + b"\0")).result()


def _move(encoded: ts.KvStore, disk: Disk) -> None:
    for key in encoded.list().result():
        value = encoded.read(key).result().value
        encoded.delete_range(ts.KvStore.KeyRange(key, key + b"\0")).result()
        disk.write(key, value)


class Disk:
    """Writes values under one prefix and reads each back once it is on disk."""

    def __init__(self, spec: dict[str, Any], context: ts.Context, name: str, window: int) -> None:
        place = {**spec, "path": f"{name}/"}
        self._name = name
        self._window = window
        self._store = ts.KvStore.open(place, context=context).result()
        self._again = ts.KvStore.open(place, context=ts.Context(_READING)).result()
        self._waiting: deque[tuple[bytes, bytes, Any]] = deque()

    def write(self, key: bytes, value: bytes) -> None:
        self.settle(self._window - 1)
        self._waiting.append((key, value, self._store.write(key, value)))

    def wait(self) -> None:
        """Until nothing is on its way any more, come of it what may."""
        for _, _, future in self._waiting:
            with contextlib.suppress(Exception):
                future.result()
        self._waiting.clear()

    def settle(self, rest: int) -> None:
        """Wait until at most ``rest`` values are on their way."""
        while len(self._waiting) > rest:
            key, value, future = self._waiting.popleft()
            future.result()
            if self._again.read(key).result().value != value:
                raise CheckpointError(
                    f"{self._name}: {key.decode()} was read back differently than it was written: "
                    "the disk or the memory of this machine is faulty"
                )


def regions(shape: tuple[int, ...], chunk: tuple[int, ...]) -> Iterator[tuple[slice, ...]]:
    """The chunks of a grid, in row-major order."""
    axes = [
        [slice(start, min(start + step, size)) for start in range(0, size, step)]
        for size, step in zip(shape, chunk, strict=True)
    ]
    yield from itertools.product(*axes)


def difference(one: Array, other: Array) -> tuple[int, ...] | None:
    """Index of the first element whose bits differ; None when all are the same."""
    left, right = bits(one), bits(other)
    if np.array_equal(left, right):
        return None
    flat = int(np.flatnonzero(np.ravel(left != right))[0])
    return tuple(int(i) for i in np.unravel_index(flat, one.shape))


def bits(array: Array) -> Array:
    """The same elements as unsigned integers: NaN equals NaN and 0.0 is not -0.0."""
    return array.view(np.dtype(f"u{array.dtype.itemsize}"))


def digest(array: Array) -> str:
    """sha256 of the elements in row-major order, little-endian."""
    state = hashlib.sha256()
    for part in rows(array):
        state.update(bits(np.ascontiguousarray(part)).data.cast("B"))
    return state.hexdigest()


def rows(array: Array, limit: int = CHUNK_BYTES) -> Iterator[Array]:
    """Consecutive pieces of at most ``limit`` bytes, or one row, in row-major order."""
    if array.flags.c_contiguous:
        flat = array.reshape(-1)
        step = max(1, limit // array.dtype.itemsize)
        yield from (flat[i : i + step] for i in range(0, flat.size, step))
    elif array.nbytes <= limit or array.ndim < 2:
        yield array
    else:
        for row in array:
            yield from rows(row, limit)
