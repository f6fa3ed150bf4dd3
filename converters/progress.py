"""Progress on stderr: a bar for a person, a line now and then for a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# Called with the bytes that were just finished.
Advance = Callable[[int], None]
_SECONDS_BETWEEN_LINES = 30.0


@contextmanager
def progress(label: str, total: int, quiet: bool = False) -> Iterator[Advance]:
    """Show how much of ``total`` bytes is done."""
    if quiet:
        yield lambda size: None
    elif sys.stderr.isatty():
        with _bar(label, total) as advance:
            yield advance
    else:
        yield _lines(label, total)


@contextmanager
def _bar(label: str, total: int) -> Iterator[Advance]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=total)
        yield lambda size: bar.advance(task, size)


def _lines(label: str, total: int) -> Advance:
    state = {"done": 0, "said": time.monotonic()}

    def advance(size: int) -> None:
        state["done"] += size
        now = time.monotonic()
        if now - state["said"] >= _SECONDS_BETWEEN_LINES:
            state["said"] = now
            sys.stderr.write(
                f"{label}: {state['done'] / 2**30:.1f} of {total / 2**30:.1f} GiB, "
                f"{100 * state['done'] // max(total, 1)}%\n"
            )

    return advance
