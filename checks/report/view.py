"""A report in the pieces that the page shows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from checks.result import Divergence, Figure, Outcome, Report, Rung

from . import head, wording
from .charts import Chart, chart
from .document import reason_of
from .heat import Heat, heat, shade
from .series import join

# Points of all curves together, at most; a page that becomes too large gets fewer.
POINTS = 10_000
MOST_POINTS, LEAST_POINTS = 1_500, 12
# Figures of a rung in sight; the others are a click away.
IN_SIGHT = 12
# Powers of ten, of value over limit, that the little scale beside a figure spans.
SCALE = (-6.0, 2.0)


@dataclass(frozen=True)
class Row:
    """One figure in words; ``value`` and ``floor`` are places on the scale, in percent."""

    figure: Figure
    share: str
    shade: int
    value: float
    floor: float | None


@dataclass(frozen=True)
class RungView:
    rung: Rung
    worst: Row | None
    rows: tuple[Row, ...]
    charts: tuple[Chart, ...]
    details: tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class Limit:
    """A row of the tolerances, with every limit that came of it."""

    gate: str
    limits: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class View:
    report: Report
    outcome: Outcome
    headline: str
    summary: str
    compared: str
    divergence: Divergence | None
    tiles: tuple[tuple[str, str, str], ...]
    rungs: tuple[RungView, ...]
    heat: Heat | None
    limits: tuple[Limit, ...]


def view(report: Report, most_points: int = POINTS) -> View:
    """What the page shows, with at most that many points of all curves together."""
    outcome = wording.verdict(report)
    curves = sum(len(join(rung.curves)) for rung in report.rungs)
    most = min(MOST_POINTS, max(LEAST_POINTS, most_points // max(1, curves)))
    return View(
        report=report,
        outcome=outcome,
        headline=head.HEADLINES[outcome],
        summary=head.summary(report, outcome),
        compared=head.compared(report),
        divergence=report.divergence,
        tiles=tuple(head.tiles(report)),
        rungs=tuple(_rung(rung, most, report.spec) for rung in report.rungs),
        heat=heat(report),
        limits=_limits(report),
    )


def _rung(rung: Rung, most: int, spec: Mapping[str, Any] | None) -> RungView:
    rows = tuple(_row(figure) for figure in wording.worst_first(rung.figures))
    # The page shows the specification once, towards its end.
    details = {k: v for k, v in rung.details.items() if not (k == "spec" and v == spec)}
    return RungView(
        rung=rung,
        worst=rows[0] if rows else None,
        rows=rows,
        charts=tuple(chart(joined, most) for joined in join(rung.curves)),
        details=_details(details),
    )


def _details(details: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Single values together, then each table under its name."""
    tables = [(name, tabulate(value)) for name, value in details.items()]
    single = [(name, value) for name, value in tables if not isinstance(value, Mapping)]
    together = [("", {"columns": (), "rows": single})] if single else []
    return (*together, *((name, value) for name, value in tables if isinstance(value, Mapping)))


def _row(figure: Figure) -> Row:
    value = wording.share(figure)
    floor = None
    if figure.floor is not None and figure.limit > 0.0:
        floor = _on_scale(figure.floor / figure.limit)
    text = "NaN" if math.isnan(figure.value) else wording.part(value)
    return Row(figure, text, shade(value), _on_scale(value), floor)


def _on_scale(value: float) -> float:
    low, high = SCALE
    power = low if value <= 0.0 else high if math.isinf(value) else math.log10(value)
    return round(100.0 * (min(max(power, low), high) - low) / (high - low), 1)


def _limits(report: Report) -> tuple[Limit, ...]:
    figures = [figure for rung in report.rungs for figure in rung.figures]
    found: dict[str, dict[str, None]] = {}
    for figure in figures:
        limit = f"{wording.gated(figure)} ≤ {wording.plain(figure.limit)}"
        found.setdefault(figure.gate, {})[limit] = None
    return tuple(Limit(gate, tuple(kinds), reason_of(gate)) for gate, kinds in found.items())


def tabulate(value: Any) -> Any:
    """A value of a rung's details as ``{"columns", "rows"}`` where it is a table, else itself.

    A table is a list of mappings with the same names, or a mapping of them.
    """
    if isinstance(value, Mapping) and value and all(isinstance(v, Mapping) for v in value.values()):
        value = [{"": name, **row} for name, row in value.items()]
    if isinstance(value, Mapping):
        return {"columns": (), "rows": [(str(k), v) for k, v in value.items()]}
    if isinstance(value, Sequence) and not isinstance(value, str) and value:
        names = [tuple(row) if isinstance(row, Mapping) else None for row in value]
        if names[0] is not None and len(set(names)) == 1:
            return {"columns": names[0], "rows": [tuple(row.values()) for row in value]}
    return value
