"""What a conversion needs of this machine, before it begins."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from converters.errors import CheckpointError

# Interpreter, JAX, Orbax and chunks on their way; measured by ``python -m benchmarks.convert``.
FIXED_BYTES = 600 << 20
# Two of the largest leaf: one is built while the other is written.
COPIES = 2
# Trees of names, metadata, manifests.
_DISK_OVERHEAD = 16 << 20
_CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Estimate:
    """Bytes: of all leaves, of the largest, at most on disk, at most in memory."""

    total: int
    largest: int
    disk: int
    memory: int


def estimate(sizes: list[int]) -> Estimate:
    """From the sizes of the leaves in bytes. Compression is not counted on."""
    total, largest = sum(sizes), max(sizes, default=0)
    disk = total + total // 256 + _DISK_OVERHEAD
    return Estimate(total, largest, disk, FIXED_BYTES + COPIES * largest)


def require(needed: Estimate, place: Path) -> None:
    """Raise CheckpointError, with the numbers, unless disk and memory suffice."""
    free = free_disk(place)
    if free < needed.disk:
        raise CheckpointError(
            f"{place}: {gib(needed.disk)} needed on disk, {gib(free)} free: "
            "make room or give --out another disk"
        )
    available = free_memory()
    if available is not None and available < needed.memory:
        raise CheckpointError(
            f"{gib(needed.memory)} of memory needed, twice the largest tensor "
            f"({gib(needed.largest)}) and {gib(FIXED_BYTES)}, {gib(available)} available: "
            "use --no-scan, which makes a tensor per layer, or a larger machine"
        )


def free_disk(place: Path) -> int:
    return shutil.disk_usage(place).free


def free_memory() -> int | None:
    """What the machine, or the container, has left; None where it does not say."""
    found = [value for value in (_meminfo(), _cgroup()) if value is not None]
    return min(found, default=None)


def gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"


def _meminfo() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return None


def _cgroup() -> int | None:
    try:
        limit = (_CGROUP / "memory.max").read_text().strip()
        used = int((_CGROUP / "memory.current").read_text())
        statistics = dict(
            line.split() for line in (_CGROUP / "memory.stat").read_text().splitlines()
        )
    except (OSError, ValueError):
        return None
    if limit == "max":
        return None
    # Cached files count as used and go when they are asked to.
    return int(limit) - used + int(statistics.get("inactive_file", 0))
