"""muon-check replay: the command line."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from checks.commands import spec
from checks.commands.output import check_files, emit, fail
from checks.tolerances import limit as limit_of

if TYPE_CHECKING:
    from checks.replay.report import Report


@click.command(short_help="Is the step between two checkpoints the optimizer's?")
@click.argument("before", type=click.Path(path_type=Path), metavar="CKPT_A")
@click.argument("after", type=click.Path(path_type=Path), metavar="CKPT_B")
@click.option("--json", "json_out", metavar="FILE", help="Write JSON to FILE; - is stdout.")
@click.option(
    "--limit",
    type=click.FloatRange(min=0.0),
    help=f"Largest allowed |difference| of a weight; default {limit_of('replay'):g}, "
    f"{limit_of('replay_decayed_norms'):g} where norm scales decay.",
)
@click.option("--ns-eps", type=click.FloatRange(min=0.0), help="1e-15 for emerging-optimizers 0.4.")
@spec.option
def replay(
    before: Path,
    after: Path,
    json_out: str | None,
    limit: float | None,
    ns_eps: float | None,
    spec_words: tuple[str, ...],
) -> None:
    """Replay the step from CKPT_A to CKPT_B, consecutive checkpoints of one run.

    Let Megatron save two steps in a row (--save-interval 1). Each checkpoint may be in any format
    and parallel layout, and of any model family, that muon-convert reads.
    The clipped gradient is recovered from the optimizer state; the step is taken on MaxText-shaped
    arrays. Exit 0 if every weight is within the limit, 1 if not, 2 if the step cannot be replayed.
    """
    check_files(json_out)
    if limit is not None and math.isnan(limit):
        fail("--limit nan: expected a number")
    overrides = spec.overrides(spec_words)
    overrides |= {} if ns_eps is None else {"ns_eps": ns_eps}
    report = _compare(before, after, limit, overrides)
    if emit(report.as_json(), json_out):
        _print(report)
    sys.exit(0 if report.passed else 1)


def _compare(before: Path, after: Path, limit: float | None, overrides: dict[str, Any]) -> Report:
    try:
        from checks.replay.pair import ReplayError
        from checks.replay.report import compare
    except ModuleNotFoundError as error:
        fail(f"{error.name} is missing: install the toolkit with [jax]")
    try:
        return compare(before, after, limit, overrides)
    except ReplayError as error:
        fail(str(error))


def _print(report: Report) -> None:
    from rich.console import Console
    from rich.table import Table

    columns = ("parameter", "shape", "optimizer", "|difference|", "|step|", "")
    table = Table(*columns, title=f"{report.before} -> {report.after}", title_justify="left")
    for row in report.rows:
        verdict = "ok" if row.difference <= report.limit else "ABOVE"
        shape = "x".join(map(str, row.shape))
        figures = (f"{row.difference:.1e}", f"{row.step:.1e}")
        table.add_row(row.path, shape, row.optimizer, *figures, verdict)
    console = Console()
    # Lines of a pipe are not folded: paths stay whole for grep.
    console.print(table, soft_wrap=True) if console.is_terminal else Console(width=200).print(table)
    for note in report.notes:
        click.echo(f"note: {note}")
    click.echo(f"learning rate: Muon {report.muon_rate:g}, Adam {report.adam_rate:g}")
    verdict = "within" if report.passed else "ABOVE"
    click.echo(f"worst |difference| {report.worst:.2e}, {verdict} the limit {report.limit:g}")
