"""What every command of muon-check prints, and how it ends."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import click


def fail(message: str) -> NoReturn:
    """The user's mistake, or what is missing: exit code 2."""
    click.echo(f"muon-check: {message}", err=True)
    sys.exit(2)


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
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        fail(f"{file}: cannot be written: {error.strerror}")
