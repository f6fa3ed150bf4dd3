"""Set a checkpoint's common state to another iteration, without executing or rewriting the rest."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from converters.errors import CheckpointError

from . import archives, numbers, zips
from .archives import Stored
from .numbers import Number, Real, Whole
from .run import Run


@dataclass(frozen=True)
class Position:
    """Where a run stands.

    Attributes:
      iteration: finished steps.
      samples: consumed so far, what Megatron's schedule counts.
      adam_step: Adam's count of steps.
    """

    iteration: int
    samples: int
    adam_step: int


def position_of(run: Run) -> Position:
    """Where the checkpoint's run stands; a count that it does not have is zero.

    Raises:
      CheckpointError: the optimizers disagree.
    """
    steps = {state.step for state in run.optimizers if state.step is not None}
    if len(steps) > 1:
        raise CheckpointError(f"the optimizers' steps are {sorted(steps)}: not of one run")
    return Position(run.iteration, int(run.schedule.get("num_steps", 0)), min(steps, default=0))


def moved(run: Run, iteration: int, adam_step: int | None = None) -> Position:
    """Where the run stands at another iteration of the same batch size.

    Raises:
      CheckpointError: the arguments do not say how many samples an iteration takes.
    """
    now = position_of(run)
    ahead = iteration - now.iteration
    samples = now.samples
    if ahead and samples:
        batch = run.arguments.get("global_batch_size")
        if not isinstance(batch, int) or batch < 1:
            raise CheckpointError(f"the arguments say global_batch_size={batch!r}: not a number")
        samples += ahead * batch
    step = now.adam_step + ahead if adam_step is None else adam_step
    if iteration < 0 or samples < 0 or step < 0:
        raise CheckpointError(f"iteration {iteration}: before the beginning of the run")
    return Position(iteration, samples, step)


def set_position(
    archive: bytes, place: tuple[Path, str, int], opaque: tuple[str, ...], new: Position
) -> bytes:
    """An archive of common state, or of one optimizer's, at another position.

    Args:
      archive: its bytes.
      place: file, name for messages, and first byte of the archive.
      opaque: as for reading.
      new: numbers that already are as here keep their bytes.
    """
    file, source, start = place
    opened = archives.opened(file, source, start, len(archive), opaque)
    program = numbers.without_frames(opened.program, source)
    value = numbers.locate(program, opened.names, opened.persistent_load)
    while isinstance(value, list) and len(value) == 1:
        value = value[0]
    changes: list[tuple[Number, float]] = []
    contents: dict[str, bytes] = {}
    layout = zips.slots(io.BytesIO(archive))
    for found, wanted in _counts(value, new):
        if isinstance(found, (Whole, Real)) and found != wanted:
            changes.append((found, wanted))
        elif isinstance(found, Stored) and found.read().item() != wanted:
            name = next(n for n, s in layout.items() if s.start == found.start - start)
            contents[name] = np.array(wanted, found.dtype).tobytes()
    if changes:
        name = next(name for name in layout if name.endswith("data.pkl"))
        contents[name] = numbers.replaced(program, changes)
    return zips.replaced(archive, contents) if contents else archive


def _counts(common: Any, new: Position) -> Iterator[tuple[Any, int]]:
    """Every count in a common state, with what it is to be."""
    if not isinstance(common, dict):
        return
    yield common.get("iteration"), new.iteration
    yield _of(common.get("rerun_state_machine")).get("current_iteration"), new.iteration
    yield _of(common.get("opt_param_scheduler")).get("num_steps"), new.samples
    arguments = getattr(common.get("args"), "attributes", {})
    yield arguments.get("consumed_train_samples"), new.samples
    for optimizer in _optimizers(common.get("optimizer", common)):
        yield _of(optimizer.get("state")).get("common_step"), new.adam_step
        for group in optimizer.get("param_groups", ()):
            yield _of(group).get("step"), new.adam_step


def _optimizers(value: Any) -> Iterator[Mapping[Any, Any]]:
    if isinstance(value, dict):
        if "param_groups" in value:
            yield value
        else:
            for child in value.values():
                yield from _optimizers(child)


def _of(value: Any) -> Mapping[Any, Any]:
    return value if isinstance(value, dict) else {}
