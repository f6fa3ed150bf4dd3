"""Is a checkpoint on disk, element by element, the state that a source gives?"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from converters.budget import Budget, run_within
from converters.errors import CheckpointError
from converters.target import TargetState, TargetTensor, leaves

from . import arrays
from .reader import KeyPath, Saved, StoredTensor

_FLOOR = 64 << 20


@dataclass(frozen=True)
class Difference:
    """One way in which the checkpoint is not the state; ``index`` is of the first element."""

    path: str
    what: str
    index: tuple[int, ...] | None = None

    def __str__(self) -> str:
        place = "" if self.index is None else str(list(self.index))
        return f"{self.path}{place}: {self.what}"


def differences(
    state: TargetState,
    saved: Saved,
    *,
    workers: int = 2,
    done: Callable[[TargetTensor], None] = lambda target: None,
) -> list[Difference]:
    """Everything by which ``saved`` differs from ``state``; empty if nothing does.

    Every leaf is built anew from its sources and compared bit for bit with what is read.

    Raises:
      CheckpointError: a source cannot be read.
    """
    found = [*_structure(state, saved)]
    pairs = [
        (target, saved.tensors[target.path])
        for target in leaves(state.tree)
        if target.path in saved.tensors and not _form(target, saved.tensors[target.path])
    ]
    largest = max((target.bytes for target, _ in pairs), default=0)
    jobs = ((target.bytes, partial(_compare, target, stored)) for target, stored in pairs)
    budget = Budget(max(2 * largest, _FLOOR))
    for target, difference in run_within(budget, jobs, workers, threading.Event()):
        found += [difference] if difference else []
        done(target)
    order = {target.path: n for n, target in enumerate(leaves(state.tree))}
    return sorted(found, key=lambda d: order.get(tuple(d.path.split("/")), -1))


def _structure(state: TargetState, saved: Saved) -> Iterator[Difference]:
    targets = {target.path: target for target in leaves(state.tree)}
    for path, target in targets.items():
        if path not in saved.tensors:
            yield Difference("/".join(path), "missing in the checkpoint")
        elif what := _form(target, saved.tensors[path]):
            yield Difference("/".join(path), what)
    for path in sorted(saved.tensors.keys() - targets.keys()):
        yield Difference("/".join(path), "not a leaf of the state")
    empty, lists = shape_of(state.tree)
    for path in sorted(empty ^ saved.empty):
        what = "is no longer marked empty" if path in empty else "is marked empty"
        if path not in targets and path not in saved.tensors:
            yield Difference("/".join(path), what)
    for path in sorted(lists ^ saved.lists):
        kind = "a list" if path in lists else "a dictionary"
        yield Difference("/".join(path), f"should be {kind}")
    yield from _numbers(state, saved)


def _numbers(state: TargetState, saved: Saved) -> Iterator[Difference]:
    expected = state.step - 1
    if saved.directory is not None and saved.directory != expected:
        yield Difference("step", f"directory {saved.directory}, expected {expected}")
    scan = {"scan_layers": state.scan_layers} if state.records_scan_layers else {}
    if dict(saved.metadata) != scan:
        yield Difference("custom_metadata", f"{dict(saved.metadata)}, expected {scan}")


def shape_of(tree: Any, path: KeyPath = ()) -> tuple[set[KeyPath], set[KeyPath]]:
    """Paths of the tree's empty leaves, and of its lists."""
    empty: set[KeyPath] = set()
    lists: set[KeyPath] = set()
    if tree is None:
        empty.add(path)
    elif isinstance(tree, (dict, list, tuple)):
        if not isinstance(tree, dict):
            lists.add(path)
            tree = dict(enumerate(tree))
        for key, child in tree.items():
            below = shape_of(child, (*path, str(key)))
            empty |= below[0]
            lists |= below[1]
    return empty, lists


def _form(target: TargetTensor, stored: StoredTensor) -> str:
    if stored.shape != target.shape:
        return f"shape {list(stored.shape)}, expected {list(target.shape)}"
    if stored.dtype != target.dtype:
        return f"{stored.dtype}, expected {target.dtype}"
    return ""


def _compare(target: TargetTensor, stored: StoredTensor) -> tuple[TargetTensor, Difference | None]:
    array = target.build()
    name = "/".join(target.path)
    for region in arrays.regions(target.shape, stored.chunk):
        expected = array[region] if region else array
        try:
            found = stored.read(region)
        except CheckpointError as error:
            return target, Difference(name, str(error), tuple(s.start for s in region))
        at = arrays.difference(found, expected)
        if at is not None:
            index = tuple(s.start + i for s, i in zip(region, at, strict=True))
            return target, Difference(name, f"{found[at]!s}, expected {expected[at]!s}", index)
    return target, None
