"""A report as one HTML page that needs nothing else: no network, no other file."""

from __future__ import annotations

import re
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from checks.result import Report
from muon_fork.version import VERSION

from . import wording
from .heat import LEGEND
from .schema import FORM
from .view import IN_SIGHT, POINTS, view

TEMPLATES = Path(__file__).with_name("templates")
# Bytes that a page may have, and how often its curves are drawn with half the points for it.
LARGEST = 1_000_000
HALVINGS = 8
# What the templates write numbers with.
WORDS = ("gated", "near_one", "plain", "seconds", "short", "tally", "words")


def render(report: Report) -> str:
    """The page; without JavaScript it only loses the read-out of single steps."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES, encoding="utf-8"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update({name: getattr(wording, name) for name in WORDS})
    environment.filters["whole"] = whole
    facts = {"version": VERSION, "form": FORM, "legend": LEGEND, "in_sight": IN_SIGHT}
    template, page = environment.get_template("page.html.j2"), ""
    for halving in range(HALVINGS):
        page = template.render(view=view(report, POINTS >> halving), **facts)
        if len(page.encode()) < LARGEST:
            break
    return page


def whole(text: str) -> Markup:
    """Text whose numbers (``1e-05``) and flags (``--run``) are not broken at their hyphens."""
    kept = Markup('<span class="whole">{}</span>')
    broken = re.compile(r"\d-\d|^--")
    return Markup(" ").join(
        kept.format(word) if broken.search(word) else escape(word) for word in text.split(" ")
    )
