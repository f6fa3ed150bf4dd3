"""Whether a tree may be written now: nothing in the way, nobody else at work, a way back kept."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from codemods import record as records
from codemods.changes import Change, NotPutBack, obstacles
from codemods.errors import MigrateError, Problem
from codemods.layout import Layout


def check_ground(layout: Layout, changes: Sequence[Change]) -> None:
    """Raise with everything that is in the way of writing, before the first byte is written."""
    problems = [*_links(layout, changes), *obstacles(changes)]
    for change in changes:
        if records.read(change.path) != change.before:
            message = "changed while muon-migrate was reading: try again"
            problems.append(Problem(message, str(change.path)))
    if problems:
        raise MigrateError(*dict.fromkeys(problems))


def _links(layout: Layout, changes: Sequence[Change]) -> Iterator[Problem]:
    """Directories below the root that lie elsewhere: what is in them may be another tree's."""
    folders = dict.fromkeys(parent for change in changes for parent in change.path.parents)
    for folder in folders:
        if folder.is_symlink() and folder.is_relative_to(layout.root):
            message = (
                f"is a symbolic link to {os.readlink(folder)}: replace it by the directory, or "
                "migrate the tree that it points into"
            )
            yield Problem(message, str(folder))


@contextlib.contextmanager
def sole_writer(layout: Layout) -> Iterator[None]:
    """Hold the tree for the body; paths of its problems come out as the user knows them.

    Raises:
      MigrateError: another muon-migrate holds the tree.
    """
    try:
        with _locked(layout.package):
            yield
    except MigrateError as error:
        problems = [dataclasses.replace(p, path=_shown(layout, p)) for p in error.problems]
        if isinstance(error, NotPutBack):
            message = "the originals are kept: when the cause is gone, run muon-migrate revert"
            problems.append(Problem(message, str(layout.root)))
        raise type(error)(*problems) from error.__cause__


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """An advisory lock on the directory itself: it leaves no file, and ends with the process."""
    if sys.platform == "win32":
        yield
        return
    import fcntl

    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        message = "another muon-migrate is at work here: try again when it has finished"
        raise MigrateError(Problem(message, str(folder))) from None
    except OSError:
        pass  # Some network file systems know no locks.
    try:
        yield
    finally:
        os.close(handle)


def _shown(layout: Layout, problem: Problem) -> str | None:
    return layout.relative(Path(problem.path)) if problem.path else problem.path
