"""muon-convert: the command line. Nothing heavy is imported before a command runs."""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import click

from converters import options
from muon_fork.version import VERSION

# Ended by the user, as a shell reports it.
INTERRUPTED = 130
_STOPPING = (signal.SIGINT, signal.SIGTERM)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION, prog_name="muon-convert")
def main() -> None:
    """Carry training runs between Megatron-LM and MaxText, weights and optimizer."""


@main.command()
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
    with _reported() as stop:
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
            _print_result(report, json_out)


@main.command()
@click.argument("checkpoint", type=options.FOLDER, metavar="DIR")
@click.option("--like", type=options.FOLDER, required=True, metavar="CKPT")
@click.option("--out", type=options.FOLDER, required=True, metavar="DIR2")
@click.option("--force", is_flag=True, help="Replace an earlier result of this command.")
@options.reading
@options.planning
@click.option("--json", "json_out", metavar="FILE", help="Write JSON to FILE; - is stdout.")
def orbax2megatron(
    checkpoint: Path,
    like: Path,
    out: Path,
    force: bool,
    iteration: int | None,
    opaque: tuple[str, ...],
    json_out: str | None,
    **planning: Any,
) -> None:
    """Write a MaxText checkpoint DIR as a Megatron one, like CKPT.

    Names, pieces, arguments and what MaxText has no idea of are CKPT's (--iteration is of it);
    weights, optimizer state and counts are DIR's. Megatron resumes from DIR2.
    """
    with _reported() as stop:
        from converters import wayback

        request = wayback.Request(
            checkpoint,
            like,
            out,
            options.chosen(planning),
            like_iteration=iteration,
            opaque=opaque,
            force=force,
            command_line=tuple(sys.argv[1:]),
        )
        _print_result(wayback.convert_back(request, stop), json_out)


@main.command()
@click.argument("checkpoint", type=options.FOLDER)
@options.writing
@options.reading
@options.sharding
def megatron2safetensors(
    checkpoint: Path, iteration: int | None, opaque: tuple[str, ...], **chosen: Any
) -> None:
    """Write a Megatron CHECKPOINT as safetensors, the optimizer's tensors in files of their own."""
    with _reported() as stop:
        from converters import export

        optimizer = not chosen["no_optimizer"]
        found = export.from_megatron(
            checkpoint, iteration=iteration, opaque=opaque, optimizer=optimizer
        )
        _export(found, checkpoint, stop, **chosen)


@main.command()
@click.argument("checkpoint", type=options.FOLDER)
@options.writing
@options.sharding
def orbax2safetensors(checkpoint: Path, **chosen: Any) -> None:
    """Write a MaxText CHECKPOINT as safetensors, the optimizer's tensors in files of their own.

    CHECKPOINT is the folder of steps (its last one is taken), a step, or its items.
    """
    with _reported() as stop:
        from converters import export

        found = export.from_orbax(checkpoint, optimizer=not chosen["no_optimizer"])
        _export(found, checkpoint, stop, **chosen)


def _export(found: Any, checkpoint: Path, stop: threading.Event, **chosen: Any) -> None:
    from converters import export

    report = export.write(
        found,
        export.output_for(checkpoint, chosen["out"]),
        shard_bytes=int(chosen["shard_size"] * 2**30),
        force=chosen["force"],
        command_line=tuple(sys.argv[1:]),
        stop=stop,
    )
    if _emit(report, chosen["json_out"]):
        click.echo(report["checkpoint"])


@main.command()
@click.argument("source", type=options.FOLDER, metavar="SRC")
@click.argument("converted", type=options.FOLDER, metavar="DST")
@options.reading
@options.planning
@options.running
def verify(
    source: Path,
    converted: Path,
    iteration: int | None,
    opaque: tuple[str, ...],
    workers: int,
    json_out: str | None,
    **planning: Any,
) -> None:
    """Derive every element of DST from SRC again and compare bit for bit.

    SRC is a Megatron checkpoint, DST a MaxText one. Options of the conversion are taken from DST's
    conversion.json. Exit 0 if nothing differs, 1 if anything does.
    """
    with _reported():
        from converters import checking

        verdict = checking.verify(
            source,
            converted,
            options.chosen(planning),
            iteration=iteration,
            opaque=opaque,
            workers=workers,
        )
        found = vars(verdict) | {"checkpoint": str(verdict.checkpoint)}
        if _emit(found, json_out):
            for row in verdict.differences:
                place = "" if row["index"] is None else str(list(row["index"]))
                click.echo(f"{row['target']}{place}: {row['what']}")
            state = f"{len(verdict.differences)} differences" if verdict.differences else "same"
            click.echo(f"{verdict.checkpoint}: {verdict.tensors} tensors compared, {state}")
        sys.exit(1 if verdict.differences else 0)


@main.command()
@click.argument("checkpoint", type=click.Path(path_type=Path))
@click.option("--iteration", type=click.IntRange(0), metavar="N", help="Not the latest one.")
@click.option("--json", "json_out", metavar="FILE", help="Write JSON to FILE; - is stdout.")
@click.option("--opaque", multiple=True, metavar="MODULE.NAME", help="Read this class as inert.")
def inspect(
    checkpoint: Path, iteration: int | None, json_out: str | None, opaque: tuple[str, ...]
) -> None:
    """Tensors, run and MuonSpec of a Megatron CHECKPOINT, without loading a tensor.

    CHECKPOINT is iter_XXXXXXX or the folder above it. Exit 0; 1 if its optimizer state cannot be
    converted as it is; 2 if it cannot be read.
    """
    from converters.errors import CheckpointError

    try:
        from converters.megatron.inspection import inspect_checkpoint

        report = inspect_checkpoint(checkpoint, opaque, iteration)
    except CheckpointError as error:
        _fail(str(error))
    except ModuleNotFoundError as error:
        _fail(f"{error.name} is missing: install the toolkit with [jax] or [torch]")
    if json_out is None:
        _print(report)
    elif json_out == "-":
        click.echo(json.dumps(report, indent=2))
    else:
        _write(Path(json_out), report)
    sys.exit(1 if report["problems"] else 0)


@contextmanager
def _reported() -> Iterator[threading.Event]:
    """Turn what may go wrong into a message and an exit code; the event is set by Ctrl-C."""
    from converters.budget import Stopped
    from converters.errors import CheckpointError
    from muon_fork.spec import SpecError

    stop = threading.Event()

    def interrupt(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        click.echo("muon-convert: stopping", err=True)

    before = {number: signal.signal(number, interrupt) for number in _STOPPING}
    try:
        yield stop
    except (CheckpointError, SpecError) as error:
        _fail(str(error))
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        _fail(f"{place}{error.strerror or error}")
    except ModuleNotFoundError as error:
        _fail(f"{error.name} is missing: install the toolkit with [orbax]")
    except (Stopped, KeyboardInterrupt):
        click.echo("muon-convert: interrupted, nothing was written", err=True)
        sys.exit(INTERRUPTED)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _emit(report: Mapping[str, Any], json_out: str | None) -> bool:
    """Write JSON where it is wanted; whether text is still to be printed on stdout."""
    from converters.report import plain

    if json_out == "-":
        click.echo(json.dumps(plain(report), indent=2))
        return False
    if json_out is not None:
        _write(Path(json_out), plain(report))
    return True


def _print_result(report: Mapping[str, Any], json_out: str | None) -> None:
    for note in report["notes"]:
        click.echo(f"note: {note}", err=True)
    for title in ("dropped", "created"):
        reasons = [row["reason"] for row in report[title]]
        for reason in dict.fromkeys(reasons):
            click.echo(f"{title}: {reasons.count(reason)} entries, {reason}", err=True)
    if _emit(report, json_out):
        click.echo(report["checkpoint"])


def _print_plan(report: Mapping[str, Any], json_out: str | None) -> None:
    if not _emit(report, json_out):
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


def _fail(message: str) -> NoReturn:
    click.echo(f"muon-convert: {message}", err=True)
    sys.exit(2)


def _write(file: Path, report: dict[str, Any]) -> None:
    try:
        file.write_text(json.dumps(report, indent=2) + "\n")
    except OSError as error:
        _fail(f"{file}: cannot be written: {error.strerror}")


def _print(report: dict[str, Any]) -> None:
    rows = [
        (r["key"], r["state"], "x".join(map(str, r["shape"])), r["dtype"])
        for r in report["tensors"]
    ]
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(3)]
    click.echo(
        f"{report['folder']}: {report['format']}, Megatron {report['megatron'] or 'unknown'}"
    )
    for row in rows:
        name, state, shape = (text.ljust(w) for text, w in zip(row, widths, strict=False))
        click.echo(f"  {name}  {state}  {shape}  {row[3]}")
    click.echo(f"iteration {report['iteration']}, {report['bytes']} bytes of tensors")
    for title in ("layout", "model", "optimizer"):
        told = [f"{k} {v}" for k, v in report[title].items() if v is not None]
        click.echo(f"{title}: {', '.join(told)}")
    for name, value in (report["muon_spec"] or {}).items():
        click.echo(f"  {name}: {value}")
    for reason in dict.fromkeys(aside["reason"] for aside in report["set_aside"]):
        count = sum(aside["reason"] == reason for aside in report["set_aside"])
        click.echo(f"set aside: {count} entries, {reason}")
    for note in report["notes"]:
        click.echo(f"note: {note}")
    for problem in report["problems"]:
        click.echo(f"problem: {problem}")
