"""muon-convert megatron2orbax."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from converters import options

from .output import emit, print_result, reported


@click.command(short_help="Megatron to MaxText, weights and optimizer.")
@click.argument("checkpoint", type=options.FOLDER)
@options.writing
@options.reading
@options.planning
@click.option("--dry-run", is_flag=True, help="Print the plan; write nothing.")
@click.option("--process-count", type=click.IntRange(1), default=1, metavar="N")
@click.option("--process-index", type=click.IntRange(0), default=0, metavar="I")
@click.option("--coordinator", default="", metavar="HOST:PORT", help="Of process 0.")
@options.running
def megatron2orbax(
    checkpoint: Path,
    out: Path | None,
    force: bool,
    iteration: int | None,
    opaque: tuple[str, ...],
    dry_run: bool,
    process_count: int,
    process_index: int,
    coordinator: str,
    workers: int,
    json_out: str | None,
    **planning: Any,
) -> None:
    """Make of a Megatron CHECKPOINT one from which MaxText goes on.

    CHECKPOINT is iter_XXXXXXX or the folder above it. The result, with conversion.json beside it,
    is a sibling ending in -orbax; its path is printed. To share the work among machines, start
    the same command on each with --process-count, --process-index and --coordinator.
    """
    with reported() as stop:
        from converters import conversion
        from converters.maxtext.plan import Options
        from converters.orbax.runtime import Processes

        request = conversion.Request(
            checkpoint,
            out,
            Options(**options.chosen(planning)),
            iteration=iteration,
            opaque=opaque,
            workers=workers,
            force=force,
            processes=Processes(process_count, process_index, coordinator),
            command_line=tuple(sys.argv[1:]),
        )
        if dry_run:
            _print_plan(conversion.describe(request, *conversion.prepare(request)), json_out)
            return
        report = conversion.convert(request, stop)
        if report:
            print_result(report, json_out)


def _print_plan(report: Mapping[str, Any], json_out: str | None) -> None:
    if not emit(report, json_out):
        return
    for row in report["tensors"]:
        shape = "x".join(map(str, row["shape"])) or "scalar"
        click.echo(f"{row['target']}  {shape}  {row['dtype']}  {row['transform']}")
        for source in row["sources"]:
            click.echo(f"    {source}")
    for title in ("dropped", "created"):
        for row in report[title]:
            click.echo(f"{title}: {row['name']}: {row['reason']}")
    for note in report["notes"]:
        click.echo(f"note: {note}")
    need = report["estimate"]
    click.echo(
        f"{report['checkpoint']}: {len(report['tensors'])} tensors, {need['total']} bytes; "
        f"at most {need['disk']} on disk and {need['memory']} in memory"
    )
