"""The options of muon-convert's commands, and what the user chose with them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])
FOLDER = click.Path(path_type=Path)


def group(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    def add(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def _json_file(_context: click.Context, _option: click.Parameter, value: str | None) -> str | None:
    """Seen before the work is done: a result whose report cannot be written is no result."""
    if value in (None, "-"):
        return value
    file = Path(str(value))
    if file.is_dir() or not file.absolute().parent.is_dir():
        what = "a folder" if file.is_dir() else f"{file.absolute().parent} is no folder"
        raise click.BadParameter(f"{value}: cannot be written: {what}")
    return value


def _a_number(_context: click.Context, _option: click.Parameter, value: float) -> float:
    if math.isnan(value):
        raise click.BadParameter("nan is no size")
    return value


json_option = click.option(
    "--json",
    "json_out",
    metavar="FILE",
    callback=_json_file,
    help="Write JSON to FILE; - is stdout.",
)
reading = group(
    click.option("--iteration", type=click.IntRange(0), metavar="N", help="Not the latest one."),
    click.option("--opaque", multiple=True, metavar="MODULE.NAME", help="Read class as inert."),
)
running = group(
    click.option("--workers", type=click.IntRange(1), default=2, show_default=True, metavar="N"),
    json_option,
)
writing = group(
    click.option("--out", type=FOLDER, metavar="DIR", help="Result; default a sibling."),
    click.option("--force", is_flag=True, help="Replace an earlier result of this command."),
)
planning = group(
    click.option("--maxtext-version", metavar="V", help="A release, or main; default newest."),
    click.option("--layout", type=click.Choice(["nnx", "linen"]), help="Default: the version's."),
    click.option("--scan/--no-scan", default=None, help="MaxText's scan_layers; default --scan."),
    click.option("--family", metavar="NAME", help="Or a .toml file; default: detected."),
    click.option("--vocab-size", type=click.IntRange(1), metavar="V", help="Rows to keep."),
    click.option("--no-optimizer", is_flag=True, help="Weights only."),
    click.option(
        "--momentum-convention",
        "momentum",
        type=click.Choice(["ema", "sum"]),
        help="Of the saved momentum, where its arguments are wrong about it.",
    ),
    click.option("--fill-missing-state", is_flag=True, help="Zeros for state that is missing."),
    click.option(
        "--spec",
        "spec_words",
        multiple=True,
        metavar="FIELD=VALUE",
        help="A MuonSpec field that the checkpoint does not record.",
    ),
)


sharding = group(
    click.option("--no-optimizer", is_flag=True, help="Weights only."),
    click.option(
        "--shard-size",
        type=click.FloatRange(0, 1 << 20, min_open=True),
        default=5.0,
        callback=_a_number,
        show_default=True,
        metavar="GIB",
        help="Of one file.",
    ),
    json_option,
)


def chosen(planning: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of Options that were given on the command line."""
    given = {name: value for name, value in planning.items() if value not in (None, False, ())}
    if planning["scan"] is not None:
        given["scan"] = planning["scan"]
    if given.pop("no_optimizer", False):
        given["optimizer"] = False
    words = given.pop("spec_words", ())
    if words:
        given["spec_overrides"] = dict(_field(word) for word in words)
    return given


def _field(word: str) -> tuple[str, Any]:
    name, equals, text = word.partition("=")
    if not equals:
        raise click.UsageError(f"--spec {word}: expected FIELD=VALUE")
    try:
        return name, json.loads(text.lower() if text in ("True", "False", "None") else text)
    except ValueError:
        return name, text
