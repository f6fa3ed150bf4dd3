"""muon-check record: the command line."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from checks.commands import spec
from checks.commands.output import check_files, emit, fail
from muon_fork.megatron_args import checked_overrides
from muon_fork.spec import SpecError

if TYPE_CHECKING:
    from checks.training.folder import RecordedRun

_PATH = click.Path(path_type=Path)


@click.command(short_help="Make the folder that parity --run repeats.")
@click.option("--log", "losses", type=_PATH, required=True, help="Losses of every step.")
@click.option(
    "--tokens",
    type=_PATH,
    required=True,
    multiple=True,
    help=".npy [steps, batch, sequence + 1]; once per data-parallel rank.",
)
@click.option(
    "--checkpoint",
    "checkpoints",
    type=_PATH,
    required=True,
    multiple=True,
    help="An iteration, or a folder with some; repeatable.",
)
@click.option("--floor", type=_PATH, help="Losses of the run with weights one ulp off.")
@click.option(
    "--first-step",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Step of the first batch, and of the first loss where a log numbers none.",
)
@spec.option
@click.option("--note", "notes", multiple=True, metavar="TEXT", help="For the report; repeatable.")
@click.option("--out", type=_PATH, required=True, help="The folder to make.")
@click.option("--json", "json_out", metavar="FILE", help="Write JSON to FILE; - is stdout.")
def record(
    losses: Path,
    tokens: tuple[Path, ...],
    checkpoints: tuple[Path, ...],
    floor: Path | None,
    first_step: int,
    spec_words: tuple[str, ...],
    notes: tuple[str, ...],
    out: Path,
    json_out: str | None,
) -> None:
    """Make the folder of a Megatron run that `muon-check parity --run` repeats.

    LOG is text with one number a line, JSON lines, Megatron's own log or TensorBoard events.
    Everything is checked; the material is linked or copied, never changed.

    To record while Megatron trains, add two lines to its script before pretrain():
    `from checks.record.hook import record` and `record("RUN")`.
    """
    check_files(json_out)
    try:
        from checks.record.assemble import Material, assemble
        from checks.training.errors import RunError
    except ModuleNotFoundError as error:
        fail(f"{error.name} is missing: install the toolkit with [orbax]")
    fields = spec.overrides(spec_words)
    try:
        checked_overrides(fields)
    except SpecError as error:
        fail(f"--spec: {error}")
    material = Material(losses, tokens, checkpoints, floor, first_step, notes, fields)
    try:
        run = assemble(material, out)
    except RunError as error:
        fail(str(error))
    _show(run, json_out)


def _show(run: RecordedRun, json_out: str | None) -> None:
    told = {
        "folder": str(run.folder),
        "checkpoints": list(run.checkpoints),
        "first_step": run.first_step,
        "last_step": run.end_step - 1,
        "batch": list(run.tokens.shape[1:]),
        "spec": dict(run.spec),
        "notes": list(run.notes),
    }
    if not emit(told, json_out):
        return
    starts = ", ".join(map(str, run.checkpoints))
    click.echo(f"{run.folder}: steps {run.first_step} to {run.end_step - 1}, from {starts}")
    for note in run.notes:
        click.echo(f"note: {note}")
