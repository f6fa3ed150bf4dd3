"""What every command of muon-check prints, and how it ends."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import click


def fail(message: str) -> NoReturn:
    """The user's mistake, or what is missing: exit code 2."""
    click.echo(f"muon-check: {message}", err=True)
    sys.exit(2)


def check_files(*names: str | None) -> None:
    """That results can be written to these files, before minutes are spent on them; - is stdout."""
    files = [Path(name).absolute() for name in names if name not in (None, "-")]
    for name in names:
        if name == "":
            fail("an empty name for a file to write")
    for file in files:
        if not file.parent.is_dir():
            fail(f"{file}: cannot be written: no folder {file.parent}")
        if file.is_dir():
            fail(f"{file}: cannot be written: it is a folder")
        if not os.access(file if file.exists() else file.parent, os.W_OK):
            fail(f"{file}: cannot be written: Permission denied")
    if len({file.resolve() for file in files}) < len(files):
        fail(f"{files[0]}: two results in one file: give each a name of its own")


def emit(document: Mapping[str, Any], json_out: str | None) -> bool:
    """Write JSON to a file or stdout if it is wanted; whether stdout is still free for text."""
    text = "" if json_out is None else json.dumps(document, indent=2, default=str)
    if json_out == "-":
        click.echo(text)
        return False
    if json_out is not None:
        write(Path(json_out), f"{text}\n")
    return True


def write(file: Path, text: str) -> None:
    """The whole file or, where that fails, the one that was there; a link's target is written."""
    target = file.resolve()
    try:
        if target.exists() and not target.is_file():
            target.write_text(text, encoding="utf-8")  # a pipe or a device
            return
        _replace(target, text)
    except OSError as error:
        fail(f"{file}: cannot be written: {error.strerror}")


def _replace(target: Path, text: str) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as scratch:
        whole = Path(scratch) / target.name
        whole.write_text(text, encoding="utf-8")
        if target.exists():
            whole.chmod(target.stat().st_mode & 0o7777)
        whole.replace(target)
