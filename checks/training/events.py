"""Scalars of TensorBoard event files, without TensorFlow.

A file is a sequence of TFRecords: length, masked CRC of the length, payload, masked CRC of the
payload, little-endian. The payload is a protocol buffer ``Event``: step is field 2, summary field
5; a summary's values are field 1, each with tag (1) and simple_value (2) or tensor (8).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .errors import RunError

PATTERN = "events.out.tfevents.*"
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MASK = 0xA282EAD8
_HEADER = struct.Struct("<QI")
_CRC = struct.Struct("<I")


def is_events(path: Path) -> bool:
    """Whether the path is an event file, or a folder with some."""
    if path.is_dir():
        return any(path.glob(PATTERN))
    try:
        with path.open("rb") as stream:
            head = stream.read(_HEADER.size)
    except OSError:
        return False
    if len(head) < _HEADER.size:
        return False
    _, crc = _HEADER.unpack(head)
    return masked_crc(head[:8]) == int(crc)


def scalars(path: Path) -> Iterator[tuple[int, str, float]]:
    """(step, tag, value) of a file, or of all files of a folder in the order of their names.

    Raises:
      RunError: a file cannot be read, or a record is damaged.
    """
    for file in sorted(path.glob(PATTERN)) if path.is_dir() else (path,):
        for place, payload in _records(file):
            try:
                yield from _values(payload)
            except (ValueError, TypeError, AttributeError, IndexError, struct.error) as error:
                raise RunError(f"{file}: no event at byte {place}: {error}") from error


def _records(file: Path) -> Iterator[tuple[int, bytes]]:
    """Payloads; the last may be cut off, as the file of a run that goes on is."""
    try:
        content = file.read_bytes()
    except OSError as error:
        raise RunError(f"{file}: cannot be read: {error.strerror}") from error
    place = 0
    while place + _HEADER.size <= len(content):
        length, crc = _HEADER.unpack_from(content, place)
        begin, end = place + _HEADER.size, place + _HEADER.size + length
        if masked_crc(content[place : place + 8]) != crc:
            raise RunError(f"{file}: damaged at byte {place}: checksum of a record's length")
        if end + _CRC.size > len(content):
            return
        payload = content[begin:end]
        if masked_crc(payload) != _CRC.unpack_from(content, end)[0]:
            raise RunError(f"{file}: damaged at byte {begin}: checksum of a record")
        yield place, payload
        place = end + _CRC.size


def _values(event: bytes) -> Iterator[tuple[int, str, float]]:
    fields = list(_fields(event))
    step = int(next((value for number, value in fields if number == 2), 0))
    summaries = [value for number, value in fields if number == 5]
    for summary in summaries:
        for number, value in _fields(summary):
            if number == 1:
                scalar = _scalar(value)
                if scalar is not None:
                    yield step, *scalar


def _scalar(value: bytes) -> tuple[str, float] | None:
    found = dict(_fields(value))
    tag = found.get(1, b"").decode("utf-8")
    if 2 in found:
        return tag, struct.unpack("<f", found[2])[0]
    if 8 in found:
        number = _tensor(found[8])
        return None if number is None else (tag, number)
    return None


def _tensor(tensor: bytes) -> float | None:
    """A float scalar tensor: dtype 1, its value packed in float_val (5) or tensor_content (4)."""
    found = dict(_fields(tensor))
    packed = found.get(5) or found.get(4)
    if found.get(1) != 1 or packed is None or len(packed) != 4:
        return None
    return float(struct.unpack("<f", packed)[0])


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """(number, value) of each field: integers of varints, bytes of everything else."""
    place = 0
    while place < len(message):
        key, place = _varint(message, place)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            value, place = _varint(message, place)
            yield number, value
            continue
        if kind == _BYTES:
            size, place = _varint(message, place)
        elif kind in (_FIXED64, _FIXED32):
            size = 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"wire type {kind}")
        if place + size > len(message):
            raise ValueError("a field reaches past its message")
        yield number, message[place : place + size]
        place += size


def _varint(message: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return value, place
        shift += 7
        if shift > 63:
            raise ValueError("a number of more than 64 bits")


def _crc_table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return tuple(table)


_TABLE = _crc_table()


def masked_crc(data: bytes) -> int:
    """CRC-32C (Castagnoli), rotated and offset as TFRecord has it."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF
