"""muon-check upstream: the command line."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from checks.commands.output import check_files, emit, fail

if TYPE_CHECKING:
    from checks.upstream.report import Report


@click.command(short_help="Is the installed optax the one that is followed?")
@click.option("--json", "json_out", metavar="FILE", help="Write JSON to FILE; - is stdout.")
def upstream(json_out: str | None) -> None:
    """Compare the installed optax's Muon with the one that the optimizer here follows.

    Names, arguments and defaults, and the updates of a few steps under every option that both
    take. Exit 0 if all agree, 1 with a list of what changed, 2 if there is no optax to compare.
    """
    check_files(json_out)
    report = _compare()
    if emit(report.as_json(), json_out):
        _print(report)
    sys.exit(0 if report.passed else 1)


def _compare() -> Report:
    try:
        import optax

        # The module, where ``optax.contrib`` may hide what the fork follows.
        from optax.contrib import _muon
    except ImportError as error:
        fail(f"optax with Muon is missing ({error}): install the toolkit with [jax]")
    from checks.upstream.report import compare

    return compare(_muon, str(optax.__version__))


def _print(report: Report) -> None:
    click.echo(f"optax {report.installed}; the fork follows {report.followed}")
    for row in report.numbers:
        where = f" ({row.leaf}, step {row.step})" if row.leaf else ""
        verdict = "DIFFERS" if row.change else "same"
        click.echo(f"  {row.case:26} worst |difference| {row.worst.max_abs:.1e}{where}: {verdict}")
    for change in report.changes:
        click.echo(f"CHANGED {change.what}: {change.where}: {change.detail}")
    if report.passed:
        click.echo(f"interface and numbers agree; every |difference| <= {report.limit:g}")
