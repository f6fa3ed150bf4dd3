"""muon-convert verify."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from converters import options

from .output import emit, reported


@click.command(short_help="Compare a conversion with its source, bit for bit.")
@click.argument("source", type=options.FOLDER, metavar="SRC")
@click.argument("converted", type=options.FOLDER, metavar="DST")
@options.reading
@options.planning
@options.running
def verify(
    source: Path,
    converted: Path,
    iteration: int | None,
    opaque: tuple[str, ...],
    workers: int,
    json_out: str | None,
    **planning: Any,
) -> None:
    """Derive every element of DST from SRC again and compare bit for bit.

    SRC is a Megatron checkpoint, DST a MaxText one. Options of the conversion are taken from DST's
    conversion.json. Exit 0 if nothing differs, 1 if anything does.
    """
    with reported():
        from converters import checking

        verdict = checking.verify(
            source,
            converted,
            options.chosen(planning),
            iteration=iteration,
            opaque=opaque,
            workers=workers,
        )
        found = vars(verdict) | {"checkpoint": str(verdict.checkpoint)}
        if emit(found, json_out):
            for row in verdict.differences:
                place = "" if row["index"] is None else str(list(row["index"]))
                click.echo(f"{row['target']}{place}: {row['what']}")
            state = f"{len(verdict.differences)} differences" if verdict.differences else "same"
            click.echo(f"{verdict.checkpoint}: {verdict.tensors} tensors compared, {state}")
        sys.exit(1 if verdict.differences else 0)
