"""muon-convert megatron2orbax: open, plan, estimate, stream, verify, publish."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from converters import commit, report
from converters.ahead import reading_ahead
from converters.budget import Stopped
from converters.errors import CheckpointError
from converters.estimate import Estimate, estimate, require
from converters.maxtext.plan import Options, Plan, plan_target
from converters.megatron.open import open_source
from converters.orbax import runtime
from converters.progress import progress
from converters.source import Source
from converters.target import TargetTensor

ITEMS = "items"


@dataclass(frozen=True)
class Request:
    """What the user asked for.

    Attributes:
      checkpoint: iter_XXXXXXX, or the folder above it.
      out: folder of the result; None is a sibling with ``-orbax`` behind its name.
      options: of the plan.
      iteration: None is the latest.
      opaque: classes in the checkpoint to read as inert values.
      workers: threads.
      force: replace an earlier result.
      processes: that write this result together.
      command_line: for the report.
      quiet: no progress.
    """

    checkpoint: Path
    out: Path | None
    options: Options
    iteration: int | None = None
    opaque: tuple[str, ...] = ()
    workers: int = 2
    force: bool = False
    processes: runtime.Processes = runtime.ALONE
    command_line: tuple[str, ...] = ()
    quiet: bool = False

    @property
    def target(self) -> Path:
        return self.out or default_output(self.checkpoint, "orbax")


def default_output(checkpoint: Path, suffix: str) -> Path:
    """A sibling of the folder that holds the iterations."""
    folder = checkpoint.absolute()
    if folder.name.startswith("iter_") or folder.name == "release":
        folder = folder.parent
    return folder.with_name(f"{folder.name}-{suffix}")


def prepare(request: Request) -> tuple[Source, Plan, Estimate]:
    """Everything but the bytes.

    Raises:
      CheckpointError: the checkpoint cannot be converted, or the result not be written.
    """
    source = open_source(
        request.checkpoint,
        iteration=request.iteration,
        opaque=request.opaque,
        optimizer=request.options.optimizer,
    )
    commit.check_output(request.target, (request.checkpoint, source.folder), request.force)
    plan = plan_target(source, request.options)
    return source, plan, estimate([target.bytes for target in plan.records])


def describe(request: Request, source: Source, plan: Plan, need: Estimate) -> dict[str, Any]:
    """The report of a conversion that was not carried out: no hashes."""
    return _report(request, source, plan, need, {})


def convert(request: Request, stop: threading.Event) -> dict[str, Any]:
    """Convert, and return the report that lies beside the result as conversion.json.

    Raises:
      CheckpointError: bad input, or disk or memory too small; nothing is left behind.
      Stopped: ``stop`` was set; nothing is left behind.
    """
    source, plan, need = prepare(request)
    require(need, request.target.absolute().parent)
    with runtime.stdout_kept_clean(request.processes):
        with reading_ahead(source, plan.records):
            runtime.start(request.processes)
        if request.processes.index:
            folder = commit.hidden(request.target.absolute().resolve())
            _write(request, plan, need, folder, stop)
            result = {}
        else:
            with commit.growing(request.target) as folder:
                digests = _write(request, plan, need, folder, stop)
                if stop.is_set():
                    raise Stopped
                result = _report(request, source, plan, need, digests)
                report.write(folder / commit.REPORT, result)
        runtime.meet("published")
    return result


def _write(
    request: Request, plan: Plan, need: Estimate, folder: Path, stop: threading.Event
) -> dict[tuple[str, ...], str]:
    from converters.orbax.writer import write_state

    runtime.meet("folder")
    digests: dict[tuple[str, ...], str] = {}
    total = need.total // request.processes.count
    with progress("converting", total, request.quiet) as advance:

        def done(target: TargetTensor, digest: str) -> None:
            digests[target.path] = digest
            advance(target.bytes)

        write_state(plan.state, folder, workers=request.workers, done=done, stop=stop)
    return _gather(request.processes, folder, digests)


def _gather(
    processes: runtime.Processes, folder: Path, digests: Mapping[tuple[str, ...], str]
) -> dict[tuple[str, ...], str]:
    """The hashes of every process, on the first."""
    if processes.count == 1:
        return dict(digests)
    notes = folder / "sha256"
    notes.mkdir(exist_ok=True)
    (notes / str(processes.index)).write_text(json.dumps([[*p, d] for p, d in digests.items()]))
    runtime.meet("hashes")
    found: dict[tuple[str, ...], str] = {}
    if processes.index == 0:
        for index in range(processes.count):
            rows = json.loads((notes / str(index)).read_text())
            found |= {tuple(row[:-1]): row[-1] for row in rows}
        shutil.rmtree(notes)
    return found


def _report(
    request: Request,
    source: Source,
    plan: Plan,
    need: Estimate,
    digests: Mapping[tuple[str, ...], str],
) -> dict[str, Any]:
    place = request.target.absolute().resolve() / str(plan.state.step - 1) / ITEMS
    config = {**plan.maxtext_config, plan.load_key: str(place)}
    return {
        "checkpoint": str(place),
        "source": report.source_record(source),
        "command": list(request.command_line),
        "maxtext_config": config,
        "maxtext_command": list(replace(plan, maxtext_config=config).command),
        "spec": report.spec_record(plan.spec),
        "options": vars(request.options),
        "maxtext_version": plan.version.name,
        "layout": plan.layout,
        "family": plan.family,
        "step": plan.state.step,
        "momentum_factor": plan.momentum_factor,
        "tensors": report.tensor_records(plan.state, digests),
        "dropped": report.set_aside_records(plan.dropped),
        "created": report.set_aside_records(plan.created),
        "notes": list(plan.notes),
        "bytes": need.total,
        "estimate": vars(need),
        "versions": report.versions(),
    }


def recorded(path: Path) -> Mapping[str, Any]:
    """The report of the conversion that made the checkpoint at ``path``; empty if there is none.

    Raises:
      CheckpointError: it is damaged.
    """
    for folder in (path.absolute(), *path.absolute().parents[:2]):
        file = folder / commit.REPORT
        if file.is_file():
            try:
                found = json.loads(file.read_text())
            except ValueError as error:
                raise CheckpointError(f"{file}: not JSON: {error}") from error
            if not isinstance(found, dict) or not isinstance(found.get("options"), dict):
                raise CheckpointError(f"{file}: not a report of muon-convert")
            return found
    return {}
