"""muon-convert orbax2megatron."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from converters import options

from .output import print_result, reported


@click.command(short_help="MaxText back to Megatron.")
@click.argument("checkpoint", type=options.FOLDER, metavar="DIR")
@click.option("--like", type=options.FOLDER, required=True, metavar="CKPT")
@click.option("--out", type=options.FOLDER, required=True, metavar="DIR2")
@click.option("--force", is_flag=True, help="Replace an earlier result of this command.")
@options.reading
@options.planning
@options.json_option
def orbax2megatron(
    checkpoint: Path,
    like: Path,
    out: Path,
    force: bool,
    iteration: int | None,
    opaque: tuple[str, ...],
    json_out: str | None,
    **planning: Any,
) -> None:
    """Write a MaxText checkpoint DIR as a Megatron one, like CKPT.

    Names, pieces, arguments and what MaxText has no idea of are CKPT's (--iteration is of it);
    weights, optimizer state and counts are DIR's. Megatron resumes from DIR2.
    """
    with reported() as stop:
        from converters import wayback

        request = wayback.Request(
            checkpoint,
            like,
            out,
            options.chosen(planning),
            like_iteration=iteration,
            opaque=opaque,
            force=force,
            command_line=tuple(sys.argv[1:]),
        )
        print_result(wayback.convert_back(request, stop), json_out)
