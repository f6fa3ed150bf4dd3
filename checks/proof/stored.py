"""A rung in a file, so that a stopped proof goes on where it was."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from checks.measure import Difference
from checks.result import Curve, Divergence, Figure, Outcome, Rung


def write(rung: Rung, file: Path) -> None:
    """Whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_suffix(".partial")
    partial.write_text(json.dumps(dataclasses.asdict(rung), default=str))
    partial.replace(file)


def read(file: Path) -> Rung:
    """What ``write`` wrote."""
    value: dict[str, Any] = json.loads(file.read_text())
    figures = [{**f, "difference": Difference(**f["difference"])} for f in value["figures"]]
    divergence = value["divergence"]
    return Rung(
        **{
            **value,
            "outcome": Outcome(value["outcome"]),
            "figures": tuple(Figure(**figure) for figure in figures),
            "divergence": None if divergence is None else Divergence(**divergence),
            "notes": tuple(value["notes"]),
            "curves": tuple(_curve(curve) for curve in value["curves"]),
        }
    )


def _curve(value: dict[str, Any]) -> Curve:
    series = ("reference", "ours", "floor")
    read: dict[str, Any] = dict(value)
    read |= {name: tuple(read[name]) for name in series if read[name] is not None}
    return Curve(**read)
