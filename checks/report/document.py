"""A report as a JSON document of a fixed form (``report.schema.json``)."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from checks.result import Curve, Divergence, Figure, Outcome, Report, Rung
from checks.tolerances import TOLERANCES
from muon_fork.version import VERSION

from .schema import FORM
from .series import summarize


def as_json(report: Report) -> dict[str, Any]:
    """Plain JSON values. Numbers that JSON lacks are the words NaN, Infinity and -Infinity."""
    counts = Counter(rung.outcome for rung in report.rungs)
    document = {
        "form": FORM,
        "toolkit": VERSION,
        "passed": report.passed,
        "counts": {outcome.value: counts[outcome] for outcome in Outcome},
        "divergence": _divergence(report.divergence),
        "rungs": [_rung(rung) for rung in report.rungs],
        "environment": dict(report.environment),
        "spec": None if report.spec is None else dict(report.spec),
        "commands": list(report.commands),
    }
    plain: dict[str, Any] = _plain(document)
    return plain


def reason_of(gate: str) -> str:
    """Why that row of the tolerances has its limit; "" where there is no such row."""
    return next((row.reason for row in TOLERANCES if row.name == gate), "")


def _rung(rung: Rung) -> dict[str, Any]:
    return {
        "name": rung.name,
        "title": rung.title,
        "outcome": rung.outcome.value,
        "reason": rung.reason,
        "seconds": rung.seconds,
        "divergence": _divergence(rung.divergence),
        "figures": [_figure(figure) for figure in rung.figures],
        "curves": [_curve(curve) for curve in rung.curves],
        "notes": list(rung.notes),
        "details": dict(rung.details),
    }


def _figure(figure: Figure) -> dict[str, Any]:
    fields = dataclasses.asdict(figure)
    difference = fields.pop("difference")
    verdict = {"value": figure.value, "passed": figure.passed, "reason": reason_of(figure.gate)}
    return {**fields, **difference, **verdict}


def _curve(curve: Curve) -> dict[str, Any]:
    return dataclasses.asdict(curve) | dataclasses.asdict(summarize(curve))


def _divergence(divergence: Divergence | None) -> dict[str, Any] | None:
    return None if divergence is None else dataclasses.asdict(divergence)


def _plain(value: Any) -> Any:
    """The same in JSON's own types; NumPy scalars become Python's, what has no type its text."""
    if value is None or isinstance(value, (bool, str)):
        return str(value) if isinstance(value, str) else value
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value if isinstance(value, (int, float)) else str(value)
