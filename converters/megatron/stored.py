"""A tensor that lies in a file, and part of a file as a file."""

from __future__ import annotations

import functools
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from isal import isal_zlib
from numpy.typing import NDArray

from converters.errors import CheckpointError

# Blocks in which a stored tensor is mapped to check its sum: the check itself needs no memory.
_BLOCK = 8 << 20


@dataclass(frozen=True)
class Stored:
    """A tensor that lies in a file, unread.

    Attributes:
      shape, strides, offset: of the tensor in its storage, in elements.
      dtype: NumPy's.
      file, start, size: where the storage's bytes lie.
      checksum: CRC-32 of the storage.
      source: what messages call it.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    dtype: np.dtype[Any]
    file: Path
    start: int
    size: int
    checksum: int
    source: str

    def read(self) -> NDArray[Any]:
        """The values as a read-only view of the mapped file, once its bytes are known to be whole.

        Raises:
          CheckpointError: the bytes are not those that were written.
        """
        if 0 in self.shape:
            return np.empty(self.shape, self.dtype)
        try:
            stamp = self.file.stat().st_mtime_ns
            _verify(self.file, stamp, self.start, self.size, self.checksum, self.source)
            raw = np.memmap(self.file, np.uint8, "r", self.start, (self.size,))
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{self.source}: cannot be read: {error}") from error
        strides = tuple(s * self.dtype.itemsize for s in self.strides)
        start = self.offset * self.dtype.itemsize
        return np.ndarray(self.shape, self.dtype, raw.view(np.ndarray), start, strides)

    def with_values(self, values: NDArray[Any]) -> bytearray | memoryview:
        """The storage's bytes with the tensor's elements replaced by others of its dtype."""
        if values.nbytes == self.size and self.strides == _contiguous(values.shape):
            return np.ascontiguousarray(values).reshape(-1).view(np.uint8).data
        with self.file.open("rb") as file:
            file.seek(self.start)
            storage = bytearray(file.read(self.size))
        strides = tuple(s * self.dtype.itemsize for s in self.strides)
        offset = self.offset * self.dtype.itemsize
        np.ndarray(self.shape, self.dtype, storage, offset, strides)[...] = values
        return storage


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


@functools.lru_cache(maxsize=1 << 16)
def _verify(file: Path, _stamp: int, start: int, size: int, checksum: int, source: str) -> None:
    """Raise unless the bytes have this CRC-32; asked again about an unchanged file, do not read."""
    found, end = 0, start + size
    for first in range(start, end, _BLOCK):
        block = np.memmap(file, np.uint8, "r", first, (min(_BLOCK, end - first),))
        # zlib's own is ten times slower, as slow as hashing.
        found = isal_zlib.crc32(block.data, found)
    if found != checksum:
        raise CheckpointError(
            f"{source}: bytes {start} to {start + size} of {file} are damaged (CRC-32 "
            f"{found:08x}, written as {checksum:08x}): copy the file again"
        )


class Window(io.RawIOBase):
    """Part of a file as a file of its own."""

    def __init__(self, file: BinaryIO, start: int, length: int) -> None:
        self._file, self._start, self._length, self._at = file, start, length, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0, /) -> int:
        self._at = max(0, offset + (0, self._at, self._length)[whence])
        return self._at

    def read(self, size: int = -1, /) -> bytes:
        left = max(0, self._length - self._at)
        self._file.seek(self._start + self._at)
        data = self._file.read(left if size < 0 else min(size, left))
        self._at += len(data)
        return data
