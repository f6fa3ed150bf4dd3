"""JAX as this package needs it: on the CPU, alone or as one of several processes."""

from __future__ import annotations

import ctypes
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import jax

from converters.errors import CheckpointError

# Of glibc's mallopt.
_M_ARENA_MAX = -8


@dataclass(frozen=True)
class Processes:
    """How many processes write one checkpoint together, and which of them this is."""

    count: int = 1
    index: int = 0
    coordinator: str = ""


ALONE = Processes()


def start(processes: Processes = ALONE) -> None:
    """Keep JAX on the CPU; with several processes, meet the others at the coordinator.

    Raises:
      CheckpointError: the numbers do not fit together, or the others were not found.
    """
    _share_heaps()
    jax.config.update("jax_platforms", "cpu")  # type: ignore[no-untyped-call]
    # Orbax logs every file, and each error once per thread that it passes before it is raised.
    logging.getLogger("absl").setLevel(logging.CRITICAL)
    if processes.count == 1:
        return
    if not 0 <= processes.index < processes.count:
        raise CheckpointError(
            f"--process-index {processes.index} is not below --process-count {processes.count}"
        )
    if not processes.coordinator:
        raise CheckpointError("--process-count needs --coordinator HOST:PORT, the same everywhere")
    try:
        jax.distributed.initialize(
            coordinator_address=processes.coordinator,
            num_processes=processes.count,
            process_id=processes.index,
        )
    except (RuntimeError, ValueError) as error:
        raise CheckpointError(f"--coordinator {processes.coordinator}: {error}") from error


def _share_heaps() -> None:
    """Let threads share two heaps of glibc: one each, and what they free piles up unused."""
    try:
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 2)
    except (OSError, AttributeError):
        return  # another C library


@contextmanager
def stdout_kept_clean(processes: Processes) -> Iterator[None]:
    """Send what JAX's library for several processes prints on stdout to stderr."""
    if processes.count == 1:
        yield
        return
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def meet(place: str) -> None:
    """Wait until every process has come here; nothing to do for one alone."""
    from orbax.checkpoint import multihost

    if jax.process_count() > 1:
        multihost.sync_global_processes(f"muon-convert:{place}")
