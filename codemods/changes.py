"""One file's fate, and writing many of them all or not at all."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from codemods.errors import MigrateError, Problem

Undo = Callable[[], None]


class NotPutBack(MigrateError):
    """Writing failed, and so did putting everything back: the tree is neither old nor new."""


@dataclass(frozen=True)
class Change:
    """A file before and after; None is no file.

    Attributes:
      mode: permission bits to give it; None keeps those it has.
      mtime_ns: modification time to give it; None is now.
      rewrites: names of the fixers that changed it.
    """

    path: Path
    before: bytes | None
    after: bytes | None
    mode: int | None = None
    mtime_ns: int | None = None
    rewrites: tuple[str, ...] = ()


def obstacles(changes: Sequence[Change]) -> Iterator[Problem]:
    """Everything that can be seen to be in the way before the first byte is written."""
    for change in changes:
        path = change.path
        if path.is_symlink():
            target = os.readlink(path)
            yield Problem(f"is a symbolic link to {target}: replace it by a file", str(path))
        elif path.exists() and not path.is_file():
            yield Problem("is in the way: a file must be written here", str(path))
        elif path.exists() and not _is_writable(path):
            yield Problem("is read-only: make it writable (chmod u+w)", str(path))
        parent = next(p for p in path.parents if os.path.lexists(p))
        if not parent.is_dir():
            yield Problem("is in the way: a directory is needed here", str(parent))
        elif not _is_writable(parent):
            yield Problem("is read-only: make it writable (chmod u+w)", str(parent))


def _is_writable(path: Path) -> bool:
    """Also for root, who may write everything, a missing write bit is a wish to respect."""
    return bool(path.stat().st_mode & 0o222) and os.access(path, os.W_OK)


@contextlib.contextmanager
def transaction() -> Iterator[list[Undo]]:
    """Collect undo steps; on any failure run them backwards.

    Raises:
      MigrateError: the body failed for a reason of the file system; all is as it was before.
      NotPutBack: it failed, and the problems say what is not as it was. An outer transaction then
        stays as it is, for it wrote what a later undo needs.
    """
    steps: list[Undo] = []
    try:
        yield steps
    except NotPutBack:
        raise
    except BaseException as error:
        failures = list(_roll_back(steps))
        if isinstance(error, OSError):
            where = _place(error)
            reason = error.strerror or str(error)
            if failures:
                problem = Problem(f"{reason}; not everything could be put back", where)
                raise NotPutBack(problem, *failures) from None
            raise MigrateError(Problem(f"{reason}; nothing was changed", where)) from None
        if failures:
            raise NotPutBack(Problem(str(error) or "interrupted"), *failures) from error
        raise


def _place(error: OSError) -> str | None:
    """The file that the user knows: a rename names its target second."""
    place = error.filename2 or error.filename
    return str(place) if place else None


def _roll_back(steps: list[Undo]) -> Iterator[Problem]:
    while steps:
        try:
            steps.pop()()
        except OSError as error:
            where = _place(error)
            yield Problem(f"could not be put back: {error.strerror or error}", where)


def make_directories(paths: Sequence[Path], undo: list[Undo]) -> list[Path]:
    """Create what is missing, parents first; returns what was created."""
    created: list[Path] = []
    for path in paths:
        for missing in reversed([p for p in (path, *path.parents) if not p.exists()]):
            missing.mkdir()
            undo.append(missing.rmdir)
            created.append(missing)
    return created


def write_all(changes: Sequence[Change], undo: list[Undo]) -> None:
    """Stage every new content next to its place, then rename one after the other."""
    staged = [(change, _stage(change, undo)) for change in changes if change.after is not None]
    for change, temporary in staged:
        _replace(change, temporary, undo)
    for change in changes:
        if change.after is None and change.before is not None:
            undo.append(_restorer(change.path, change.before))
            change.path.unlink()


def temporary_name(path: Path) -> Path:
    """Where new content waits; always the same, so that an interrupted run can be cleaned up."""
    return path.with_name(f".{path.name}.muon-migrate")


def _stage(change: Change, undo: list[Undo]) -> Path:
    temporary = temporary_name(change.path)
    undo.append(lambda: temporary.unlink(missing_ok=True))
    assert change.after is not None
    _write(temporary, change.after, change.path)
    if change.path.exists():
        _take_after(temporary, change.path.stat())
    if change.mode is not None:
        temporary.chmod(change.mode)
    if change.mtime_ns is not None:
        os.utime(temporary, ns=(change.mtime_ns, change.mtime_ns))
    return temporary


def _replace(change: Change, temporary: Path, undo: list[Undo]) -> None:
    if change.before is None:
        undo.append(lambda: change.path.unlink(missing_ok=True))
    else:
        undo.append(_restorer(change.path, change.before))
    os.replace(temporary, change.path)


def _restorer(path: Path, data: bytes) -> Undo:
    """An undo step that gives ``path`` the content, mode, owner and time it has now."""
    seen = path.stat()

    def restore() -> None:
        if path.exists() and path.stat().st_ino == seen.st_ino:
            return  # Never replaced.
        temporary = temporary_name(path)
        _write(temporary, data, path)
        _take_after(temporary, seen)
        os.utime(temporary, ns=(seen.st_atime_ns, seen.st_mtime_ns))
        os.replace(temporary, path)

    return restore


def _write(path: Path, data: bytes, target: Path) -> None:
    path.unlink(missing_ok=True)
    try:
        with open(path, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        error.filename = str(target)  # A full disk names none, and nobody knows the temporary one.
        raise


def _take_after(path: Path, seen: os.stat_result) -> None:
    """Mode and, where the system lets us, owner of another file."""
    with contextlib.suppress(OSError, AttributeError):
        os.chown(path, seen.st_uid, seen.st_gid)
    path.chmod(stat.S_IMODE(seen.st_mode))
