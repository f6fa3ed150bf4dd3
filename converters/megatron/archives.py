"""Read what ``torch.save`` wrote (a zip of one pickle and raw storages) without torch.

Tensors come back as NumPy arrays, bfloat16 and float8 through ml_dtypes. Storages are stored, never
compressed, so an archive cannot expand beyond its own size.
"""

from __future__ import annotations

import io
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from converters.errors import CheckpointError

from . import pickles

# torch.FloatStorage and its like, which older pickles name instead of a dtype.
_STORAGES = {
    "DoubleStorage": "float64",
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
}


@dataclass(frozen=True)
class _Storage:
    values: NDArray[Any]


def load(data: bytes, source: str, opaque: tuple[str, ...] = ()) -> Any:
    """The value that ``torch.save`` wrote, with arrays for tensors and records for objects.

    Raises:
      CheckpointError: not such an archive, damaged, or a pickle that is refused.
    """
    try:
        archive = zipfile.ZipFile(io.BytesIO(data))
        prefix = _prefix(archive, source)
        program = archive.read(prefix + "data.pkl")
    except (zipfile.BadZipFile, KeyError, NotImplementedError, RuntimeError, EOFError) as error:
        raise CheckpointError(
            f"{source}: not an archive of torch.save ({error}); the file is damaged or cut short: "
            "copy it again"
        ) from error
    return pickles.load(
        program,
        source,
        extra=_rebuilders(source),
        opaque=opaque,
        persistent_load=_storage_reader(archive, prefix, source),
    )


def numpy_dtype(name: str, source: str) -> np.dtype[Any]:
    """NumPy's dtype for a torch name, ml_dtypes' where NumPy has none.

    Raises:
      CheckpointError: no such dtype here.
    """
    if name not in pickles.DTYPES:
        raise CheckpointError(f"{source}: dtype {name} is not one that this tool reads")
    if name.startswith(("bfloat16", "float8")):
        import ml_dtypes

        extended: np.dtype[Any] = np.dtype(getattr(ml_dtypes, pickles.DTYPES[name]))
        return extended
    return np.dtype(pickles.DTYPES[name])


def _prefix(archive: zipfile.ZipFile, source: str) -> str:
    """The archive's folder, from the one entry that ends in data.pkl."""
    for entry in archive.infolist():
        if entry.compress_type != zipfile.ZIP_STORED:
            raise CheckpointError(f"{source}: entry {entry.filename} is compressed: not torch.save")
    names = [n for n in archive.namelist() if n == "data.pkl" or n.endswith("/data.pkl")]
    if len(names) != 1:
        raise CheckpointError(f"{source}: {len(names)} entries data.pkl, expected one")
    prefix = names[0].removesuffix("data.pkl")
    byte_order = prefix + "byteorder"
    if byte_order in archive.namelist():
        written = archive.read(byte_order).decode("ascii", "replace")
        if written != sys.byteorder:
            raise CheckpointError(f"{source}: written {written}-endian, this machine is not")
    return prefix


def _storage_reader(
    archive: zipfile.ZipFile, prefix: str, source: str
) -> Callable[[Any], _Storage]:
    def persistent_load(reference: Any) -> _Storage:
        kind, storage_type, key, _location, count = reference
        if kind != "storage" or not str(key).isalnum():
            raise CheckpointError(f"{source}: unknown reference {reference!r}")
        dtype = numpy_dtype(_storage_dtype(storage_type, source), source)
        values = np.frombuffer(archive.read(f"{prefix}data/{key}"), dtype)
        if values.size != count:
            raise CheckpointError(f"{source}: storage {key} has {values.size} values, not {count}")
        return _Storage(values)

    return persistent_load


def _storage_dtype(storage_type: Any, source: str) -> str:
    if isinstance(storage_type, pickles.DType):
        return storage_type.name
    name = getattr(storage_type, "qualified_name", "").rpartition(".")[2]
    if name == "UntypedStorage":
        return "uint8"
    if name not in _STORAGES:
        raise CheckpointError(f"{source}: storage of unknown type {name or storage_type!r}")
    return _STORAGES[name]


def _rebuilders(source: str) -> dict[str, Callable[..., Any]]:
    """How the tensor constructors that a pickle names are answered."""

    def tensor(
        storage: Any, offset: int, shape: tuple[int, ...], stride: tuple[int, ...], *_rest: Any
    ) -> NDArray[Any]:
        return _strided(storage, offset, shape, stride, source)

    def parameter(value: NDArray[Any], *_rest: Any) -> NDArray[Any]:
        return value

    return {
        "torch._utils._rebuild_tensor_v2": tensor,
        "torch._utils._rebuild_tensor": tensor,
        "torch._utils._rebuild_parameter": parameter,
    }


def _strided(
    storage: Any, offset: int, shape: tuple[int, ...], stride: tuple[int, ...], source: str
) -> NDArray[Any]:
    if not isinstance(storage, _Storage) or len(shape) != len(stride):
        raise CheckpointError(f"{source}: a tensor of shape {shape} has no storage")
    if any(n < 0 for n in (*shape, *stride, offset)):
        raise CheckpointError(f"{source}: a tensor has shape {shape}, strides {stride}")
    values = storage.values
    last = offset + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))
    if 0 not in shape and last >= values.size:
        raise CheckpointError(f"{source}: a tensor of shape {shape} leaves its storage")
    strides = tuple(s * values.itemsize for s in stride)
    view = np.lib.stride_tricks.as_strided(values[offset:], shape, strides, writeable=False)
    return np.array(view)
