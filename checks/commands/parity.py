"""muon-check parity: the command line."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from checks.cases import CASES
from checks.commands.output import check_files, emit, fail, write
from checks.training.options import how_words, training
from checks.traps import TRAPS
from muon_fork.presets import PRESETS, preset
from muon_fork.spec import SpecError

if TYPE_CHECKING:
    from checks.result import Report, Rung
    from checks.setting import Setting

# Under this one a released implementation can be asked: Megatron-Core's own optimizer.
_REFERENCE = "megatron"
_PRESETS = [row.name for row in PRESETS]


@click.command(short_help="The ladder of comparisons; with --run, loss by loss.")
@click.option(
    "--level",
    type=click.Choice(["quick", "full"]),
    default="quick",
    show_default=True,
    help="quick: about a minute on two cores; full: 1000 steps, every parameter on every mesh.",
)
@click.option("--case", "names", multiple=True, metavar="NAME", help="Only this rung; repeatable.")
@click.option(
    "--reference",
    type=click.Choice(_PRESETS),
    default=_REFERENCE,
    show_default=True,
    help="Without --run: what both sides must compute.",
)
@click.option(
    "--device", type=click.Choice(["cpu", "gpu", "tpu"]), default="cpu", show_default=True
)
@click.option(
    "--dtype",
    type=click.Choice(["f64", "f32", "bf16"]),
    default="f32",
    show_default=True,
    help="Without --run: of the comparison; bf16 for Newton-Schulz alone.",
)
@click.option("--trap", metavar="NAME", help="Make a known mistake on purpose: must end in exit 1.")
@click.option("--list-cases", is_flag=True, help="Show the rungs and exit.")
@click.option("--list-traps", is_flag=True, help="Show the known mistakes and exit.")
@click.option("--json", "json_out", metavar="FILE", help="Write JSON to FILE; - is stdout.")
@click.option(
    "--html", "html_out", metavar="FILE", help="Write the report as one page for a browser."
)
@click.option(
    "--run",
    "run_dir",
    type=click.Path(path_type=Path),
    help="Folder of a checkpoint, its losses and its tokens.",
)
@click.option(
    "--maxtext",
    type=click.Path(path_type=Path),
    help="For --run and --case tpu_compile: a checkout or an unpacked release. If it is not "
    "migrated, a copy is.",
)
@click.option(
    "--python",
    type=click.Path(path_type=Path),
    help="The Python that has what this MaxText imports.",
)
@click.option(
    "--steps",
    type=click.IntRange(min=1),
    help="With --run: only the first N steps after the checkpoint.",
    metavar="N",
)
@training
def parity(
    level: str,
    names: tuple[str, ...],
    reference: str,
    device: str,
    dtype: str,
    trap: str | None,
    list_cases: bool,
    list_traps: bool,
    json_out: str | None,
    html_out: str | None,
    run_dir: Path | None,
    maxtext: Path | None,
    python: Path | None,
    steps: int | None,
    **choices: Any,
) -> None:
    """Show that a migrated MaxText computes what Megatron computes, cheapest comparison first.

    Without --run: the optimizer alone, on built-in data, against float64 arithmetic and the
    released optimizers that are installed. With --run DIR: the checkpoint in DIR is converted,
    MaxText trains on the recorded tokens, and every loss is compared. A rung is one comparison.

    Exit 0 if every rung that ran is within its limits, 1 if one is not, 2 if nothing could run.
    """
    if list_cases or list_traps:
        _list(list_cases, list_traps)
        return
    _check_words(trap, run_dir, maxtext, python, steps, names)
    how = how_words(choices)
    if how and run_dir is None:
        fail("--windows, --as-released, --no-migrate, --no-scan, --floor and --spec need --run DIR")
    if run_dir is not None:
        _check_settled_by_run()
    if html_out == "-":
        fail("--html -: a page needs a file of its own")
    check_files(json_out, html_out)
    try:
        from checks.setting import Setting

        setting = Setting(preset(reference), device, dtype, level, trap, _tell, maxtext, python)
        report = _run(setting, names, run_dir, steps, how)
    except ModuleNotFoundError as error:
        fail(f"{error.name} is missing: install the toolkit with [jax]")
    _show(report, json_out, html_out)
    if all(rung.outcome == "not_run" for rung in report.rungs):
        sys.exit(2)
    sys.exit(0 if report.passed else 1)


def _tell(line: str) -> None:
    click.echo(line, err=True)


def _list(cases: bool, traps: bool) -> None:
    rows = [(c.name, ", ".join(c.levels), c.title) for c in CASES] if cases else []
    rows += [(t.name, f"{t.rung}: {t.term}", t.title) for t in TRAPS] if traps else []
    width = max(len(name) for name, _, _ in rows)
    where = max(len(place) for _, place, _ in rows)
    for name, place, title in rows:
        click.echo(f"{name:{width}}  {place:{where}}  {title}")


def _check_words(
    trap: str | None,
    run_dir: Path | None,
    maxtext: Path | None,
    python: Path | None,
    steps: int | None,
    names: tuple[str, ...],
) -> None:
    """Words that contradict each other, before anything is loaded."""
    known = [row.name for row in TRAPS]
    if trap is not None and trap not in known:
        fail(f"unknown trap {trap}; known: {', '.join(known)}")
    if run_dir is None:
        if steps is not None:
            fail("--steps belongs to --run DIR")
        if (maxtext or python) and "tpu_compile" not in names:
            fail("--maxtext and --python belong to --run DIR and --case tpu_compile")
    elif maxtext is None:
        fail("--run DIR needs --maxtext PATH: the checkout that repeats the run")
    elif names or trap:
        fail("--run DIR is a rung of its own: leave --case and --trap out")


def _check_settled_by_run() -> None:
    """What the recorded run decides may not be given beside it."""
    context = click.get_current_context()
    for name in ("dtype", "level", "reference"):
        if context.get_parameter_source(name) is not ParameterSource.DEFAULT:
            fail(f"--run DIR has the run's own {name}: leave --{name} out")


def _run(
    setting: Setting,
    names: tuple[str, ...],
    run_dir: Path | None,
    steps: int | None,
    how: Mapping[str, Any],
) -> Report:
    from checks.parity import ladder
    from checks.report.environment import DeviceError, describe, of_trainer
    from checks.sides import devices
    from checks.sides.settled import is_mistake
    from checks.training.errors import RunError

    try:
        cases = ladder.chosen(names, setting.level)
        if setting.trap and not is_mistake(setting):
            fail(f"--trap {setting.trap} changes nothing under this reference and dtype")
        # Of a run only the trainer's own Python needs the device: ours would keep it busy.
        devices.prefer(setting.device if run_dir is None else "cpu")
        if run_dir is None:
            environment = {**describe(setting.device), "dtype": setting.dtype}
            rungs = ladder.climb(cases, setting)
        else:
            rungs = (_training(run_dir, steps, setting, how),)
            environment = {**of_trainer(rungs[0].details["trained"])}
    except (DeviceError, SpecError, RunError, ladder.UnknownCase) as error:
        fail(str(error))
    if ladder.missed(rungs, setting):
        click.echo(f"muon-check: no rung that ran saw the trap {setting.trap}", err=True)
    environment["matmul precision"] = "highest"
    return ladder.report(rungs, setting, environment, _command())


def _training(run_dir: Path, steps: int | None, setting: Setting, how: Mapping[str, Any]) -> Rung:
    from checks.training.compare import How, compare
    from checks.training.folder import open_run

    if setting.maxtext is None:
        fail("--run DIR needs --maxtext PATH: the checkout that repeats the run")
    run = open_run(run_dir)
    return compare(run, setting.maxtext, setting.python, steps, setting, How(**how))


def _command() -> str:
    return shlex.join(["muon-check", *sys.argv[1:]])


def _show(report: Report, json_out: str | None, html_out: str | None) -> None:
    from rich.console import Console

    from checks.report import console, document, page

    if html_out is not None:
        write(Path(html_out), page.render(report))
    if emit(document.as_json(report), json_out):
        console.show(report, Console())
