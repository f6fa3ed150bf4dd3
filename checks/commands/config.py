"""muon-check config: the command line."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from checks.commands import spec
from checks.commands.output import check_files, emit, fail

if TYPE_CHECKING:
    from checks.config.table import Report


@click.command(short_help="Which keys of a configuration would make it another run?")
@click.argument("checkpoint", type=click.Path(path_type=Path), metavar="CKPT")
@click.option(
    "--maxtext-config",
    "words",
    multiple=True,
    required=True,
    metavar="FILE|KEY=VALUE",
    help="YAML, JSON, conversion.json or single keys; may be repeated, the last one wins.",
)
@click.option(
    "--maxtext",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="The checkout whose base.yml has the defaults.",
)
@click.option("--maxtext-version", metavar="V", help="A release; default the newest one.")
@click.option("--all", "everything", is_flag=True, help="Show rows that agree, too.")
@spec.option
@click.option("--json", "json_out", metavar="FILE", help="Write JSON to FILE; - is stdout.")
def config(
    checkpoint: Path,
    words: tuple[str, ...],
    maxtext: Path | None,
    maxtext_version: str | None,
    everything: bool,
    spec_words: tuple[str, ...],
    json_out: str | None,
) -> None:
    """Compare a MaxText configuration with what the Megatron run in CKPT needs.

    Everything outside the optimizer's arithmetic: norms, rotation, activations, vocabulary, losses,
    clipping, schedule, dropout, dtypes; and the keys of the optimizer. Each row has Megatron's
    argument, the user's value and the key to set. Exit 0 if nothing differs, 1 if something does, 2
    if something cannot be read.
    """
    check_files(json_out)
    report = _compare(checkpoint, words, maxtext, maxtext_version, spec.overrides(spec_words))
    if emit(report.as_json(), json_out):
        _print(report, everything)
    sys.exit(0 if report.passed else 1)


def _compare(
    checkpoint: Path,
    words: tuple[str, ...],
    maxtext: Path | None,
    version: str | None,
    overrides: dict[str, Any],
) -> Report:
    try:
        from checks.config.given import ConfigError
        from checks.config.table import compare
        from checks.training.errors import RunError
        from converters.errors import CheckpointError
    except ModuleNotFoundError as error:
        fail(f"{error.name} is missing: install the toolkit with [jax]")
    try:
        return compare(checkpoint, words, maxtext, version, overrides)
    except (CheckpointError, ConfigError, RunError) as error:
        fail(str(error))


def _print(report: Report, everything: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("topic", "Megatron", "MaxText has", "verdict", "set", title_justify="left")
    for row in report.rows:
        if everything or row.verdict != "same":
            value = "" if row.origin == "not set" else f"={row.value}"
            has = f"{row.key}{value} ({row.origin})" if row.key else ""
            mark = row.verdict.upper() if row.found else row.verdict
            remedy = "" if row.verdict == "same" else row.remedy
            table.add_row(row.topic, row.megatron, has, mark, remedy)
    console = Console()
    # Lines of a pipe are not folded: keys stay whole for grep.
    console.print(table, soft_wrap=True) if console.is_terminal else Console(width=260).print(table)
    for note in report.notes:
        click.echo(f"note: {note}")
    found = [row for row in report.rows if row.found]
    same = sum(row.verdict == "same" for row in report.rows)
    click.echo(f"MaxText {report.maxtext}: {same} of {len(report.rows)} agree, {len(found)} do not")
