"""Read what ``torch.save`` wrote (a zip of one pickle and raw storages) without torch.

Storages are stored, never compressed: an archive cannot expand beyond its own size, and a tensor is
a piece of the file that can be mapped. bfloat16 and float8 are ml_dtypes'.
"""

from __future__ import annotations

import struct
import sys
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from converters.errors import CheckpointError

from . import pickles
from .stored import Stored as Stored
from .stored import Window

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
_LOCAL_HEADER = struct.Struct("<4s5H3I2H")
_END = struct.Struct("<4s4H2IH")


@dataclass(frozen=True)
class _Storage:
    dtype: np.dtype[Any]
    start: int
    size: int
    checksum: int


@dataclass(frozen=True)
class Opened:
    """An archive whose program is still to be loaded.

    Attributes:
      program: its pickle.
      names: what the program's names lead to, ``Stored`` for tensors.
      persistent_load: answers its references to storages.
    """

    program: bytes
    names: pickles.Names
    persistent_load: Callable[[Any], Any]


def opened(
    file: Path,
    source: str,
    start: int = 0,
    length: int | None = None,
    opaque: tuple[str, ...] = (),
) -> Opened:
    """An archive at a place of a file.

    Args:
      file: that holds the archive.
      source: what messages call it.
      start, length: of the archive in bytes; to the end of the file if no length is given.
      opaque: qualified names that may become records beyond the known ones.

    Raises:
      CheckpointError: not an archive that ``torch.save`` wrote, or damaged.
    """
    try:
        with file.open("rb") as stream:
            length = file.stat().st_size - start if length is None else length
            window = cast(BinaryIO, Window(stream, start, length))
            return _opened(window, file, start, source, opaque)
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read: {error.strerror}") from error


def index(
    file: Path,
    source: str,
    start: int = 0,
    length: int | None = None,
    opaque: tuple[str, ...] = (),
) -> Any:
    """The value that ``torch.save`` wrote, with its tensors left unread; arguments as ``opened``.

    Returns:
      containers, numbers, strings, dtypes and records, with ``Stored`` for every tensor.

    Raises:
      CheckpointError: not such an archive, damaged, or a pickle that is refused.
    """
    archive = opened(file, source, start, length, opaque)
    return pickles.load(archive.program, archive.names, archive.persistent_load)


def load(file: Path, source: str, opaque: tuple[str, ...] = ()) -> Any:
    """As ``index`` of a whole file, with an array for every tensor: for small files.

    Raises:
      CheckpointError: not such an archive, damaged, or a pickle that is refused.
    """
    return values(index(file, source, opaque=opaque), source)


def values(value: Any, source: str) -> Any:
    """The value with copies of its tensors in place of ``Stored``, in containers and records.

    Raises:
      CheckpointError: a tensor is damaged, or containers hold themselves.
    """
    try:
        return _values(value)
    except RecursionError as error:
        raise CheckpointError(
            f"{source}: its pickle nests containers without end: the file is damaged"
        ) from error


def _values(value: Any) -> Any:
    if isinstance(value, Stored):
        return np.array(value.read())
    if isinstance(value, dict):
        return {k: _values(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_values(v) for v in value)
    if isinstance(value, pickles.Record):
        value.arguments, value.state = _values(value.arguments), _values(value.state)
        value.items = _values(value.items)
    return value


def _opened(
    window: BinaryIO, file: Path, start: int, source: str, opaque: tuple[str, ...]
) -> Opened:
    try:
        archive = zipfile.ZipFile(window)
        prefix = _prefix(archive, source)
        program = archive.read(prefix + "data.pkl")
        places = {
            entry.filename: _place(entry, window, start, source) for entry in archive.infolist()
        }
        _require_alone(archive, window)
    except CheckpointError:
        raise
    # A damaged or hostile archive can fail in any way that its numbers admit.
    except Exception as error:
        raise CheckpointError(
            f"{source}: not an archive of torch.save ({error}); the file is damaged or cut short: "
            "copy it again"
        ) from error
    names = pickles.Names(source, _rebuilders(file, source), opaque)
    return Opened(program, names, _storage_finder(places, prefix, source))


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
    names = archive.namelist()
    for entry in archive.infolist():
        if entry.compress_type != zipfile.ZIP_STORED or entry.file_size != entry.compress_size:
            raise CheckpointError(f"{source}: entry {entry.filename} is compressed: not torch.save")
    if names and not any(entry.CRC for entry in archive.infolist()):
        raise CheckpointError(
            f"{source}: written without checksums, so damage could not be seen: load it with torch "
            "and save it again without torch.serialization.set_crc32_options(False)"
        )
    if len(set(names)) != len(names):
        raise CheckpointError(f"{source}: two entries of one name: not torch.save")
    programs = [n for n in names if n == "data.pkl" or n.endswith("/data.pkl")]
    if len(programs) != 1:
        raise CheckpointError(f"{source}: {len(programs)} entries data.pkl, expected one")
    prefix = programs[0].removesuffix("data.pkl")
    byte_order = prefix + "byteorder"
    if byte_order in names:
        written = archive.read(byte_order).decode("ascii", "replace")
        if written != sys.byteorder:
            raise CheckpointError(f"{source}: written {written}-endian, this machine is not")
    return prefix


def _require_alone(archive: zipfile.ZipFile, window: BinaryIO) -> None:
    """An archive fills its place: what zip readers skip before and after it is a sign of damage."""
    end = window.seek(-_END.size, 2)
    mark, *_rest, comment = _END.unpack(window.read(_END.size))
    first = min(entry.header_offset for entry in archive.infolist())
    if mark != b"PK\5\6" or comment or first or not end:
        raise zipfile.BadZipFile("other bytes before or after it")


def _place(
    entry: zipfile.ZipInfo, window: BinaryIO, start: int, source: str
) -> tuple[int, int, int]:
    """First byte in the file, size and checksum of an entry's content."""
    window.seek(entry.header_offset)
    header = _LOCAL_HEADER.unpack(window.read(_LOCAL_HEADER.size))
    begin = entry.header_offset + _LOCAL_HEADER.size + header[-2] + header[-1]
    end = window.seek(0, 2)
    if header[0] != b"PK\x03\x04" or begin + entry.file_size > end:
        raise CheckpointError(f"{source}: entry {entry.filename} is damaged: copy the file again")
    return start + begin, entry.file_size, entry.CRC


def _storage_finder(
    places: Mapping[str, tuple[int, int, int]], prefix: str, source: str
) -> Callable[[Any], _Storage]:
    def persistent_load(reference: Any) -> _Storage:
        kind, storage_type, key, _location, count = reference
        if kind != "storage" or not str(key).isalnum():
            raise CheckpointError(f"{source}: unknown reference {reference!r}")
        dtype = numpy_dtype(_storage_dtype(storage_type, source), source)
        start, size, checksum = places[f"{prefix}data/{key}"]
        if size != count * dtype.itemsize:
            raise CheckpointError(
                f"{source}: storage {key} has {size} bytes, not {count} of {dtype}"
            )
        return _Storage(dtype, start, size, checksum)

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


def _rebuilders(file: Path, source: str) -> dict[str, Callable[..., Any]]:
    """How the tensor constructors that a pickle names are answered."""

    def tensor(
        storage: Any, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], *_rest: Any
    ) -> Stored:
        return _stored(storage, offset, tuple(shape), tuple(strides), file, source)

    def parameter(value: Any, *_rest: Any) -> Any:
        return value

    def typed(constructor: Callable[..., Any], _type: Any, arguments: Any, _state: Any) -> Any:
        # A tensor with attributes of its own, which are not kept.
        return constructor(*arguments)

    return {
        "torch._utils._rebuild_tensor_v2": tensor,
        "torch._utils._rebuild_tensor": tensor,
        "torch._utils._rebuild_parameter": parameter,
        "torch._tensor._rebuild_from_type_v2": typed,
    }


def _stored(
    storage: Any,
    offset: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    file: Path,
    source: str,
) -> Stored:
    if not isinstance(storage, _Storage) or len(shape) != len(strides):
        raise CheckpointError(f"{source}: a tensor of shape {shape} has no storage")
    numbers: tuple[Any, ...] = (*shape, *strides, offset)
    if any(not isinstance(n, int) or n < 0 for n in numbers):
        raise CheckpointError(f"{source}: a tensor has shape {shape}, strides {strides}")
    last = offset + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    if 0 not in shape and (last + 1) * storage.dtype.itemsize > storage.size:
        raise CheckpointError(f"{source}: a tensor of shape {shape} leaves its storage")
    return Stored(
        shape,
        strides,
        offset,
        storage.dtype,
        file,
        storage.start,
        storage.size,
        storage.checksum,
        source,
    )
