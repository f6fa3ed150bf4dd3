"""Parameters against rungs: how much of its limit each one uses."""

from __future__ import annotations

import math
from dataclasses import dataclass

from checks.result import Figure, Report, Rung

from .wording import label, part, plain, share, short

# Upper ends of the shades, as a part of the limit; beyond the last is a failure.
SHADES = (0.0, 1e-3, 1e-2, 0.1, 0.5, 1.0)
LEGEND = ("equal", "to 1/1000", "to 1/100", "to 1/10", "to 1/2", "to the limit", "above")


@dataclass(frozen=True)
class Cell:
    """The worst figure of a parameter on a rung; ``shade`` is an index into ``LEGEND``."""

    rung: str
    text: str
    words: str
    shade: int | None


@dataclass(frozen=True)
class Heat:
    rungs: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Cell, ...]], ...]


def heat(report: Report) -> Heat | None:
    """None where no figure is of a parameter: those have paths, single matrices have names."""
    rungs = [rung for rung in report.rungs if any("/" in f.parameter for f in rung.figures)]
    names = list(dict.fromkeys(f.parameter for r in rungs for f in r.figures if "/" in f.parameter))
    if not names:
        return None
    rows = tuple((name, tuple(_cell(rung, name) for rung in rungs)) for name in names)
    return Heat(tuple(rung.name for rung in rungs), rows)


def shade(value: float) -> int:
    """Of a share of the limit."""
    return next((i for i, end in enumerate(SHADES) if value <= end), len(SHADES))


def _cell(rung: Rung, parameter: str) -> Cell:
    figures = [figure for figure in rung.figures if figure.parameter == parameter]
    if not figures:
        return Cell(rung.name, "", "", None)
    worst = max(figures, key=share)
    return Cell(rung.name, _text(worst), _words(worst), shade(share(worst)))


def _text(figure: Figure) -> str:
    return "NaN" if math.isnan(figure.value) else part(share(figure))


def _words(figure: Figure) -> str:
    return f"{label(figure)}: {short(figure.value)}, limit {plain(figure.limit)}"
