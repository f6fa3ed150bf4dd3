"""What an optimizer does with one parameter, in Megatron's units: one form for both sides."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Optimizer = Literal["muon", "adam", "none"]


@dataclass(frozen=True, order=True)
class Matrices:
    """``count`` matrices of ``[fan_out, fan_in]`` that Newton-Schulz sees, over all layers."""

    fan_out: int
    fan_in: int
    count: int

    def __str__(self) -> str:
        return f"{self.count} x [{self.fan_out}, {self.fan_in}]"


@dataclass(frozen=True)
class Side:
    """
    Attributes:
      optimizer: ``none`` is a buffer that no optimizer updates.
      matrices: those that hold entries of this parameter; empty for Adam.
      scales: factor on each kind of orthogonalised matrix, in the order of ``matrices``.
      weight_decay: decoupled, times the learning rate.
      rate: factor on the run's learning rate, for the weight as Megatron holds it.
    """

    optimizer: Optimizer
    matrices: tuple[Matrices, ...] = ()
    scales: tuple[float, ...] = ()
    weight_decay: float = 0.0
    rate: float = 1.0


def gathered(sizes: Iterable[tuple[int, int, int]]) -> tuple[Matrices, ...]:
    """(fan_out, fan_in, count) with equal sizes added up, in order of size."""
    counts: Counter[tuple[int, int]] = Counter()
    for fan_out, fan_in, count in sizes:
        counts[fan_out, fan_in] += count
    return tuple(Matrices(*size, count) for size, count in sorted(counts.items()))


def differences(one: Side, other: Side) -> tuple[str, ...]:
    """Names of the columns in which two sides differ.

    A buffer is never updated by its optimizer's gradient, which is zero, so only a decay could move
    it.
    """
    if "none" in (one.optimizer, other.optimizer):
        optimized = other if one.optimizer == "none" else one
        return ("decay",) if optimized.weight_decay else ()
    if one.optimizer != other.optimizer:
        return ("optimizer",)
    found = []
    if one.matrices != other.matrices:
        found.append("matrices")
    elif not _close(one.scales, other.scales):
        found.append("scale")
    if not _close((one.weight_decay,), (other.weight_decay,)):
        found.append("decay")
    if not _close((one.rate,), (other.rate,)):
        found.append("rate")
    return tuple(found)


def _close(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    # Configurations carry decimal numbers, and scales pass through float32.
    pairs = zip(one, other, strict=True) if len(one) == len(other) else None
    return pairs is not None and all(abs(a - b) <= 1e-6 * max(abs(a), abs(b)) for a, b in pairs)
