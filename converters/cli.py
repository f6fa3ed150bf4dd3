"""muon-convert: the command line. Nothing heavy is imported before a command runs."""

from __future__ import annotations

import click

from converters.lazy_group import LazyGroup
from muon_fork.version import VERSION

# Command to the module that holds it under the same name; loaded when it is called or described.
COMMANDS = {
    "inspect": "converters.commands.inspect",
    "megatron2orbax": "converters.commands.to_orbax",
    "megatron2safetensors": "converters.commands.to_safetensors",
    "orbax2megatron": "converters.commands.to_megatron",
    "orbax2safetensors": "converters.commands.to_safetensors",
    "verify": "converters.commands.verify",
}


class Commands(LazyGroup):
    modules = COMMANDS


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION, prog_name="muon-convert")
def main() -> None:
    """Carry training runs between Megatron-LM and MaxText, weights and optimizer.

    A result is complete or not there; conversion.json beside it says how to go on.

    Exit codes: 0 clean, 1 found something, 2 cannot run.
    """
