"""Copy transposed views at the speed of memory.

NumPy follows the target's order, so a transposed source is read across cache lines. Tiles that both
sides find in cache are three to four times faster.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

# Elements along either axis: 128 rows of 128 float32 are 64 KiB on each side.
_TILE = 128


def copy(target: Array, source: Array) -> None:
    """``target[...] = source`` for arrays of one shape, of any strides and dtypes.

    Raises:
      ValueError: the shapes differ.
    """
    if target.shape != source.shape:
        raise ValueError(f"cannot copy shape {source.shape} to {target.shape}")
    ours, theirs = _fastest(target), _fastest(source)
    if ours == theirs or target.size <= _TILE * _TILE:
        np.copyto(target, source, casting="unsafe")
        return
    for span in itertools.product(*_steps(target.shape, {ours, theirs})):
        np.copyto(target[span], source[span], casting="unsafe")


def _steps(shape: tuple[int, ...], fast: set[int]) -> list[list[slice]]:
    """Slices along each axis, whose product are the tiles."""
    left = _TILE * _TILE // math.prod(min(shape[axis], _TILE) for axis in fast)
    found = []
    for axis, size in enumerate(shape):
        step = _TILE
        if axis not in fast:
            step = max(1, min(size, left))
            left //= step
        found.append([slice(start, start + step) for start in range(0, size, step)])
    return found


def _fastest(array: Array) -> int:
    """The axis whose neighbours lie closest together."""
    axes = [axis for axis in range(array.ndim) if array.shape[axis] > 1]
    return min(axes, key=lambda axis: abs(array.strides[axis]), default=0)
