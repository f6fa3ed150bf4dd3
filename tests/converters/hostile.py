"""Pickles that do something when a careless reader loads them, and ways to plant them."""

from __future__ import annotations

import dataclasses
import io
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

DATA = Path(__file__).parents[1] / "data" / "megatron"
DISTRIBUTED = tuple(sorted(file.parts[-3] for file in DATA.glob("*/iter_0000020/.metadata")))
TORCH_DIST = tuple(sorted(file.parts[-3] for file in DATA.glob("*/iter_0000020/metadata.json")))


class _Call:
    """Pickles as the call of ``function(*arguments)``."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


def _stack_global(module: str, name: str) -> bytes:
    return b"".join(b"\x8c" + bytes([len(s)]) + s.encode() for s in (module, name)) + b"\x93"


def _string(text: str) -> bytes:
    return b"X" + len(text.encode()).to_bytes(4, "little") + text.encode()


def payloads(marker: Path) -> dict[str, bytes]:
    """Programs by name, each of which would create ``marker`` under ``pickle.load``."""
    command = f"touch {marker}"
    code = f"open({str(marker)!r}, 'w').close()"
    run = _string(command) + b"\x85R."
    dumped = pickle.dumps
    return {
        "reduce": dumped(_Call(os.system, command), 4),
        "protocol 0": dumped(_Call(os.system, command), 0),
        "eval": dumped(_Call(eval, code), 2),
        "nested": dumped({"args": [1, _Call(exec, code)]}, 4),
        "object opcode": b"(" + b"cos\nsystem\n" + _string(command) + b"o.",
        "instance opcode": b"(" + _string(command) + b"ios\nsystem\n.",
        "dotted name": b"\x80\x04" + _stack_global("pathlib", "os.system") + run,
        "getattr gadget": b"\x80\x04"
        + _stack_global("builtins", "getattr")
        + b"cos\npath\n"
        + _string("system")
        + b"\x86R"
        + run,
        "getattr of an allowed name": b"\x80\x04"
        + _stack_global("builtins", "getattr")
        + _stack_global("builtins", "getattr")
        + _string("__self__")
        + b"\x86R"
        + run,
    }


def is_effective(program: bytes, marker: Path) -> bool:
    """Whether the plain pickle module would be fooled (the getattr gadgets need more steps)."""
    try:
        pickle.loads(program)
    except Exception:
        return marker.exists()
    found = marker.exists()
    marker.unlink(missing_ok=True)
    return found


def archive(program: bytes) -> bytes:
    """What ``torch.save`` writes, with ``program`` as its pickle."""
    buffer = io.BytesIO()
    writer = torch._C.PyTorchFileWriter(buffer)
    writer.write_record("data.pkl", program, len(program))
    writer.write_end_of_file()
    return buffer.getvalue()


def copy(name: str, target: Path) -> Path:
    """A writable copy of a sample checkpoint's latest iteration."""
    source = DATA / name
    iteration = sorted(source.glob("iter_*"))[0]
    return Path(shutil.copytree(iteration, target / iteration.name))


def replace_entry(folder: Path, key: str, content: bytes) -> None:
    """Make ``key`` of a checkpoint lead to ``content``, appended to its file."""
    index = folder / ".metadata"
    metadata = pickle.loads(index.read_bytes())
    for place, info in metadata.storage_data.items():
        if place.fqn == key:
            file = folder / info.relative_path
            info.offset, info.length = file.stat().st_size, len(content)
            with file.open("ab") as stream:
                stream.write(content)
            break
    else:
        raise AssertionError(f"no entry {key}")
    index.write_bytes(pickle.dumps(metadata))


def rename(folder: Path, old: str, new: str) -> None:
    """Replace a part of every key that has it."""
    index = folder / ".metadata"
    metadata = pickle.loads(index.read_bytes())
    entries = metadata.state_dict_metadata
    metadata.state_dict_metadata = {k.replace(old, new): v for k, v in entries.items()}
    metadata.storage_data = {
        dataclasses.replace(place, fqn=place.fqn.replace(old, new)): info
        for place, info in metadata.storage_data.items()
    }
    index.write_bytes(pickle.dumps(metadata))


Place = tuple[str, tuple[int, ...] | None]


def rebuild(folder: Path, changes: dict[str, Callable[[bytes], bytes]]) -> None:
    """Write every file anew with the entries of some keys changed; sums and offsets are right."""
    index = folder / ".metadata"
    metadata = pickle.loads(index.read_bytes())
    contents: dict[str, list[bytes]] = {}
    missing = set(changes)
    for place, info in sorted(metadata.storage_data.items(), key=lambda item: item[1].offset):
        data = (folder / info.relative_path).read_bytes()[info.offset :][: info.length]
        if place.fqn in changes:
            missing.discard(place.fqn)
            data = changes[place.fqn](data)
        done = contents.setdefault(info.relative_path, [])
        info.offset, info.length = sum(map(len, done)), len(data)
        done.append(data)
    assert not missing
    for name, done in contents.items():
        (folder / name).write_bytes(b"".join(done))
    index.write_bytes(pickle.dumps(metadata))


def edit_metadata(folder: Path, edit: Callable[[Any], object]) -> None:
    """Change the unpickled metadata in place."""
    index = folder / ".metadata"
    metadata = pickle.loads(index.read_bytes())
    edit(metadata)
    index.write_bytes(pickle.dumps(metadata))


def saved(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def edit_tensor(function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[bytes], bytes]:
    """For ``rebuild``: the same entry with other values."""
    return lambda data: saved(function(torch.load(io.BytesIO(data), weights_only=True).clone()))


def place_of(folder: Path, key: str) -> tuple[Path, int, int]:
    """File, first byte and length of a key's first piece."""
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    for place, info in metadata.storage_data.items():
        if place.fqn == key:
            return folder / info.relative_path, info.offset, info.length
    raise AssertionError(f"no entry {key}")
