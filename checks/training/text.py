"""Read the text files of a run or a MaxText."""

from __future__ import annotations

from pathlib import Path

from .errors import RunError


def read_text(path: Path) -> str:
    """The text of a file, without a byte order mark.

    Raises:
      RunError: it cannot be read, or is no text.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise RunError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise RunError(f"{path}: not a text file (byte {error.start})") from error
