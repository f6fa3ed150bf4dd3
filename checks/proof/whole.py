"""All rows that are done as one report."""

from __future__ import annotations

import json
from pathlib import Path

from checks.report.document import as_json
from checks.report.environment import describe
from checks.report.page import render
from checks.result import Outcome, Report, Rung

from . import stored
from .running import Place
from .table import TITLES


def report(place: Place) -> Report:
    """In the table's order; a row without a result is one that was not run."""
    rungs = []
    for name, title in TITLES.items():
        file = place.result(name)
        missing = Rung(name, title, Outcome.NOT_RUN, reason="not run yet: make proof")
        rungs.append(stored.read(file) if file.exists() else missing)
    return Report(tuple(rungs), describe("cpu"), commands=("make proof",))


def write(found: Report, out: Path) -> tuple[Path, Path]:
    """``report.json`` and ``report.html``."""
    document, page = out / "report.json", out / "report.html"
    document.write_text(json.dumps(as_json(found), indent=1) + "\n")
    page.write_text(render(found))
    return document, page
