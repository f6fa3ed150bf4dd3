"""muon-convert megatron2safetensors and orbax2safetensors."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from converters import commit, report
from converters.budget import Stopped
from converters.conversion import default_output
from converters.estimate import estimate, require
from converters.megatron.open import open_source
from converters.progress import progress
from converters.safetensors import Entry, write_set
from converters.source import State

WEIGHTS, OPTIMIZER = "model", "optimizer"


@dataclass(frozen=True)
class Export:
    """What is to be written.

    Attributes:
      source: for the report.
      inputs: folders that the result may not touch.
      weights, optimizer: the tensors of the two sets of files.
      set_aside: entries of the checkpoint that are no tensors of either, and why.
    """

    source: dict[str, Any]
    inputs: tuple[Path, ...]
    weights: tuple[Entry, ...]
    optimizer: tuple[Entry, ...]
    set_aside: tuple[dict[str, str], ...]


def from_megatron(
    checkpoint: Path, *, iteration: int | None, opaque: tuple[str, ...], optimizer: bool
) -> Export:
    """Names are those of ``converters.source``; of a state, with Megatron's name for it behind."""
    source = open_source(checkpoint, iteration=iteration, opaque=opaque, optimizer=optimizer)
    entries: dict[bool, list[Entry]] = {True: [], False: []}
    for key, tensor in source.tensors.items():
        is_weight = key.state is State.WEIGHT
        name = key.parameter if is_weight else f"{key.parameter}.{key.state.value}"
        origin = ", ".join(tensor.origin)
        entry = Entry(name, tensor.shape, tensor.dtype, origin, tensor.load)
        entries[is_weight].append(entry)
    return Export(
        report.source_record(source),
        (checkpoint, source.folder),
        tuple(entries[True]),
        tuple(entries[False]),
        tuple(report.set_aside_records(source.set_aside)),
    )


def from_orbax(checkpoint: Path, *, optimizer: bool) -> Export:
    """Names are MaxText's paths, joined with dots, without the first ``params``."""
    from converters.orbax import runtime

    runtime.start()
    from converters.orbax.reader import open_saved

    saved = open_saved(checkpoint)
    entries: dict[bool, list[Entry]] = {True: [], False: []}
    for path, tensor in saved.tensors.items():
        is_weight = path[0] == "params"
        name = ".".join(path[1:] if is_weight else path)
        entry = Entry(name, tensor.shape, tensor.dtype, "/".join(path), tensor.read)
        entries[is_weight].append(entry)
    return Export(
        {"folder": str(saved.folder), "format": "orbax"},
        (checkpoint, saved.folder),
        tuple(entries[True]),
        tuple(entries[False]) if optimizer else (),
        (),
    )


def write(
    export: Export,
    out: Path,
    *,
    shard_bytes: int,
    force: bool,
    command_line: Sequence[str],
    stop: threading.Event,
    quiet: bool = False,
) -> dict[str, Any]:
    """Write both sets of files and conversion.json; returns what the latter holds.

    Raises:
      CheckpointError: bad input, or too little room; nothing is left behind.
      Stopped: ``stop`` was set; nothing is left behind.
    """
    commit.check_output(out, export.inputs, force)
    entries = (*export.weights, *export.optimizer)
    need = estimate([entry.bytes for entry in entries])
    require(need, out.absolute().parent)
    rows: list[dict[str, Any]] = []
    with progress("writing", need.total, quiet) as advance, commit.growing(out) as folder:

        def done(file: str, entry: Entry, digest: str) -> None:
            rows.append(_record(entry, file, digest))
            advance(entry.bytes)
            if stop.is_set():
                raise Stopped

        for stem, part in ((WEIGHTS, export.weights), (OPTIMIZER, export.optimizer)):
            if part:
                write_set(part, folder, stem, shard_bytes, done)
        result = {
            "checkpoint": str(out.absolute().resolve()),
            "source": export.source,
            "command": list(command_line),
            "tensors": rows,
            "dropped": list(export.set_aside),
            "created": [],
            "bytes": need.total,
            "versions": report.versions(),
        }
        report.write(folder / commit.REPORT, result)
    return result


def output_for(checkpoint: Path, out: Path | None) -> Path:
    """``out``, or a sibling of the checkpoint's folder."""
    if out is not None:
        return out
    folder = checkpoint.absolute()
    if folder.name == "items":
        folder = folder.parent
    if folder.name.isdecimal():
        folder = folder.parent
    return default_output(folder, "safetensors")


def _record(entry: Entry, file: str, digest: str) -> dict[str, Any]:
    return {
        "target": entry.name,
        "file": file,
        "sources": [entry.source],
        "transform": "copy",
        "shape": list(entry.shape),
        "dtype": entry.dtype.name,
        "sha256": digest,
    }
