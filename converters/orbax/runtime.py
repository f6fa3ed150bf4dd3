"""JAX as this package needs it: on the CPU, alone or as one of several processes.

Nothing heavy is imported before ``start``.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from converters.errors import CheckpointError

# Of glibc's mallopt: option and value. Two heaps for all threads: with one each, what they free
# piles up unused. Chunks come from these heaps: pages mapped for each one would be cleared anew.
_MALLOPT = {
    "M_ARENA_MAX": (-8, 2),
    "M_MMAP_THRESHOLD": (-3, 32 << 20),
    "M_TRIM_THRESHOLD": (-1, 64 << 20),
}


@dataclass(frozen=True)
class Processes:
    """How many processes write one checkpoint together, and which of them this is."""

    count: int = 1
    index: int = 0
    coordinator: str = ""


ALONE = Processes()


def start(processes: Processes = ALONE) -> None:
    """Load JAX and Orbax, for the CPU; with several processes, meet the others.

    Raises:
      CheckpointError: the numbers do not fit together, or the others were not found.
    """
    if not 0 <= processes.index < processes.count:
        raise CheckpointError(
            f"--process-index {processes.index} is not below --process-count {processes.count}"
        )
    if processes.coordinator and processes.count == 1:
        raise CheckpointError("--coordinator is for several processes: give --process-count too")
    _set_heaps()
    jax = _libraries()
    jax.config.update("jax_platforms", "cpu")
    # Orbax logs every file, and each error once per thread that it passes before it is raised.
    logging.getLogger("absl").setLevel(logging.CRITICAL)
    if processes.count == 1:
        return
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


def _libraries() -> Any:
    """JAX, with Orbax beside it, out of the garbage collector's sight: they are never freed."""
    gc.disable()
    try:
        import jax
        import orbax.checkpoint

        assert orbax.checkpoint
        gc.freeze()
    finally:
        gc.enable()
    return jax


def _set_heaps() -> None:
    try:
        library = ctypes.CDLL(None)
        for option, value in _MALLOPT.values():
            library.mallopt(option, value)
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
    import jax
    from orbax.checkpoint import multihost

    if jax.process_count() > 1:
        multihost.sync_global_processes(f"muon-convert:{place}")
