"""A MaxText train state that is still to be written: the tree, and how each leaf is made."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from converters.source import Key

Array = NDArray[Any]
Path = tuple[str, ...]


@dataclass(frozen=True)
class TargetTensor:
    """One leaf.

    Attributes:
      path: keys from the root of the saved tree; positions of a list are decimal numbers.
      shape, dtype: of the leaf.
      sources: tensors it is made from, in the order of its layers; empty for counts and constants.
      transform: how, in words, for the report.
      build: makes the array. It allocates the leaf and little else, reads its sources anew each
        time and may run in any thread. Raises CheckpointError if a source cannot be read.
    """

    path: Path
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    sources: tuple[Key, ...]
    transform: str
    build: Callable[[], Array]

    @property
    def bytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


@dataclass(frozen=True)
class TargetState:
    """The whole state.

    Attributes:
      tree: nested dicts and lists as Orbax is to save them. A leaf is a TargetTensor, or None for a
        state of optax that holds nothing and for a parameter that the other optimizer owns.
      step: finished steps; MaxText resumes at this step from the directory numbered ``step - 1``.
      scan_layers: MaxText's key.
      records_scan_layers: it is saved as custom metadata: MaxText 0.2.4 and later do, earlier not.
    """

    tree: Any
    step: int
    scan_layers: bool
    records_scan_layers: bool = True


def leaves(tree: Any) -> Iterator[TargetTensor]:
    """Every TargetTensor of a tree, in its order."""
    if isinstance(tree, TargetTensor):
        yield tree
    elif isinstance(tree, dict):
        for child in tree.values():
            yield from leaves(child)
    elif isinstance(tree, (list, tuple)):
        for child in tree:
            yield from leaves(child)
