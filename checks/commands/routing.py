"""muon-check routing: the command line."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from checks.commands import spec
from checks.commands.output import check_files, emit, fail

if TYPE_CHECKING:
    from checks.routing.side import Side
    from checks.routing.table import Report, Row


@click.command(short_help="Each parameter's optimizer, matrices, scale and decay.")
@click.argument("checkpoint", type=click.Path(path_type=Path), metavar="CKPT")
@click.option(
    "--maxtext",
    type=click.Path(path_type=Path),
    required=True,
    metavar="PATH",
    help="A checkout or an unpacked release, migrated or not.",
)
@click.option(
    "--python",
    type=click.Path(path_type=Path),
    metavar="PY",
    help="The Python that runs this MaxText; default: the checkout's own, or this one.",
)
@click.option(
    "--model-config",
    "words",
    multiple=True,
    metavar="KEY=VALUE",
    help="Wins over what the conversion sets (scan_layers=false).",
)
@spec.option
@click.option("--json", "json_out", metavar="FILE", help="Write JSON to FILE; - is stdout.")
def routing(
    checkpoint: Path,
    maxtext: Path,
    python: Path | None,
    words: tuple[str, ...],
    spec_words: tuple[str, ...],
    json_out: str | None,
) -> None:
    """Show per parameter what Megatron did in CKPT and what MaxText at PATH would do.

    Muon or Adam, the matrices that Newton-Schulz sees, their scale, the weight decay and the factor
    on the learning rate. MaxText is asked in its own Python; nothing is trained. Exit 0 if both
    agree everywhere, 1 if not, 2 if one of them cannot be read or run.
    """
    check_files(json_out)
    report = _compare(checkpoint, maxtext, python, _given(words), spec.overrides(spec_words))
    if emit(report.as_json(), json_out):
        _print(report)
    sys.exit(0 if report.passed else 1)


def _given(words: tuple[str, ...]) -> dict[str, str]:
    given = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key:
            fail(f"--model-config {word}: expected KEY=VALUE")
        given[key] = value
    return given


def _compare(
    checkpoint: Path,
    maxtext: Path,
    python: Path | None,
    given: dict[str, str],
    overrides: dict[str, Any],
) -> Report:
    try:
        from checks.routing.maxtext import RoutingError
        from checks.routing.table import compare
        from checks.training.errors import RunError
        from converters.errors import CheckpointError
    except ModuleNotFoundError as error:
        fail(f"{error.name} is missing: install the toolkit with [jax]")
    try:
        return compare(checkpoint, maxtext, python, given, overrides)
    except (CheckpointError, RunError, RoutingError) as error:
        fail(str(error))


def _print(report: Report) -> None:
    from rich.console import Console
    from rich.table import Table

    columns = ("parameter", "of Megatron's", "optimizer", "matrices", "scale", "decay", "rate", "")
    table = Table(*columns, title="Megatron, or Megatron / MaxText", title_justify="left")
    for row in report.rows:
        cells = _cells(row)
        marks = "DIFFERS: " + ", ".join(row.differences) if row.differences else "same"
        table.add_row(row.path, "\n".join(row.parameters), *cells, marks)
    console = Console()
    # Lines of a pipe are not folded: paths stay whole for grep.
    console.print(table, soft_wrap=True) if console.is_terminal else Console(width=260).print(table)
    for note in report.notes:
        click.echo(f"note: {note}")
    click.echo(f"MaxText {report.version}, {report.status}, optimizer {report.optimizer}")
    different = sum(bool(row.differences) for row in report.rows)
    click.echo(f"{different} of {len(report.rows)} parameters differ")


def _cells(row: Row) -> tuple[str, ...]:
    own, other = _words(row.megatron), _words(row.maxtext)
    return tuple(a if a == b else f"{a} / {b}" for a, b in zip(own, other, strict=True))


def _words(side: Side | None) -> tuple[str, ...]:
    if side is None:
        return ("absent", "", "", "", "")
    if side.optimizer == "none":
        return ("none", "", "", "", "")
    return (
        side.optimizer,
        ", ".join(map(str, side.matrices)),
        ", ".join(f"{scale:.6g}" for scale in side.scales),
        f"{side.weight_decay:g}",
        f"{side.rate:.6g}",
    )
