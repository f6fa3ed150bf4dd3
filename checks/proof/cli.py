"""The command line of the proof. Exit codes: 0 all passed, 1 something failed, 2 cannot run."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import click


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--releases", type=click.Path(path_type=Path), help="Unpacked MaxText releases.")
@click.option("--python", type=click.Path(path_type=Path), help="Python of MaxText's environment.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("out/proof"))
@click.option("--row", "names", multiple=True, metavar="NAME", help="Only these rows.")
@click.option("--fresh", is_flag=True, help="Run rows again whose result is there.")
@click.option("--list", "listing", is_flag=True, help="Name the rows and stop.")
@click.option("--json", "as_json", is_flag=True, help="The report on stdout as JSON.")
def main(
    releases: Path | None,
    python: Path | None,
    out: Path,
    names: tuple[str, ...],
    fresh: bool,
    listing: bool,
    as_json: bool,
) -> None:
    """Real Megatron against real MaxText, the whole table."""
    from .table import ROWS

    by_name = {row.name: row for row in ROWS}
    if listing:
        click.echo("\n".join(f"{row.name:24s} {row.title}" for row in ROWS))
        return
    for name in names:
        if name not in by_name:
            raise click.UsageError(f"no row {name!r}: --list names them")
    if releases is None or python is None:
        raise click.UsageError("--releases and --python are needed: make proof gives both")
    for path in (releases, python):
        if not path.exists():
            raise click.UsageError(f"{path}: no such file or folder")
    from .running import Place, run
    from .whole import report, write

    place = Place(out.absolute(), releases.absolute(), python.absolute(), _say)
    for row in [by_name[name] for name in names] or ROWS:
        if fresh or not place.result(row).exists():
            rung = run(row, place)
            _say(f"{row.name}: {rung.outcome}, {rung.seconds:.0f} s")
    found = report(place)
    _show(found, write(found, place.out), as_json)
    sys.exit(0 if found.passed else 1)


def _show(found: object, files: tuple[Path, Path], as_json: bool) -> None:
    from rich.console import Console

    from checks.report.console import show
    from checks.report.document import as_json as document
    from checks.result import Report

    assert isinstance(found, Report)
    if as_json:
        click.echo(json.dumps(document(found)))
    else:
        show(found, Console())
    for file in files:
        _say(f"written: {file}")


def _say(line: str) -> None:
    click.echo(f"{time.strftime('%H:%M:%S')} {line}", err=True)
