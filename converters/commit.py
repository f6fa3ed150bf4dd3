"""Complete or nothing: results grow in a hidden folder that gets its name when it is finished."""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from converters.errors import CheckpointError

REPORT = "conversion.json"
_GROWING = ".converting"
_REPLACED = ".replaced"
_ATTEMPTS, _PAUSE = 100, 0.05  # seconds


def check_output(out: Path, sources: tuple[Path, ...], force: bool) -> None:
    """Raise CheckpointError unless ``out`` may be written without harm to anything.

    With ``force`` an earlier result may be replaced, recognized by its conversion.json; nothing
    else is ever removed.
    """
    try:
        target = out.absolute().resolve()
    except (OSError, RuntimeError) as error:
        raise CheckpointError(f"{out}: cannot be followed to a folder: {error}") from error
    if not target.name:
        raise CheckpointError(f"{out}: not a name for a result: give --out another folder")
    for source in sources:
        folder = source.absolute().resolve()
        if target == folder or folder in target.parents:
            raise CheckpointError(f"{out}: inside the source {source}: give --out another folder")
        if target in folder.parents:
            raise CheckpointError(f"{out}: contains the source {source}: give --out another folder")
    if not target.parent.is_dir():
        raise CheckpointError(f"{out}: {target.parent} is no folder: create it first")
    _check_occupied(out, target, force)


def _check_occupied(out: Path, target: Path, force: bool) -> None:
    if out.is_symlink() and not target.exists():
        raise CheckpointError(f"{out}: a link to {target}, which does not exist")
    if target.exists() and not target.is_dir():
        raise CheckpointError(f"{out}: a file of that name is in the way: give --out another name")
    if not target.is_dir() or not any(target.iterdir()):
        return
    if not force:
        raise CheckpointError(f"{out}: exists: give --out another folder, or --force")
    if not (target / REPORT).is_file():
        raise CheckpointError(
            f"{out}: exists and is not a result of muon-convert (no {REPORT}): "
            "--force does not replace it, remove it yourself"
        )


@contextmanager
def growing(out: Path) -> Iterator[Path]:
    """A hidden, empty folder beside ``out``; on leaving in peace it becomes ``out``.

    What an interrupted run left there is removed. On an exception nothing remains.

    Raises:
      CheckpointError: another process is writing the same result, or the place is not writable.
    """
    target = out.absolute().resolve()
    folder, old = hidden(target), target.with_name(f".{target.name}{_REPLACED}")
    try:
        _recover(target, old)
        folder.mkdir(exist_ok=True)
        lock = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise CheckpointError(f"{out}: cannot be written: {error.strerror}") from error
    try:
        _lock(lock, out)
        clear(folder)
        try:
            yield folder
            sync(folder)
            _publish(folder, target, old)
        except BaseException:
            _remove(folder)
            raise
    finally:
        os.close(lock)


def _remove(folder: Path) -> None:
    """Even while writes that were on their way still arrive in it."""
    for _ in range(_ATTEMPTS):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(_PAUSE)


def hidden(target: Path) -> Path:
    """Where the result grows; the same for every process that works on it."""
    return target.with_name(f".{target.name}{_GROWING}")


def clear(folder: Path) -> None:
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def sync(folder: Path) -> None:
    """Flush every file and folder below, so that a rename never outlives what it names."""
    for place, _, files in os.walk(folder):
        for name in (*files, "."):
            handle = os.open(os.path.join(place, name), os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)


def _lock(handle: int, out: Path) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise CheckpointError(f"{out}: another muon-convert is writing it: wait for it") from error


def _publish(folder: Path, target: Path, old: Path) -> None:
    if target.is_dir() and any(target.iterdir()):
        target.rename(old)
    folder.rename(target)
    handle = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
    shutil.rmtree(old, ignore_errors=True)


def _recover(target: Path, old: Path) -> None:
    """Finish what a kill between the two renames of ``_publish`` left."""
    if not old.is_dir():
        return
    if target.exists():
        shutil.rmtree(old)
    else:
        old.rename(target)
