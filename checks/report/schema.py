"""The form of the JSON document: its version, and where its JSON Schema lies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

# Raised with every change that a reader of older documents would trip over; a new optional
# field keeps it.
FORM = "muon-check-report/1"
FILE = Path(__file__).with_name("report.schema.json")


def schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of what ``document.as_json`` returns."""
    loaded: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return loaded
