"""muon-check: the command line. Nothing heavy is imported before a command runs."""

from __future__ import annotations

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


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION, prog_name="muon-check")
def main() -> None:
    """Show that a migrated MaxText trains as the Megatron run that it goes on from.

    Before a run: config, routing, replay. With training: record, parity. After an upgrade:
    upstream. parity without --run needs no data, no checkpoint and no MaxText.

    Exit codes: 0 all agrees, 1 something does not, 2 it could not be checked.
    """
