"""What every command of muon-convert prints, and how it ends."""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import click

# Ended by the user, as a shell reports it.
INTERRUPTED = 130
_STOPPING = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def reported() -> Iterator[threading.Event]:
    """Turn what may go wrong into a message and an exit code; the event is set by Ctrl-C."""
    from converters.budget import Stopped
    from converters.errors import CheckpointError
    from muon_fork.spec import SpecError

    stop = threading.Event()

    def interrupt(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        click.echo("muon-convert: stopping", err=True)

    before = {number: signal.signal(number, interrupt) for number in _STOPPING}
    try:
        yield stop
    except (CheckpointError, SpecError) as error:
        fail(str(error))
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        fail(f"{place}{error.strerror or error}")
    except ModuleNotFoundError as error:
        fail(f"{error.name} is missing: install the toolkit with [orbax]")
    except (Stopped, KeyboardInterrupt):
        click.echo("muon-convert: interrupted, nothing was written", err=True)
        sys.exit(INTERRUPTED)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def emit(report: Mapping[str, Any], json_out: str | None) -> bool:
    """Write JSON where it is wanted; whether text is still to be printed on stdout."""
    from converters.report import plain

    if json_out == "-":
        click.echo(json.dumps(plain(report), indent=2))
        return False
    if json_out is not None:
        write(Path(json_out), plain(report))
    return True


def print_result(report: Mapping[str, Any], json_out: str | None) -> None:
    for note in report["notes"]:
        click.echo(f"note: {note}", err=True)
    for title in ("dropped", "created"):
        reasons = [row["reason"] for row in report[title]]
        for reason in dict.fromkeys(reasons):
            click.echo(f"{title}: {reasons.count(reason)} entries, {reason}", err=True)
    if emit(report, json_out):
        click.echo(report["checkpoint"])


def fail(message: str) -> NoReturn:
    click.echo(f"muon-convert: {message}", err=True)
    sys.exit(2)


def write(file: Path, report: dict[str, Any]) -> None:
    try:
        file.write_text(json.dumps(report, indent=2) + "\n")
    except OSError as error:
        fail(f"{file}: cannot be written: {error.strerror}")
