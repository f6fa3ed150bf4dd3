"""muon-migrate: give a MaxText checkout the Muon of a Megatron run."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from codemods.errors import MigrateError, Problem

if TYPE_CHECKING:
    from codemods.reference import Reference

CLEAN, FOUND, CANNOT = 0, 1, 2

_AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
_PATH = click.argument("path", type=click.Path(path_type=Path))


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="muon-toolkit")
def cli() -> None:
    """Give a MaxText the Muon of a Megatron run, and take it back.

    PATH is a git checkout, an unpacked wheel, a site-packages directory, or the package itself.

    Exit codes: 0 clean, 1 found something, 2 cannot run (nothing was changed).
    """


@cli.command()
@_PATH
@click.option("--reference", metavar="PRESET", help="Whose Muon: a preset by name.")
@click.option(
    "--megatron-args",
    "args_file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Whose Muon: the saved arguments of a Megatron run, as JSON.",
)
@click.option(
    "--assume",
    multiple=True,
    metavar="FIELD=VALUE",
    help="What the saved arguments do not say, such as ns_eps=1e-15 (repeatable).",
)
@click.option("--check", is_flag=True, help="Write nothing; exit 1 if something would change.")
@click.option("--diff", is_flag=True, help="Write nothing; print the edits of existing files.")
@_AS_JSON
@click.option("--allow-dirty", is_flag=True, help="Also change uncommitted or half-migrated files.")
@click.option("--only", multiple=True, metavar="NAME", help="Run only this fixer (repeatable).")
@click.option("--skip", multiple=True, metavar="NAME", help="Leave this fixer out (repeatable).")
@click.option(
    "--python", metavar="PY", help="Build the optimizer with this Python, or keep nothing."
)
def apply(
    path: Path,
    reference: str | None,
    args_file: Path | None,
    assume: tuple[str, ...],
    check: bool,
    diff: bool,
    as_json: bool,
    allow_dirty: bool,
    only: tuple[str, ...],
    skip: tuple[str, ...],
    python: str | None,
) -> int:
    """Migrate PATH.

    Every choice of the optimizer becomes a key of base.yml, so one migrated checkout serves any
    reference; --reference and --megatron-args only choose the defaults. Without either a migrated
    checkout keeps its values, and a fresh one gets the preset megatron_rfc. Keys that other
    optimizers read too (adam_b1, ...) change only where the reference states them.

    gradient_clipping_threshold stays as it is for the sake of AdamW runs. When the reference clips
    (muon_clip_grad), set gradient_clipping_threshold=0 for Muon runs: both at once is an error.

    A second apply changes nothing. Outside git the tool relies on its own copies of the originals,
    which it keeps in git too.
    """
    from codemods import report
    from codemods.commit import write
    from codemods.fixers import FIXERS
    from codemods.prepare import Selection, prepare, refuse_dirty

    chosen = _reference(reference, args_file, assume)
    applied = prepare(path, chosen, Selection(only, skip), FIXERS, allow_dirty)
    is_written = not (check or diff)
    if is_written:
        if not allow_dirty:
            refuse_dirty(applied)
        write(applied, python)
    document = report.applied_document(applied, is_written)
    if diff:
        edits = "".join(report.diff(applied.plan))
        _show({**document, "diff": edits}, edits.splitlines(), as_json)
    else:
        _show(document, report.applied_lines(applied, is_written), as_json)
    return FOUND if check and applied.plan.changes else CLEAN


def _reference(
    name: str | None, args_file: Path | None, assumptions: tuple[str, ...]
) -> Reference | None:
    from codemods.reference import from_args_file, from_preset

    if name and args_file:
        raise MigrateError(Problem("--reference and --megatron-args exclude each other"))
    if assumptions and not args_file:
        raise MigrateError(Problem("--assume belongs to --megatron-args"))
    if args_file:
        return from_args_file(args_file, assumptions)
    return from_preset(name) if name else None


@cli.command()
@_PATH
@_AS_JSON
def revert(path: Path, as_json: bool) -> int:
    """Take a migration of PATH back, to the byte.

    Refused, with the names, when a file was changed after apply.
    """
    from codemods import report
    from codemods.layout import detect
    from codemods.revert import plan_revert
    from codemods.revert import revert as carry_out
    from codemods.state import examine

    layout = detect(path)
    state = examine(layout)
    changes = plan_revert(layout, state)
    left = carry_out(layout, state, changes)
    document = report.reverted_document(layout, changes, left)
    _show(document, report.reverted_lines(layout, changes, left), as_json)
    return CLEAN


@cli.command(short_help="Say how far PATH is migrated.")
@_PATH
@_AS_JSON
def status(path: Path, as_json: bool) -> int:
    """Say how far PATH is migrated; exit 1 when half-applied or changed since apply."""
    from codemods import report
    from codemods.layout import detect
    from codemods.prepare import label_of_tree
    from codemods.state import examine

    layout = detect(path)
    state = examine(layout)
    label = label_of_tree(layout, state)
    document = report.state_document(layout, state, label)
    _show(document, report.state_lines(layout, state, label), as_json)
    return FOUND if state.progress == "half-applied" or state.changed else CLEAN


@cli.command("list-fixers")
@_AS_JSON
def list_fixers(as_json: bool) -> int:
    """List the rewrites in the order in which they run."""
    from codemods import report
    from codemods.fixers import FIXERS

    rows = report.fixer_rows(FIXERS)
    lines = (f"{row['name']:28} {row['role']:20} {row['summary']}" for row in rows)
    _show({"command": "list-fixers", "fixers": rows, "problems": []}, lines, as_json)
    return CLEAN


def _show(document: dict[str, Any], lines: Iterable[str], as_json: bool) -> None:
    try:
        for line in (json.dumps(document, indent=1),) if as_json else lines:
            click.echo(line)
    except OSError as error:  # What was done is done: the exit code stays the command's.
        if not isinstance(error, BrokenPipeError):
            reason = error.strerror or error
            click.echo(f"muon-migrate: the result could not be printed: {reason}", err=True)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _complain(problems: Sequence[Problem], command: str | None, as_json: bool) -> None:
    if as_json:
        from codemods.report import problem_rows

        click.echo(json.dumps({"command": command, "problems": problem_rows(problems)}, indent=1))
    for problem in problems:
        click.echo(f"muon-migrate: {problem}", err=True)


def _stop_politely() -> None:
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:  # else nohup
            signal.signal(number, _stop)


def _stop(number: int, frame: object) -> NoReturn:
    """A polite kill goes the way of an exception, so that a half-done write is rolled back."""
    raise SystemExit(128 + number)


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point; exits with the command's code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if argv is None:
        _stop_politely()
    try:
        code = cli.main(arguments, prog_name="muon-migrate", standalone_mode=False)
    except MigrateError as error:
        command = next((a for a in arguments if a in cli.commands), None)
        _complain(error.problems, command, "--json" in arguments)
        code = CANNOT
    except click.ClickException as error:
        error.show()
        code = CANNOT
    except OSError as error:
        where = str(error.filename) if error.filename else None
        problem = Problem(error.strerror or str(error), where)
        _complain([problem], None, "--json" in arguments)
        code = CANNOT
    except (click.Abort, KeyboardInterrupt):
        code = 128 + signal.SIGINT
    sys.exit(code)


if __name__ == "__main__":
    main()
