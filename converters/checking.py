"""muon-convert verify: is this checkpoint what that one converts to?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from converters import conversion
from converters.errors import CheckpointError
from converters.maxtext.plan import Options, plan_target
from converters.megatron.folders import TRACKER
from converters.megatron.open import open_source
from converters.orbax import runtime
from converters.progress import progress


@dataclass(frozen=True)
class Verdict:
    """What a comparison found.

    Attributes:
      checkpoint: the folder that was compared.
      tensors, bytes: how much was re-derived.
      differences: target, index of the first element or None, what; empty if all is the same.
    """

    checkpoint: Path
    tensors: int
    bytes: int
    differences: tuple[Mapping[str, Any], ...]


def verify(
    source: Path,
    converted: Path,
    chosen: Mapping[str, Any],
    *,
    iteration: int | None = None,
    opaque: tuple[str, ...] = (),
    workers: int = 2,
    quiet: bool = False,
) -> Verdict:
    """Derive every leaf from ``source`` again and compare it with ``converted`` bit for bit.

    Args:
      source: a Megatron checkpoint.
      converted: a MaxText checkpoint: items, its step, or the folder of steps.
      chosen: fields of Options; the others are those of the conversion, as its report says.

    Raises:
      CheckpointError: one of the two cannot be read.
    """
    runtime.start()
    from converters.orbax.reader import open_saved
    from converters.orbax.verification import differences

    said = conversion.recorded(converted)
    options = replace(options_of(said.get("options", {})), **chosen)
    saved = open_saved(converted)
    if iteration is None and (source / TRACKER).is_file():
        iteration = _iteration(said)
    found = open_source(source, iteration=iteration, opaque=opaque, optimizer=options.optimizer)
    plan = plan_target(found, options)
    total = sum(target.bytes for target in plan.records)
    with progress("verifying", total, quiet) as advance:
        wrong = differences(
            plan.state, saved, workers=workers, done=lambda target: advance(target.bytes)
        )
    rows = tuple({"target": d.path, "index": d.index, "what": d.what} for d in wrong)
    return Verdict(saved.folder, len(plan.records), total, rows)


def options_of(said: Mapping[str, Any]) -> Options:
    """Options as conversion.json holds them.

    Raises:
      CheckpointError: it holds others.
    """
    unknown = said.keys() - {field.name for field in fields(Options)}
    if unknown:
        raise CheckpointError(
            f"conversion.json has unknown options {sorted(unknown)}: another version wrote it"
        )
    return Options(**said)


def _iteration(said: Mapping[str, Any]) -> int | None:
    """The iteration that was converted: the source may have trained on since."""
    value = said.get("source", {}).get("iteration")
    return value if isinstance(value, int) else None
