"""The option for what a checkpoint does not record of its optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from converters.options import chosen

option = click.option(
    "--spec",
    "spec_words",
    multiple=True,
    metavar="FIELD=VALUE",
    help="A MuonSpec field that the checkpoint does not record.",
)


def overrides(words: Sequence[str]) -> dict[str, Any]:
    """Fields with their values.

    Raises:
      click.UsageError: a malformed word.
    """
    given: dict[str, Any] = chosen({"scan": None, "spec_words": words}).get("spec_overrides", {})
    return given
