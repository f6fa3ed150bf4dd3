"""Carrying a plan out, all of it or nothing, and recording how to take it back."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from typing import Any

from codemods import probe
from codemods import record as records
from codemods.changes import Change, make_directories, transaction, write_all
from codemods.fork_copy import tool_identity
from codemods.guard import check_ground, sole_writer
from codemods.layout import Layout
from codemods.prepare import Applied
from codemods.record import FileRecord, Record, digest
from codemods.state import is_marked


def write(applied: Applied, python: str | None) -> None:
    """Carry the plan out, all of it or nothing.

    Args:
      applied: what ``prepare`` returned.
      python: interpreter of the checkout, to build the optimizer with before the result is kept.

    Raises:
      MigrateError: something is in the way or failed; the tree is as it was.
      NotPutBack: it failed, and so did the way back; the originals are kept.
    """
    with sole_writer(applied.plan.layout):
        _write(applied, python)


def _write(applied: Applied, python: str | None) -> None:
    plan = applied.plan
    layout = plan.layout
    if not plan.changes:
        if python is not None:
            probe.build_optimizer(python, plan)
        return
    check_ground(layout, plan.changes)
    record = _next_record(applied)
    package = layout.package
    with transaction() as undo:
        parents = [c.path.parent for c in plan.changes] + [package / records.STATE_DIRECTORY]
        created = records.leftovers(layout)
        created += make_directories(list(dict.fromkeys(parents)), undo)
        kept = [*record.directories, *(records.key_of(layout, p) for p in created)]
        record = dataclasses.replace(record, directories=tuple(dict.fromkeys(kept)))
        state = _state_changes(applied, record, "applying")
        make_directories([c.path.parent for c in state], undo)
        write_all(state, undo)
        with transaction() as undo_targets:
            write_all(plan.changes, undo_targets)
            if python is not None:
                probe.build_optimizer(python, plan)
            write_all(_state_changes(applied, record, "applied"), undo_targets)


def _next_record(applied: Applied) -> Record:
    old = applied.state.record
    layout = applied.plan.layout
    files = dict(old.files) if old else {}
    for change in applied.plan.changes:
        key = records.key_of(layout, change.path)
        files[key] = _file_record(layout, change, files.get(key))
    names = [fixer.name for fixer in applied.plan.fixers]
    return Record(
        state="applied",
        tool=tool_identity(),
        reference=applied.reference.label,
        settings=_settings(applied),
        fixers=tuple(dict.fromkeys([*(old.fixers if old else ()), *names])),
        files=files,
        unchanged=_unchanged(applied, files),
        directories=old.directories if old else (),
    )


def _settings(applied: Applied) -> dict[str, Any]:
    """What the whole tree is set to; nothing when its parts were written for two references."""
    old, new = applied.state.record, applied.reference.settings
    return new if applied.is_whole or old is None or old.settings == new else {}


def _unchanged(applied: Applied, files: Mapping[str, FileRecord]) -> dict[str, str]:
    layout = applied.plan.layout
    keys = {records.key_of(layout, path): path for path in applied.plan.unchanged}
    found = {k: digest(records.read(path)) for k, path in keys.items() if k not in files}
    return {key: value for key, value in found.items() if value is not None}


def _file_record(layout: Layout, change: Change, old: FileRecord | None) -> FileRecord:
    after, found = digest(change.after), digest(change.before)
    if old is not None and found in (old.after, old.before):
        return dataclasses.replace(old, after=after, replaced=found)
    if old is not None and not _is_new_original(layout, change):
        return dataclasses.replace(old, after=after, replaced=found, edited=True)
    if change.before is None:
        return FileRecord(before=None, after=after)
    seen = change.path.stat()
    return FileRecord(found, after, seen.st_mode & 0o7777, seen.st_mtime_ns)


def _is_new_original(layout: Layout, change: Change) -> bool:
    """Whether the file was put back, or replaced by one that was never migrated."""
    roles = {path: role for role, path in layout.roles.items()}
    role = roles.get(change.path)
    if role is None or change.before is None:
        return change.before is None
    with contextlib.suppress(KeyError):
        return not is_marked(role, change.before)
    return False


def _state_changes(applied: Applied, record: Record, state: records.State) -> list[Change]:
    """The record's own files: kept originals, a ``.gitignore``, the manifest last."""
    layout = applied.plan.layout
    folder = layout.package / records.STATE_DIRECTORY
    wanted = {folder / ".gitignore": b"*\n"}
    for change in applied.plan.changes:
        row = record.files[records.key_of(layout, change.path)]
        if row.before is not None and row.before == digest(change.before):
            assert change.before is not None
            wanted[records.original_name(layout, row.before)] = change.before
    manifest = records.dump(dataclasses.replace(record, state=state))
    wanted[layout.package / records.MANIFEST] = manifest
    found = [Change(path, records.read(path), data) for path, data in wanted.items()]
    return [change for change in found if change.before != change.after]
