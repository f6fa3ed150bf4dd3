"""muon-convert megatron2safetensors and orbax2safetensors."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import click

from converters import options

from .output import emit, reported


@click.command(short_help="Megatron to safetensors.")
@click.argument("checkpoint", type=options.FOLDER)
@options.writing
@options.reading
@options.sharding
def megatron2safetensors(
    checkpoint: Path, iteration: int | None, opaque: tuple[str, ...], **chosen: Any
) -> None:
    """Write a Megatron CHECKPOINT as safetensors, the optimizer's tensors in files of their own."""
    with reported() as stop:
        from converters import export

        optimizer = not chosen["no_optimizer"]
        found = export.from_megatron(
            checkpoint, iteration=iteration, opaque=opaque, optimizer=optimizer
        )
        _export(found, checkpoint, stop, **chosen)


@click.command(short_help="MaxText to safetensors.")
@click.argument("checkpoint", type=options.FOLDER)
@options.writing
@options.sharding
def orbax2safetensors(checkpoint: Path, **chosen: Any) -> None:
    """Write a MaxText CHECKPOINT as safetensors, the optimizer's tensors in files of their own.

    CHECKPOINT is the folder of steps (its last one is taken), a step, or its items.
    """
    with reported() as stop:
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
    if emit(report, chosen["json_out"]):
        click.echo(report["checkpoint"])
