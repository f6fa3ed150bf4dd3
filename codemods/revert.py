"""Taking a migration back to the byte."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from codemods import record as records
from codemods.changes import Change, temporary_name, transaction, write_all
from codemods.errors import MigrateError, Problem
from codemods.guard import check_ground, sole_writer
from codemods.layout import Layout
from codemods.record import FileRecord, Record, digest
from codemods.state import TreeState


def plan_revert(layout: Layout, state: TreeState) -> list[Change]:
    """What brings every original back.

    Raises:
      MigrateError: a file was changed after apply, or there is no record of what it was.
    """
    record = state.record
    if record is None:
        if state.progress == "not migrated":
            return []
        message = "no record of the originals here (a fresh clone?): take the change back with git"
        raise MigrateError(*(Problem(message, name) for name in state.done))
    changes, problems = [], []
    for key, row in record.files.items():
        path = records.path_of(layout, key)
        found = records.read(path)
        if digest(found) == row.before:
            continue
        is_ours = digest(found) == row.after or (
            record.state == "applying" and digest(found) == row.replaced
        )
        if row.edited or not is_ours:
            problems.append(Problem(_edited(layout, row), layout.relative(path)))
            continue
        data = records.original(layout, row)
        changes.append(Change(path, found, data, mode=row.mode or None, mtime_ns=row.mtime_ns))
    if problems:
        raise MigrateError(*problems)
    return changes


def _edited(layout: Layout, row: FileRecord) -> str:
    message = "was changed after apply: put the migrated text back, or take this file back yourself"
    if row.before is None:
        return f"{message} (it did not exist before)"
    return (
        f"{message} (the original is {layout.relative(records.original_name(layout, row.before))})"
    )


def revert(layout: Layout, state: TreeState, changes: Sequence[Change]) -> list[str]:
    """Bring the originals back and remove what apply added.

    Returns:
      Directories of ours that had to stay, because something else lies in them.

    Raises:
      MigrateError: something is in the way or failed; the tree is as it was.
      NotPutBack: it failed, and so did the way back; the originals are kept.
    """
    with sole_writer(layout):
        return _revert(layout, state.record, changes)


def _revert(layout: Layout, record: Record | None, changes: Sequence[Change]) -> list[str]:
    if record is None:
        folders = records.leftovers(layout)
        if folders:
            shutil.rmtree(layout.package / records.STATE_DIRECTORY)
        return _remove_directories(layout, folders)
    check_ground(layout, changes)
    with transaction() as undo:
        write_all(changes, undo)
    for key in record.files:  # Left behind by an apply that was killed.
        temporary_name(records.path_of(layout, key)).unlink(missing_ok=True)
    shutil.rmtree(layout.package / records.STATE_DIRECTORY)
    paths = [records.path_of(layout, key) for key in record.directories]
    return _remove_directories(layout, paths)


def _remove_directories(layout: Layout, paths: Sequence[Path]) -> list[str]:
    left = []
    for path in sorted(set(paths), key=lambda p: len(p.parts), reverse=True):
        if not path.is_dir():
            continue
        shutil.rmtree(path / "__pycache__", ignore_errors=True)
        try:
            os.rmdir(path)
        except OSError:
            left.append(layout.relative(path))
    return left
