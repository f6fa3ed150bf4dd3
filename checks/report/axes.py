"""Axes of a chart: which values are worth a tick, and where they lie, in percent."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Tick:
    """``at``: percent of the axis from its low end."""

    at: float
    text: str


@dataclass(frozen=True)
class Axis:
    """From ``low`` to ``high``, linear or in powers of ten."""

    low: float
    high: float
    log: bool = False

    def place(self, value: float) -> float | None:
        """0 at the low end, 1 at the high end, held there beyond them; None for a NaN."""
        if math.isnan(value):
            return None
        if self.log:
            if value <= self.low:
                return 0.0
            low, high, at = (math.log10(x) for x in (self.low, self.high, min(value, self.high)))
        else:
            low, high, at = self.low, self.high, value
        return min(1.0, max(0.0, (at - low) / (high - low)))

    def ticks(self, about: int = 5) -> list[Tick]:
        values = decades(self) if self.log else rounds(self, about)
        return [Tick(100.0 * (self.place(v) or 0.0), self._text(v)) for v in values]

    def _text(self, value: float) -> str:
        return f"{value:.0e}" if self.log else f"{value:.10g}"


def linear(values: Sequence[float]) -> Axis:
    """Around the finite ones among ``values``."""
    finite = [v for v in values if math.isfinite(v)]
    low, high = min(finite, default=0.0), max(finite, default=1.0)
    margin = 0.04 * (high - low) or 0.5
    return Axis(low - margin, high + margin)


def logarithmic(values: Sequence[float], most_decades: int = 9) -> Axis:
    """Whole decades around the positive finite ones; the lowest hundredth may be cut off."""
    positive = sorted(v for v in values if v > 0.0 and math.isfinite(v))
    lowest, highest = (positive[len(positive) // 100], positive[-1]) if positive else (0.1, 1.0)
    bottom, top = math.floor(math.log10(lowest)), math.ceil(math.log10(highest))
    bottom = max(bottom, top - most_decades)
    return Axis(10.0 ** min(bottom, top - 1), 10.0**top, log=True)


def decades(axis: Axis, most: int = 7) -> list[float]:
    low, high = round(math.log10(axis.low)), round(math.log10(axis.high))
    stride = math.ceil((high - low + 1) / most)
    return [10.0**power for power in range(high, low - 1, -stride)]


def rounds(axis: Axis, about: int) -> list[float]:
    """At most ``about`` multiples, or one more, of 1, 2 or 5 times a power of ten."""
    span = axis.high - axis.low
    unit = 10.0 ** math.floor(math.log10(span / about))
    stride = next(unit * k for k in (1, 2, 5, 10) if span / (unit * k) <= about)
    first, last = math.ceil(axis.low / stride), math.floor(axis.high / stride)
    return [round(stride * k, 12) for k in range(first, last + 1)]
