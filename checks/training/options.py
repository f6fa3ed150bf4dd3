"""The options of --run, and what the user chose with them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from converters.options import chosen as conversion
from converters.options import group

training = group(
    click.option(
        "--windows",
        "restarted",
        is_flag=True,
        help="With --run: start again from every checkpoint, instead of one free run.",
    ),
    click.option(
        "--as-released",
        is_flag=True,
        help="With --run: weights only into an unmigrated MaxText, to see how far that goes.",
    ),
    click.option(
        "--no-migrate", is_flag=True, help="With --run: refuse an unmigrated MaxText, copy none."
    ),
    click.option("--no-scan", is_flag=True, help="With --run: MaxText's scan_layers off."),
    click.option(
        "--floor", is_flag=True, help="With --run: measure the noise floor; trains a second time."
    ),
    click.option(
        "--spec",
        "spec_words",
        multiple=True,
        metavar="FIELD=VALUE",
        help="With --run: a MuonSpec field that the checkpoint does not record.",
    ),
)


def how_words(chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of ``compare.How`` that were given on the command line.

    Raises:
      click.UsageError: words that exclude each other, or a malformed one.
    """
    if chosen["as_released"] and chosen["no_migrate"]:
        raise click.UsageError("--as-released and --no-migrate exclude each other")
    given: dict[str, Any] = {
        name: True for name in ("restarted", "as_released", "floor") if chosen[name]
    }
    given |= {"migrate": False} if chosen["no_migrate"] else {}
    given |= {"scan": False} if chosen["no_scan"] else {}
    spec = conversion({"scan": None, "spec_words": chosen["spec_words"]})
    return given | spec
