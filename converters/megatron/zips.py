"""Put other bytes into an archive of ``torch.save``.

As long as every entry keeps its size, nothing but those bytes and their sums changes; otherwise the
archive is written anew in torch's layout: stored entries, each starting at a multiple of 64 bytes.
"""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import BinaryIO

_ALIGNMENT = 64
_LOCAL = struct.Struct("<4s5H3I2H")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_END = struct.Struct("<4s4H2IH")
# Flags of an entry: its sums follow the content; all that torch sets, names in UTF-8 too.
_FOLLOWS = 0x0008
_FLAGS = 0x0808
_LIMIT = 0xFFFFFFFF


@dataclass(frozen=True)
class Slot:
    """Where an entry's content and its CRC-32 lie in the archive.

    Attributes:
      start, size: of the content, in bytes.
      sums: positions of the four bytes of every copy of the CRC-32.
    """

    start: int
    size: int
    sums: tuple[int, ...]


def slots(archive: BinaryIO) -> dict[str, Slot]:
    """By the entries' full names, in the order of the archive's directory.

    Args:
      archive: a whole one that ``torch.save`` wrote.
    """
    opened = zipfile.ZipFile(archive)
    central, found = opened.start_dir, {}
    for entry in opened.infolist():
        fields = _CENTRAL.unpack(_at(archive, central, _CENTRAL.size))
        *_, name, extra = _LOCAL.unpack(_at(archive, entry.header_offset, _LOCAL.size))
        start = entry.header_offset + _LOCAL.size + name + extra
        after = start + entry.file_size
        own = entry.header_offset + 14
        if entry.flag_bits & _FOLLOWS:
            # The descriptor's own mark is optional; torch writes it.
            own = after + (4 if _at(archive, after, 4) == b"PK\7\10" else 0)
        found[entry.filename] = Slot(start, entry.file_size, (own, central + 16))
        central += _CENTRAL.size + sum(fields[10:13])
    return found


def replaced(archive: bytes, contents: Mapping[str, bytes]) -> bytes:
    """The archive with other contents of the named entries, which are there."""
    places = slots(io.BytesIO(archive))
    if any(places[name].size != len(content) for name, content in contents.items()):
        return _written(
            {
                name: contents.get(name, archive[slot.start : slot.start + slot.size])
                for name, slot in places.items()
            }
        )
    data = bytearray(archive)
    for name, content in contents.items():
        slot = places[name]
        data[slot.start : slot.start + slot.size] = content
        for position in slot.sums:
            data[position : position + 4] = checksum(content)
    return bytes(data)


def checksum(content: bytes | bytearray | memoryview) -> bytes:
    """CRC-32 as an archive holds it."""
    return struct.pack("<I", zlib.crc32(content))


def _at(archive: BinaryIO, position: int, size: int) -> bytes:
    archive.seek(position)
    return archive.read(size)


def _written(contents: Mapping[str, bytes]) -> bytes:
    out, directory = io.BytesIO(), io.BytesIO()
    for name, content in contents.items():
        encoded, at = name.encode(), out.tell()
        if at + len(content) > _LIMIT:
            raise ValueError("an archive of more than 4 GiB cannot change its size")
        free = -(at + _LOCAL.size + len(encoded) + 4) % _ALIGNMENT
        padding = b"FB" + struct.pack("<H", free) + b"Z" * free
        sums = zlib.crc32(content), len(content), len(content)
        sizes = len(encoded), len(padding)
        out.write(_LOCAL.pack(b"PK\3\4", 0, _FLAGS, 0, 0, 0, 0, 0, 0, *sizes))
        out.write(encoded + padding + content + struct.pack("<4s3I", b"PK\7\10", *sums))
        rest = len(encoded), 0, 0, 0, 0, 0, at
        directory.write(_CENTRAL.pack(b"PK\1\2", 0, 0, _FLAGS, 0, 0, 0, *sums, *rest) + encoded)
    start, size = out.tell(), directory.tell()
    out.write(directory.getvalue())
    out.write(_END.pack(b"PK\5\6", 0, 0, len(contents), len(contents), size, start, 0))
    return out.getvalue()
