"""Files that are whole after every step, whenever the run ends. Needs NumPy alone."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

# The header of a .npy file, padded so that a larger shape fits in its place.
HEADER = 128
# Bytes of a JSON line, at most.
_LONGEST_ROW = 1 << 12
DTYPE = np.dtype("<i4")


class TokenFile:
    """An .npy of int32 [steps, batch, sequence + 1] that grows by a step at a time.

    The data of a step is written before the header that counts it. After a restart from an earlier
    checkpoint the steps are written over.
    """

    def __init__(self, path: Path, first_step: int) -> None:
        self.path = path
        self.first_step = first_step
        self._steps = 0
        self._shape: tuple[int, ...] = ()
        if path.exists():
            known = np.load(path, mmap_mode="r")
            self._steps, *shape = known.shape
            self._shape = tuple(shape)

    @property
    def end_step(self) -> int:
        return self.first_step + self._steps

    def write(self, step: int, batch: npt.ArrayLike) -> None:
        """Add, or write over, the batch of a step.

        Raises:
          ValueError: batches before it are missing, or it has another shape.
          OSError: it cannot be written.
        """
        rows = np.ascontiguousarray(batch, DTYPE)
        if not self.first_step <= step <= self.end_step:
            raise ValueError(
                f"{self.path} holds the steps {self.first_step} to {self.end_step - 1}, so the "
                f"batch of step {step} cannot follow"
            )
        if self._shape and rows.shape != self._shape:
            raise ValueError(
                f"{self.path}: a batch of shape {rows.shape}, the others have {self._shape}"
            )
        self._shape = rows.shape
        place = step - self.first_step
        with open(self.path, "r+b" if self.path.exists() else "w+b") as stream:
            stream.seek(HEADER + place * rows.nbytes)
            stream.write(rows.tobytes())
            stream.flush()
            self._steps = max(self._steps, place + 1)
            stream.seek(0)
            stream.write(header((self._steps, *self._shape)))


def header(shape: tuple[int, ...]) -> bytes:
    """Of a .npy file, format 1.0, in ``HEADER`` bytes."""
    told = repr({"descr": DTYPE.str, "fortran_order": False, "shape": shape})
    start = b"\x93NUMPY\x01\x00" + (HEADER - 10).to_bytes(2, "little")
    return start + told.ljust(HEADER - 11).encode("latin-1") + b"\n"


def append_row(path: Path, row: dict[str, Any]) -> None:
    """Add a JSON line; one that an earlier process left unfinished is cut off first."""
    with open(path, "r+b" if path.exists() else "w+b") as stream:
        stream.seek(max(0, stream.seek(0, os.SEEK_END) - _LONGEST_ROW))
        unfinished = stream.read().rpartition(b"\n")[2]
        stream.seek(-len(unfinished), os.SEEK_END)
        stream.truncate()
        stream.write((json.dumps(row) + "\n").encode())
