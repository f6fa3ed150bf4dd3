"""A command line of many commands that loads only the one that is called."""

from __future__ import annotations

import importlib

import click


class LazyGroup(click.Group):
    """Loads a command's module when it is asked for, so that ``--help`` loads nothing heavy.

    Attributes:
      modules: command to the module that holds it under the same name.
    """

    modules: dict[str, str]

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.modules)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.modules:
            return None
        module = importlib.import_module(self.modules[cmd_name])
        command: click.Command = getattr(module, cmd_name)
        return command
