"""Archives and pickles that are not what torch writes, or that attack the reader."""

from __future__ import annotations

import io
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path

import torch

from tests.converters import hostile
from tests.converters.hostile import rebuild, saved

from .case import COMMON, HEAD, Case, Damage


def _holds(key: str, content: bytes) -> Damage:
    """The entry becomes these bytes, padded by an own entry where a tensor must fit."""
    return lambda folder: rebuild(folder, {key: lambda _data: content})


def _zip(
    entries: dict[str, bytes], compression: int = zipfile.ZIP_STORED, padding: int = 1 << 15
) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
        archive.writestr("padding", b"\1" * padding if compression == zipfile.ZIP_STORED else b"")
    return buffer.getvalue()


def _tensor(storage: bytes, shape: bytes = b"(K\x80K t", strides: bytes = b"(K K\x01t") -> bytes:
    """A pickle that rebuilds a tensor of 128 x 32 from what ``storage`` leaves on the stack."""
    return (
        b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n("
        + storage
        + b"K\x00"
        + shape
        + strides
        + b"\x89ccollections\nOrderedDict\n)RtR."
    )


def _storage(kind: str = "ctorch\nFloatStorage\n", key: str = "0", count: int = 4096) -> bytes:
    words = pickle.dumps(count, 2)[2:-1]
    return (
        b"(X\x07\x00\x00\x00storage"
        + kind.encode()
        + b"X"
        + len(key).to_bytes(4, "little")
        + key.encode()
        + b"X\x03\x00\x00\x00cpu"
        + words
        + b"tQ"
    )


def _encrypted(data: bytes) -> bytes:
    """Every entry says that it is encrypted."""
    local = data.replace(b"PK\3\4\0\0\x08\x08", b"PK\3\4\0\0\x09\x08")
    return local.replace(b"PK\1\2\0\0\0\0\x08\x08", b"PK\1\2\0\0\0\0\x09\x08")


def _unchecked(data: bytes) -> bytes:
    """As written with ``torch.serialization.set_crc32_options(False)``."""
    value = torch.load(io.BytesIO(data), weights_only=True)
    torch.serialization.set_crc32_options(False)
    try:
        return saved(value)
    finally:
        torch.serialization.set_crc32_options(True)


FLOATS = b"\0" * 4096 * 4
GOOD = _tensor(_storage())
_ARCHIVES = [
    Case("no archive", _holds(HEAD, b"x" * 20000), f"{HEAD}.*not an archive"),
    Case("a bare pickle", _holds(HEAD, pickle.dumps(b"x" * 20000)), f"{HEAD}.*not an archive"),
    Case("an empty archive", _holds(HEAD, _zip({})), f"{HEAD}.*0 entries data.pkl"),
    Case(
        "two programs",
        _holds(HEAD, _zip({"a/data.pkl": GOOD, "b/data.pkl": GOOD})),
        f"{HEAD}.*2 entries data.pkl",
    ),
    Case(
        "a compressed archive",
        lambda f: rebuild(f, {HEAD: lambda d: _zip({"a/data.pkl": d * 99}, zipfile.ZIP_DEFLATED)}),
        f"{HEAD}.*(is compressed|cannot hold)",
    ),
    Case(
        "a bomb",
        _holds(HEAD, _zip({"a": b"\0" * (1 << 26)}, zipfile.ZIP_DEFLATED)),
        f"{HEAD}.*(is compressed|cannot hold)",
    ),
    Case(
        "an archive in an archive",
        _holds(HEAD, _zip({"inner.zip": _zip({"a/data.pkl": GOOD, "a/data/0": FLOATS})})),
        f"{HEAD}.*0 entries data.pkl",
    ),
    Case(
        "a program of two entries",
        _holds(HEAD, _zip({"a/data.pkl": GOOD}) + _zip({"a/data.pkl": GOOD})),
        f"{HEAD}.*not an archive",
    ),
    Case("an encrypted archive", lambda f: rebuild(f, {HEAD: _encrypted}), f"{HEAD}.*encrypted"),
    Case(
        "no sums",
        lambda f: rebuild(f, {HEAD: _unchecked}),
        f"{HEAD}.*without checksums",
    ),
    Case(
        "another byte order",
        _holds(HEAD, _zip({"a/data.pkl": GOOD, "a/data/0": FLOATS, "a/byteorder": b"big"})),
        f"{HEAD}.*big-endian",
    ),
    Case("no storage", _holds(HEAD, _zip({"a/data.pkl": GOOD})), f"{HEAD}.*a/data/0"),
    Case(
        "a short storage",
        _holds(HEAD, _zip({"a/data.pkl": GOOD, "a/data/0": FLOATS[:-4]})),
        f"{HEAD}.*16380 bytes, not 4096",
    ),
]
_TENSORS = [
    Case(name, _holds(HEAD, _zip({"a/data.pkl": program, "a/data/0": FLOATS})), message)
    for name, program, message in (
        ("a count too large", _tensor(_storage(count=2**40)), f"{HEAD}.*bytes, not 1099511627776"),
        ("a negative count", _tensor(_storage(count=-1)), f"{HEAD}.*not -1"),
        ("another storage", _tensor(_storage(key="1")), f"{HEAD}.*a/data/1"),
        ("a storage elsewhere", _tensor(_storage(key="../0")), f"{HEAD}.*unknown reference"),
        ("a storage of objects", _tensor(_storage("ctorch\nQStorage\n")), f"{HEAD}.*unknown type"),
        ("no storage at all", _tensor(b"N"), f"{HEAD}.*has no storage"),
        ("a shape too large", _tensor(_storage(), b"(M\x00\x01K t"), f"{HEAD}.*leaves its storage"),
        ("strides too large", _tensor(_storage(), strides=b"(K@K\x01t"), f"{HEAD}.*leaves its st"),
        (
            "negative strides",
            _tensor(_storage(), strides=b"(J\xe0\xff\xff\xffK\x01t"),
            f"{HEAD}.*-32",
        ),
        ("strides of words", _tensor(_storage(), strides=b"(X\x01\x00\x00\x001K\x01t"), f"{HEAD}"),
        ("one stride", _tensor(_storage(), strides=b"(K t"), f"{HEAD}.*has no storage"),
    )
]
_PROGRAMS = [
    Case(f"{name} in {key}", _holds(key, _zip({"a/data.pkl": program})), message)
    for key, message in ((HEAD, r"output_layer\.weight"), (COMMON, r"common.state"))
    for name, program in (
        ("an empty program", b""),
        ("a cut program", pickle.dumps({"args": 1})[:-3]),
        ("two values", pickle.dumps(1) + pickle.dumps(2)),
        ("a string without end", b"\x80\x04\x8d" + (2**62).to_bytes(8, "little") + b"x."),
        ("memory for the asking", b"\x80\x02cbuiltins\nbytearray\nJ\xff\xff\xff\x7f\x85R."),
        ("a list in itself", b"\x80\x02]q\x00h\x00a."),
        ("deep nesting", b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b"."),
        ("buffers out of band", b"\x80\x05\x97."),
        ("an extension code", b"\x80\x02\x82\x01."),
        ("a frame too long", b"\x80\x04\x95" + (2**40).to_bytes(8, "little") + b"N."),
        ("torch's own loader", b"\x80\x02ctorch.storage\n_load_from_bytes\n(C\x01xtR."),
    )
]


def _attacks(marker: str) -> list[Case]:
    programs = hostile.payloads(Path(marker))
    places: dict[str, tuple[Callable[[bytes], Damage], str, str]] = {
        ".metadata": (
            lambda p: lambda f: (f / ".metadata").write_bytes(p),
            r"\.metadata: (refused|not a readable)",
            "dense_td",
        ),
        "common state": (lambda p: _holds(COMMON, _zip({"a/data.pkl": p})), COMMON, "dense_td"),
        "tensor": (lambda p: _holds(HEAD, _zip({"a/data.pkl": p})), HEAD, "dense_td"),
        "common.pt": (
            lambda p: lambda f: (f / "common.pt").write_bytes(hostile.archive(p)),
            r"common\.pt",
            "v0.18.2_dense_td",
        ),
        "arguments": (
            lambda p: _holds("args", _zip({"a/data.pkl": p})),
            "args",
            "adam_torch_dcp_fsdp2",
        ),
    }
    return [
        Case(f"{name} in {place}", plant(program), message, sample)
        for place, (plant, message, sample) in places.items()
        for name, program in programs.items()
    ]


# Where the attacks would leave a file; the test looks there.
MARKER = "executed-by-a-checkpoint"
CASES = (*_ARCHIVES, *_TENSORS, *_PROGRAMS, *_attacks(MARKER))
