"""A report in the pieces that the page shows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from checks.result import Divergence, Figure, Outcome, Report, Rung

from . import wording
from .charts import Chart, chart
from .document import reason_of
from .heat import Heat, heat, shade
from .series import join, summarize

# Points of all curves together, at most; a page that becomes too large gets fewer.
POINTS = 10_000
MOST_POINTS, LEAST_POINTS = 1_500, 12
# Figures of a rung in sight; the others are a click away.
IN_SIGHT = 12
# Powers of ten, of value over limit, that the little scale beside a figure spans.
SCALE = (-6.0, 2.0)

HEADLINES = {
    Outcome.PASSED: "Both sides agree",
    Outcome.FAILED: "The two sides differ",
    Outcome.NOT_RUN: "Nothing was checked",
}


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
        headline=HEADLINES[outcome],
        summary=_summary(report, outcome),
        compared=_compared(report),
        divergence=report.divergence,
        tiles=tuple(_tiles(report)),
        rungs=tuple(_rung(rung, most, report.spec) for rung in report.rungs),
        heat=heat(report),
        limits=_limits(report),
    )


def _summary(report: Report, outcome: Outcome) -> str:
    missing = [rung.name for rung in report.rungs if rung.outcome is Outcome.NOT_RUN]
    left_out = f" Not run: {', '.join(missing)}." if missing else ""
    if outcome is Outcome.PASSED:
        return f"Every figure is within its limit, on every rung that was run.{left_out}"
    if outcome is Outcome.NOT_RUN:
        return f"No rung was run, so nothing is known.{left_out}"
    failed = [rung.name for rung in report.rungs if rung.outcome is Outcome.FAILED]
    return f"Failed: {', '.join(failed)}.{left_out}"


def _compared(report: Report) -> str:
    """What stood against what, and how far apart it may be; empty where nothing was measured."""
    joined = [one.curve for rung in report.rungs for one in join(rung.curves)]
    if joined:
        worst = max(joined, key=lambda one: _nan_last(summarize(one).max_difference))
        steps = sum(len(one.reference) for one in joined)
        there = " there" if len(joined) > 1 else ""
        limit = "" if worst.limit is None else f"; the limit{there} is {wording.plain(worst.limit)}"
        return (
            f"Compared: the losses of {worst.ours_name} and {worst.reference_name} on the same "
            f"tokens, {steps} step{'' if steps == 1 else 's'}. They differ by at most "
            f"{wording.short(summarize(worst).max_difference)}{limit}."
        )
    if not any(rung.figures for rung in report.rungs):
        return ""
    return (
        "Compared: the optimizer that a migrated MaxText runs, with what each rung names. "
        "No model was trained; muon-check parity --run does that."
    )


def _tiles(report: Report) -> list[tuple[str, str, str]]:
    """Name, number, remark."""
    figures = [(rung, figure) for rung in report.rungs for figure in rung.figures]
    tiles = [("rungs", str(len(report.rungs)), wording.tally(report).partition(": ")[2])]
    if figures:
        rung, worst = max(figures, key=lambda pair: wording.share(pair[1]))
        value = wording.part(wording.share(worst))
        number = "not a number" if math.isnan(worst.value) else f"{value} × its limit"
        tiles.append(("worst figure", number, f"{rung.name}: {worst.subject}"))
    curves = [(r, c, summarize(c)) for r in report.rungs for c in r.curves]
    if curves:
        rung, curve, summary = max(curves, key=lambda one: _nan_last(one[2].max_difference))
        remark = f"{rung.name}: {curve.name}, {len(curve.reference)} steps"
        if curve.limit is not None:
            remark += f"; limit {wording.plain(curve.limit)}"
        if summary.max_floor is not None:
            remark += f"; noise floor {wording.short(summary.max_floor)}"
        number = wording.short(summary.max_difference)
        tiles.append(("largest loss difference", number, remark))
    parameters = {figure.parameter for _, figure in figures if "/" in figure.parameter}
    remark = f"of {len(parameters)} parameters" if parameters else ""
    number = f"{len(figures)} figure{'' if len(figures) == 1 else 's'}"
    tiles.append(("compared", number, remark))
    return tiles


def _nan_last(value: float) -> float:
    return math.inf if math.isnan(value) else value


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
