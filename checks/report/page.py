"""A report as one HTML page that needs nothing else: no network, no other file."""

from __future__ import annotations

from html import escape

from checks.result import Report

from .wording import tally


def render(report: Report) -> str:
    return f"<!doctype html><title>{escape(tally(report))}</title>\n"
