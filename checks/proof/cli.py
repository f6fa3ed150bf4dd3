"""The command line of the proof. Exit codes: 0 all passed, 1 something failed, 2 cannot run."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from checks.result import Report, Rung

    from .running import Place


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
    from .table import TITLES

    if listing:
        click.echo("\n".join(f"{name:24s} {title}" for name, title in TITLES.items()))
        return
    for name in names:
        if name not in TITLES:
            raise click.UsageError(f"no row {name!r}: --list names them")
    if releases is None or python is None:
        raise click.UsageError("--releases and --python are needed: make proof gives both")
    for path in (releases, python):
        if not path.exists():
            raise click.UsageError(f"{path}: no such file or folder")
    from .running import Place
    from .whole import report, write

    place = Place(out.absolute(), releases.absolute(), python.absolute(), _say)
    for name in names or TITLES:
        if fresh or not place.result(name).exists():
            rung = _run(name, place)
            _say(f"{name}: {rung.outcome}, {rung.seconds:.0f} s")
    found = report(place)
    _show(found, write(found, place.out), as_json)
    sys.exit(0 if found.passed else 1)


def _run(name: str, place: Place) -> Rung:
    from .running import run, run_layouts
    from .table import LAYOUTS_OF, row

    return run_layouts(row(LAYOUTS_OF), place) if name == "layouts" else run(row(name), place)


def _show(found: Report, files: tuple[Path, Path], as_json: bool) -> None:
    from rich.console import Console

    from checks.report.console import show
    from checks.report.document import as_json as document

    if as_json:
        click.echo(json.dumps(document(found)))
    else:
        show(found, Console())
    for file in files:
        _say(f"written: {file}")


def _say(line: str) -> None:
    click.echo(f"{time.strftime('%H:%M:%S')} {line}", err=True)
