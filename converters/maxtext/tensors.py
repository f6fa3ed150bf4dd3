"""Target leaves as tensors that can be built: from the source, or constant."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from converters.copying import copy
from converters.errors import CheckpointError
from converters.mapping import Leaf, Part, Path
from converters.source import Key, Source, State
from converters.steps import Scale
from converters.target import TargetTensor
from converters.transforms import Transform

Array = NDArray[Any]
_FLOAT32: np.dtype[Any] = np.dtype(np.float32)


@dataclass(frozen=True)
class Reading:
    """How one state of every parameter is read.

    Attributes:
      source: the checkpoint.
      state: WEIGHT, MOMENTUM, EXP_AVG or EXP_AVG_SQ.
      factor: multiplies the numbers: 1 but for momentum of the other convention.
      dtype: of the leaves.
    """

    source: Source
    state: State
    factor: float = 1.0
    dtype: np.dtype[Any] = _FLOAT32

    def key(self, parameter: str) -> Key:
        """The tensor to read: of a weight, its fp32 master where there is one."""
        master = Key(parameter, State.MASTER)
        if self.state is State.WEIGHT and master in self.source.tensors:
            return master
        return Key(parameter, self.state)

    def transform(self, part: Part) -> Transform:
        weight = self.state is State.WEIGHT
        return part.link.transform if weight else part.link.transform.of_state()

    def words(self, part: Part) -> str:
        words = self.transform(part).describe(part.which)
        return words if self.factor == 1.0 else f"{words} > momentum times {self.factor!r}"


def leaf_tensor(path: Path, leaf: Leaf, reading: Reading) -> TargetTensor:
    """The leaf at ``path`` of the state tree, made from one state of its parameters."""

    def build() -> Array:
        whole = np.empty(leaf.shape, reading.dtype)
        for slot, part in enumerate(leaf.parts):
            copy(leaf.slot(whole, slot), read_part(part, reading))
        return whole

    sources = tuple(reading.key(part.link.parameter) for part in leaf.parts)
    words = reading.words(leaf.parts[0])
    return TargetTensor(path, leaf.shape, reading.dtype, sources, words, build)


def read_part(part: Part, reading: Reading) -> Array:
    """One slot of a leaf.

    Raises:
      CheckpointError: it cannot be read, or a second copy of it holds other numbers.
    """
    key = reading.key(part.link.parameter)
    array = _load(reading.source.tensors, key)
    for other in part.link.alike:
        _compare(reading.source.tensors, key, Key(other, key.state), array)
    made = reading.transform(part).part(array, part.which)
    return made if reading.factor == 1.0 else Scale(reading.factor).apply(made)


def constant(
    path: Path, value: Any, dtype: Any, shape: tuple[int, ...] | None = None
) -> TargetTensor:
    """A leaf that no tensor of the source holds."""
    array = np.asarray(value, dtype)
    shape = array.shape if shape is None else shape
    words = f"constant {value!r}" if array.ndim == 0 else "constant"
    return TargetTensor(path, shape, array.dtype, (), words, lambda: np.full(shape, array))


def _load(tensors: Mapping[Key, Any], key: Key) -> Array:
    tensor = tensors[key]
    array: Array = tensor.load()
    if array.shape != tensor.shape:
        raise CheckpointError(
            f"{key}: read shape {list(array.shape)}, expected {list(tensor.shape)} "
            f"({', '.join(tensor.origin)})"
        )
    return array


def _compare(tensors: Mapping[Key, Any], key: Key, other: Key, array: Array) -> None:
    if other in tensors and not np.array_equal(array, _load(tensors, other), equal_nan=True):
        raise CheckpointError(
            f"{key} and {other} are tied and differ: the checkpoint mixes two runs or was damaged"
        )
