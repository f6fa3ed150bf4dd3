"""muon-check: the command line. Nothing heavy is imported before a command runs."""

from __future__ import annotations

import contextlib
import errno
import signal
import threading
from collections.abc import Iterator
from typing import Any, NoReturn

import click

from converters.lazy_group import LazyGroup
from muon_fork.version import VERSION

# Command to the module that holds it under the same name; loaded when it is called or described.
COMMANDS = {
    "parity": "checks.commands.parity",
    "replay": "checks.commands.replay",
    "routing": "checks.commands.routing",
    "config": "checks.commands.config",
    "record": "checks.commands.record",
    "upstream": "checks.commands.upstream",
}


class Commands(LazyGroup):
    modules = COMMANDS

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; Ctrl-C and a polite kill leave nothing behind and end as a shell says.

        1 would mean that a difference was found.
        """
        try:
            with _stopped_politely():
                return super().invoke(ctx)
        except KeyboardInterrupt:
            code, message = 128 + signal.SIGINT, "interrupted"
        except MemoryError:
            code, message = 2, "out of memory"
        except OSError as error:
            if error.errno == errno.EPIPE:
                raise  # whoever read our output has enough
            code, message = 2, f"{error.filename or 'file system'}: {error.strerror or error}"
        click.echo(f"muon-check: {message}", err=True)
        ctx.exit(code)


@contextlib.contextmanager
def _stopped_politely() -> Iterator[None]:
    """SIGTERM and SIGHUP go the way of an exception, so that scratch folders and trainers end."""
    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    if threading.current_thread() is not threading.main_thread():
        numbers = []
    ours = [n for n in numbers if signal.getsignal(n) is signal.SIG_DFL]  # else nohup
    for number in ours:
        signal.signal(number, _stop)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


def _stop(number: int, _frame: object) -> NoReturn:
    raise SystemExit(128 + number)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION, prog_name="muon-check")
def main() -> None:
    """Show that a migrated MaxText trains as the Megatron run that it goes on from.

    Before a run: config, routing, replay. With training: record, parity. After an upgrade:
    upstream. parity without --run needs no data, no checkpoint and no MaxText.

    Exit codes: 0 all agrees, 1 something does not, 2 it could not be checked.
    """
