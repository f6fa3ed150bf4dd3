"""Put an iteration among the checkpoints of a run: complete or not at all, and then the latest."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from converters import commit
from converters.errors import CheckpointError

from . import folders


def publish(root: Path, iteration: int, fill: Callable[[Path], None]) -> Path:
    """``root/iter_XXXXXXX`` with what ``fill`` writes into the folder it is given.

    Raises:
      CheckpointError: the folder exists, or it cannot be written.
    """
    folder = root / f"iter_{iteration:07d}"
    growing = root / f".{folder.name}.writing"
    if folder.exists():
        raise CheckpointError(f"{folder}: exists: choose another folder")
    shutil.rmtree(growing, ignore_errors=True)
    try:
        growing.mkdir()
        fill(growing)
        commit.sync(growing)
        growing.rename(folder)
        _track(root, iteration)
    except OSError as error:
        raise CheckpointError(f"{root}: cannot be written: {error.strerror}") from error
    finally:
        shutil.rmtree(growing, ignore_errors=True)
    return folder


def _track(root: Path, iteration: int) -> None:
    """Make the iteration the latest one, at once."""
    tracker = root / f".{folders.TRACKER}.writing"
    with tracker.open("w") as stream:
        stream.write(str(iteration))
        stream.flush()
        os.fsync(stream.fileno())
    tracker.replace(root / folders.TRACKER)
