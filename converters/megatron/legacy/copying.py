"""Copy the files of a legacy checkpoint, with the counts of a run that has gone on."""

from __future__ import annotations

import io
import shutil
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from converters.megatron import archives, numbers, zips
from converters.megatron.archives import Stored
from converters.megatron.numbers import Real, Whole
from converters.megatron.progress import Position

from . import groups
from .distributed import FLAT_FILE
from .ranks import MODEL_FILE, Ranks

_BLOCK = 1 << 20
_ALIGNMENT = 64


def copy_files(ranks: Ranks, target: Path, position: Position, opaque: tuple[str, ...]) -> None:
    """The files of every rank, with the counts of another position in those of the models."""
    for rank in ranks.ranks:
        (target / rank.folder.name).mkdir()
        for name in (MODEL_FILE, FLAT_FILE):
            file = rank.folder / name
            if file.is_file():
                changes = _counted(file, position, opaque) if name == MODEL_FILE else {}
                _copy(file, target / rank.folder.name / name, changes)


def _copy(old: Path, new: Path, contents: Mapping[str, bytes]) -> None:
    """Copy an archive with other contents of small entries; no entry is held in memory."""
    if not contents:
        shutil.copyfile(old, new)
        return
    with zipfile.ZipFile(old) as source, zipfile.ZipFile(new, "w") as target:
        for entry in source.infolist():
            data = contents.get(entry.filename)
            size = entry.file_size if data is None else len(data)
            made = zipfile.ZipInfo(entry.filename, entry.date_time)
            made.file_size = size
            made.extra = _padding(target.start_dir, made)
            stream = io.BytesIO(data) if data is not None else source.open(entry)
            with stream as content, target.open(made, "w") as out:
                shutil.copyfileobj(content, out, _BLOCK)


def _padding(start: int, entry: zipfile.ZipInfo) -> bytes:
    """An extra field that puts the content at a multiple of 64 bytes, as torch does to map it."""
    # The sizes of a large entry take 20 more bytes.
    header = 30 + len(entry.filename.encode()) + (20 if entry.file_size * 1.05 > 0x7FFFFFFF else 0)
    free = -(start + header + 4) % _ALIGNMENT
    return b"FB" + free.to_bytes(2, "little") + b"Z" * free


def _counted(file: Path, position: Position, opaque: tuple[str, ...]) -> dict[str, bytes]:
    """Entries of a rank's file whose counts are to change."""
    source = str(file)
    opened = archives.opened(file, source, opaque=opaque)
    program = numbers.without_frames(opened.program, source)
    state = numbers.locate(program, opened.names, opened.persistent_load)
    with file.open("rb") as stream:
        entries = {slot.start: name for name, slot in zips.slots(stream).items()}
    changes: list[tuple[numbers.Number, float]] = []
    contents: dict[str, bytes] = {}
    for found, wanted in _counts(state, position):
        if isinstance(found, (Whole, Real)) and found != wanted:
            changes.append((found, wanted))
        elif isinstance(found, Stored) and found.read().item() != wanted:
            contents[entries[found.start]] = np.array(wanted, found.dtype).tobytes()
    if changes:
        name = next(name for name in entries.values() if name.endswith("data.pkl"))
        contents[name] = numbers.replaced(program, changes)
    return contents


def _counts(state: Any, new: Position) -> Iterator[tuple[Any, int]]:
    """Every count in a rank's file, with what it is to be."""
    yield state.get("iteration"), new.iteration
    schedule = state.get("opt_param_scheduler")
    if isinstance(schedule, dict):
        yield schedule.get("num_steps"), new.samples
    yield state["args"].attributes.get("consumed_train_samples"), new.samples
    optimizer = state.get("optimizer")
    for child in optimizer if isinstance(optimizer, list) else [optimizer]:
        own = groups.inner(child) if isinstance(child, dict) else {}
        for group in own.get("param_groups", ()):
            yield group.get("step"), new.adam_step
        states = own.get("state")
        for kept in states.values() if isinstance(states, dict) else ():
            yield kept.get("step"), new.adam_step
