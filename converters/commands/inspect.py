"""muon-convert inspect."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from converters import options

from .output import fail, write


@click.command(short_help="Format, run, optimizer and tensors of a Megatron checkpoint.")
@click.argument("checkpoint", type=click.Path(path_type=Path))
@click.option("--iteration", type=click.IntRange(0), metavar="N", help="Not the latest one.")
@options.json_option
@click.option("--opaque", multiple=True, metavar="MODULE.NAME", help="Read this class as inert.")
def inspect(
    checkpoint: Path, iteration: int | None, json_out: str | None, opaque: tuple[str, ...]
) -> None:
    """Tensors, run and MuonSpec of a Megatron CHECKPOINT, without loading a tensor.

    CHECKPOINT is iter_XXXXXXX or the folder above it. Exit 0; 1 if its optimizer state cannot be
    converted as it is; 2 if it cannot be read.
    """
    from converters.errors import CheckpointError

    try:
        from converters.megatron.inspection import inspect_checkpoint

        report = inspect_checkpoint(checkpoint, opaque, iteration)
    except CheckpointError as error:
        fail(str(error))
    except ModuleNotFoundError as error:
        fail(f"{error.name} is missing: install the toolkit with [jax] or [torch]")
    if json_out is None:
        _print(report)
    elif json_out == "-":
        click.echo(json.dumps(report, indent=2))
    else:
        write(Path(json_out), report)
    sys.exit(1 if report["problems"] else 0)


def _print(report: dict[str, Any]) -> None:
    rows = [
        (r["key"], r["state"], "x".join(map(str, r["shape"])), r["dtype"])
        for r in report["tensors"]
    ]
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(3)]
    click.echo(
        f"{report['folder']}: {report['format']}, Megatron {report['megatron'] or 'unknown'}"
    )
    for row in rows:
        name, state, shape = (text.ljust(w) for text, w in zip(row, widths, strict=False))
        click.echo(f"  {name}  {state}  {shape}  {row[3]}")
    click.echo(f"iteration {report['iteration']}, {report['bytes']} bytes of tensors")
    for title in ("layout", "model", "optimizer"):
        told = [f"{k} {v}" for k, v in report[title].items() if v is not None]
        click.echo(f"{title}: {', '.join(told)}")
    for name, value in (report["muon_spec"] or {}).items():
        click.echo(f"  {name}: {value}")
    for reason in dict.fromkeys(aside["reason"] for aside in report["set_aside"]):
        count = sum(aside["reason"] == reason for aside in report["set_aside"])
        click.echo(f"set aside: {count} entries, {reason}")
    for note in report["notes"]:
        click.echo(f"note: {note}")
    for problem in report["problems"]:
        click.echo(f"problem: {problem}")
