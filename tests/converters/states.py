"""Made-up train states for the writer, and a state read back from a checkpoint."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from converters.orbax.reader import Saved, StoredTensor
from converters.target import TargetState, TargetTensor

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def target(
    path: tuple[str, ...],
    array: np.ndarray,
    *,
    build: Callable[[], np.ndarray] | None = None,
) -> TargetTensor:
    make = build or (lambda: array.copy())
    return TargetTensor(path, array.shape, array.dtype, (), "made up", make)


def small_state(seconds: float = 0.0) -> TargetState:
    """Dictionaries, lists, empty leaves and every dtype that MaxText saves."""
    rng = np.random.default_rng(7)

    def make(*path: str, shape: tuple[int, ...] = (8, 3, 4), dtype: Any = np.float32) -> Any:
        array = np.asarray(rng.standard_normal(shape) * 100).astype(dtype)

        def build() -> np.ndarray:
            time.sleep(seconds)
            return array.copy()

        return target(path, array, build=build)

    inner = ("opt_state", "inner_state")
    tree = {
        "params": {"params": {f"w{i}": make("params", "params", f"w{i}") for i in range(4)}},
        "opt_state": {
            "inner_state": [
                {
                    "count": make(*inner, "0", "count", shape=(), dtype=np.int32),
                    "mu": {"w0": make(*inner, "0", "mu", "w0", dtype=BFLOAT16), "w1": None},
                },
                None,
                {"key": make(*inner, "2", "key", shape=(5,), dtype=np.uint32)},
            ]
        },
        "step": make("step", shape=(), dtype=np.int32),
    }
    return TargetState(tree, 5, True)


def state_of(saved: Saved, scan_layers: bool = True) -> TargetState:
    """The state that a checkpoint holds, to be written once more."""

    def leaf(stored: StoredTensor) -> TargetTensor:
        return TargetTensor(stored.path, stored.shape, stored.dtype, (), "copy", stored.read)

    tree: dict[str, Any] = {}
    entries: dict[tuple[str, ...], Any] = {p: leaf(t) for p, t in saved.tensors.items()}
    for path, value in (entries | dict.fromkeys(saved.empty)).items():
        place = tree
        for key in path[:-1]:
            place = place.setdefault(key, {})
        place[path[-1]] = value
    assert saved.directory is not None
    state = TargetState(_listed(tree, (), saved.lists), saved.directory + 1, scan_layers)
    return state


def _listed(tree: Any, path: tuple[str, ...], lists: frozenset[tuple[str, ...]]) -> Any:
    if not isinstance(tree, dict):
        return tree
    children = {k: _listed(v, (*path, k), lists) for k, v in tree.items()}
    return [children[str(i)] for i in range(len(children))] if path in lists else children


class Gauge:
    """Counts the bytes that are built and not yet forgotten."""

    def __init__(self) -> None:
        self.now = 0
        self.most = 0
        self._lock = threading.Lock()

    def took(self, size: int) -> None:
        with self._lock:
            self.now += size
            self.most = max(self.most, self.now)


def folders(root: Path) -> list[Path]:
    return [root, *(p for p in root.rglob("*") if p.is_dir())]
