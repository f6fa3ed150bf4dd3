"""Read MaxText's checkpoints leaf by leaf: names, shapes and types first, elements on demand."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorstore as ts
from numpy.typing import NDArray
from orbax.checkpoint._src.serialization.tensorstore_utils import ArrayReadSpec, get_ts_context

from converters.errors import CheckpointError

Array = NDArray[Any]
KeyPath = tuple[str, ...]
TREE = "_METADATA"
STEP = "_CHECKPOINT_METADATA"
ITEMS = "items"
# value_type of what has no elements: None for an empty state, the others for empty containers.
_EMPTY = ("None", "Dict", "List", "Tuple", "NamedTuple")
# Orbax's key_type of a position in a list.
_SEQUENCE = 1


@dataclass(frozen=True)
class StoredTensor:
    """A leaf on disk.

    Attributes:
      path: keys from the root; positions of a list are decimal numbers.
      shape, dtype: as stored; bfloat16 is ``ml_dtypes.bfloat16``.
      store: what holds the elements.
    """

    path: KeyPath
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    store: ts.TensorStore

    @property
    def bytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    @property
    def chunk(self) -> tuple[int, ...]:
        """Elements that are stored, and so read, together."""
        steps = self.store.chunk_layout.read_chunk.shape or ()
        return tuple(step or size for step, size in zip(steps, self.shape, strict=False))

    def read(self, region: tuple[slice, ...] = ()) -> Array:
        """The elements of a region, the whole leaf by default.

        Raises:
          CheckpointError: the files are damaged or incomplete.
        """
        try:
            part = self.store[region] if region else self.store
            found: Array = np.asarray(part.read().result())
        except ValueError as error:
            raise CheckpointError(
                f"{'/'.join(self.path)}: cannot be read: {_short(error)}"
            ) from error
        return found


@dataclass(frozen=True)
class Saved:
    """A saved train state.

    Attributes:
      folder: where the leaves are: ``<step>/items``.
      directory: number of the folder above, None where it has none.
      tensors: leaves by path.
      empty: paths that the tree has without a tensor: empty states, parameters of the other
        optimizer.
      lists: paths whose children are positions of a list rather than keys.
      metadata: custom metadata of the step.
    """

    folder: Path
    directory: int | None
    tensors: Mapping[KeyPath, StoredTensor]
    empty: frozenset[KeyPath]
    lists: frozenset[KeyPath]
    metadata: Mapping[str, Any]


def items_of(path: Path) -> Path:
    """The folder with the leaves: of ``path`` itself, of its step, or of its last step.

    Raises:
      CheckpointError: there is none, or it is only a part of one.
    """
    for part in path.absolute().parts:
        if part.endswith((".orbax-checkpoint-tmp", ".converting")):
            raise CheckpointError(f"{path}: {part} is an unfinished checkpoint")
    if not path.is_dir():
        raise CheckpointError(f"{path}: no such folder")
    steps = sorted((p for p in path.iterdir() if p.name.isdecimal()), key=lambda p: int(p.name))
    for folder in (path, path / ITEMS, *(step / ITEMS for step in steps[-1:])):
        if (folder / TREE).is_file():
            if not (folder / STEP).is_file() and not (folder.parent / STEP).is_file():
                raise CheckpointError(
                    f"{folder}: no {STEP} beside it, the checkpoint is incomplete"
                )
            return folder
    raise CheckpointError(f"{path}: no Orbax checkpoint: found neither {ITEMS}/{TREE} nor steps")


def open_saved(path: Path) -> Saved:
    """Names, shapes and types of a checkpoint that MaxText or this package has written.

    Raises:
      CheckpointError: none there, incomplete, or not in a form that Orbax writes.
    """
    folder = items_of(path).absolute()
    described = _json(folder / TREE)
    try:
        entries = list(described["tree_metadata"].values())
        keys = [tuple((str(k["key"]), k["key_type"]) for k in e["key_metadata"]) for e in entries]
        kinds = [str(entry["value_metadata"]["value_type"]) for entry in entries]
    except (KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{folder / TREE}: not a tree of Orbax: {error!r}") from error
    context = get_ts_context(use_ocdbt=True)
    tensors, empty = {}, set()
    for key, kind in zip(keys, kinds, strict=True):
        path_of = tuple(name for name, _ in key)
        if kind in _EMPTY:
            empty.add(path_of)
        else:
            tensors[path_of] = _open(folder, path_of, described, context)
    step = folder.parent
    metadata = _json(step / STEP) if (step / STEP).is_file() else _json(folder / STEP)
    return Saved(
        folder,
        int(step.name) if step.name.isdecimal() else None,
        tensors,
        frozenset(empty),
        frozenset(_lists(keys)),
        metadata.get("custom_metadata") or {},
    )


def _lists(keys: list[tuple[tuple[str, int], ...]]) -> Iterator[KeyPath]:
    for key in keys:
        for depth, (_, kind) in enumerate(key):
            if kind == _SEQUENCE:
                yield tuple(name for name, _ in key[:depth])


def _open(folder: Path, path: KeyPath, described: Any, context: ts.Context) -> StoredTensor:
    spec = ArrayReadSpec(
        str(folder),
        ".".join(path),
        use_zarr3=bool(described.get("use_zarr3")),
        use_ocdbt=bool(described.get("use_ocdbt")),
        raise_array_data_missing_error=True,
    )
    try:
        store = ts.open(ts.Spec(spec.json), open=True, read=True, context=context).result()
    except (ValueError, OSError) as error:
        raise CheckpointError(
            f"{folder}: {'/'.join(path)} is in {TREE} but cannot be opened: {_short(error)}"
        ) from error
    return StoredTensor(path, tuple(store.shape), np.dtype(store.dtype.numpy_dtype), store)


def _json(file: Path) -> dict[str, Any]:
    try:
        value = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file}: cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{file}: not a JSON object")
    return value


def _short(error: Exception) -> str:
    return str(error).partition(" [source locations")[0][:300]
