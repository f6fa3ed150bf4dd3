"""muon-check: the command line. Nothing heavy is imported before a command runs."""

from __future__ import annotations

import importlib

import click

from muon_fork.version import VERSION

# Command to the module that holds it under the same name; loaded when it is called or described.
COMMANDS = {
    "parity": "checks.parity.cli",
    "replay": "checks.replay.cli",
    "routing": "checks.routing.cli",
    "config": "checks.config.cli",
    "record": "checks.record.cli",
    "upstream": "checks.upstream.cli",
}


class Commands(click.Group):
    """Loads a command's module when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(COMMANDS[cmd_name]), cmd_name)
        return command


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION, prog_name="muon-check")
def main() -> None:
    """Compare what the optimizer computes with what Megatron computed."""
