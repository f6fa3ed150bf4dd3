"""What an apply leaves behind so that it can be taken back: originals and a manifest.

It lies inside the copied fork, in a folder that ignores itself in git. Paths in it are relative to
the package, so that a checkout may be moved.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from codemods.errors import MigrateError, Problem
from codemods.fork_copy import FORK
from codemods.layout import Layout

STATE_DIRECTORY = FORK / ".muon-migrate"
MANIFEST = STATE_DIRECTORY / "manifest.json"
FORMAT = 1

State = Literal["applying", "applied"]


@dataclass(frozen=True)
class FileRecord:
    """One file that was written.

    Attributes:
      before: SHA-256 of the original, None when there was no such file.
      after: SHA-256 of what was written, None when it was removed.
      mode, mtime_ns: of the original.
      replaced: SHA-256 of what the last apply found, where that was not the original.
      edited: someone changed it between two applies, so the original no longer undoes just ours.
    """

    before: str | None
    after: str | None
    mode: int = 0
    mtime_ns: int = 0
    replaced: str | None = None
    edited: bool = False


@dataclass(frozen=True)
class Record:
    """The last apply.

    Attributes:
      state: ``applying`` until everything is written.
      tool: ``tool_identity()`` of the tool that ran.
      reference: label of the reference.
      settings: the configuration keys it settled, with their values.
      fixers: names of those that ran.
      files: what was written, by path relative to the package, with forward slashes.
      unchanged: SHA-256 of the files that were right already, by the same kind of path.
      directories: those that were created, in the same form.
    """

    state: State
    tool: str
    reference: str
    settings: Mapping[str, Any]
    fixers: tuple[str, ...]
    files: Mapping[str, FileRecord]
    unchanged: Mapping[str, str]
    directories: tuple[str, ...]


def digest(data: bytes | None) -> str | None:
    """SHA-256 in hex; None stands for an absent file."""
    return None if data is None else hashlib.sha256(data).hexdigest()


def key_of(layout: Layout, path: Path) -> str:
    """How the manifest names ``path``."""
    return Path(os.path.relpath(path, layout.package)).as_posix()


def path_of(layout: Layout, key: str) -> Path:
    return Path(os.path.normpath(layout.package / key))


def original_name(layout: Layout, before: str) -> Path:
    """Where the bytes of an original with that digest are kept."""
    return layout.package / STATE_DIRECTORY / "originals" / before


def original(layout: Layout, row: FileRecord) -> bytes | None:
    """The recorded original.

    Raises:
      MigrateError: its bytes are gone or are no longer those that were recorded.
    """
    if row.before is None:
        return None
    kept = original_name(layout, row.before)
    data = read(kept)
    if digest(data) != row.before:
        message = "the kept original is missing or damaged; take the file back with git"
        raise MigrateError(Problem(message, layout.relative(kept)))
    return data


def read(path: Path) -> bytes | None:
    """Bytes of a file, None when there is none."""
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None


def leftovers(layout: Layout) -> list[Path]:
    """Directories of an apply that was killed before it had written a manifest; nothing else is in
    them."""
    state, fork = layout.package / STATE_DIRECTORY, layout.package / FORK
    if not state.is_dir() or (layout.package / MANIFEST).exists():
        return []
    chain = [state, fork, fork.parent]
    found = [state]
    for inner, outer in itertools.pairwise(chain):
        if os.listdir(outer) != [inner.name]:
            break
        found.append(outer)
    return found


def dump(record: Record) -> bytes:
    """The manifest's bytes."""
    document = {"format": FORMAT, **dataclasses.asdict(record)}
    return (json.dumps(document, indent=1, sort_keys=True) + "\n").encode()


def load(layout: Layout) -> Record | None:
    """The record of the tree, None when it has none.

    Raises:
      MigrateError: the manifest cannot be trusted: unreadable, of a later version, or pointing out
        of the tree.
    """
    path = layout.package / MANIFEST
    data = read(path)
    if data is None:
        return None
    try:
        record = _parse(json.loads(data))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        message = f"the manifest is unreadable ({error}); take the files back with git"
        raise MigrateError(Problem(message, layout.relative(path))) from None
    outside = [k for k in record.files if not path_of(layout, k).is_relative_to(layout.root)]
    outside += [d for d in record.directories if not path_of(layout, d).is_relative_to(layout.root)]
    if outside:
        message = f"the manifest points out of the tree: {', '.join(outside)}; do not trust it"
        raise MigrateError(Problem(message, layout.relative(path)))
    return record


def _parse(document: Any) -> Record:
    if document["format"] != FORMAT:
        raise ValueError("written by another version of muon-migrate")
    if document["state"] not in get_args(State):
        raise ValueError(f"state {document['state']!r}")
    return Record(
        state=document["state"],
        tool=_text(document["tool"]),
        reference=_text(document["reference"]),
        settings=dict(document["settings"]),
        fixers=tuple(map(_text, document["fixers"])),
        files={key: _file_record(row) for key, row in document["files"].items()},
        unchanged={key: _text(value) for key, value in document["unchanged"].items()},
        directories=tuple(map(_text, document["directories"])),
    )


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected a text, found {value!r}")
    return value


def _file_record(row: Any) -> FileRecord:
    found = FileRecord(**row)
    for value in (found.before, found.after, found.replaced):
        if value is not None:
            _text(value)
    if not (type(found.mode) is type(found.mtime_ns) is int and type(found.edited) is bool):
        raise TypeError(f"expected numbers and a truth value, found {row!r}")
    if not (0 <= found.mode <= 0o7777 and 0 <= found.mtime_ns < 2**63):
        raise ValueError(f"impossible mode or time: {row!r}")
    return found


def changed_since(layout: Layout, record: Record) -> list[str]:
    """Keys of recorded files that no longer hold what was written."""
    rows = record.files.items()
    return [key for key, row in rows if digest(read(path_of(layout, key))) != row.after]
