"""The head of the page: the verdict in words, what was compared, and the largest numbers."""

from __future__ import annotations

import math

from checks.result import Outcome, Report

from . import wording
from .series import join, summarize

HEADLINES = {
    Outcome.PASSED: "Both sides agree",
    Outcome.FAILED: "The two sides differ",
    Outcome.NOT_RUN: "Nothing was checked",
}


def summary(report: Report, outcome: Outcome) -> str:
    missing = [rung.name for rung in report.rungs if rung.outcome is Outcome.NOT_RUN]
    left_out = f" Not run: {', '.join(missing)}." if missing else ""
    if outcome is Outcome.PASSED:
        return f"Every figure is within its limit, on every rung that was run.{left_out}"
    if outcome is Outcome.NOT_RUN:
        return f"No rung was run, so nothing is known.{left_out}"
    failed = [rung.name for rung in report.rungs if rung.outcome is Outcome.FAILED]
    return f"Failed: {', '.join(failed)}.{left_out}"


def compared(report: Report) -> str:
    """What stood against what, and how far apart it may be; empty where nothing was measured."""
    joined = [one.curve for rung in report.rungs for one in join(rung.curves)]
    if joined:
        worst = max(joined, key=lambda one: _nan_last(summarize(one).max_difference))
        steps = sum(len(one.reference) for one in joined)
        there = " there" if len(joined) > 1 else ""
        limit = "" if worst.limit is None else f"; the limit{there} is {wording.plain(worst.limit)}"
        most = summarize(worst).max_difference
        apart = f"They differ by at most {wording.short(most)}{limit}."
        return (
            f"Compared: the losses of {worst.ours_name} and {worst.reference_name} on the same "
            f"tokens, {steps} step{'' if steps == 1 else 's'}. "
            + ("A loss is not a number." if math.isnan(most) else apart)
        )
    if not any(rung.figures for rung in report.rungs):
        return ""
    return (
        "Compared: the optimizer that a migrated MaxText runs, with what each rung names. "
        "No model was trained; muon-check parity --run does that."
    )


def tiles(report: Report) -> list[tuple[str, str, str]]:
    """Name, number, remark."""
    figures = [(rung, figure) for rung in report.rungs for figure in rung.figures]
    found = [("rungs", str(len(report.rungs)), wording.tally(report).partition(": ")[2])]
    if figures:
        rung, worst = max(figures, key=lambda pair: wording.share(pair[1]))
        value = wording.part(wording.share(worst))
        number = "not a number" if math.isnan(worst.value) else f"{value} × its limit"
        found.append(("worst figure", number, f"{rung.name}: {worst.subject}"))
    curves = [(r, c, summarize(c)) for r in report.rungs for c in r.curves]
    if curves:
        rung, curve, said = max(curves, key=lambda one: _nan_last(one[2].max_difference))
        remark = f"{rung.name}: {curve.name}, {len(curve.reference)} steps"
        if curve.limit is not None:
            remark += f"; limit {wording.plain(curve.limit)}"
        if said.max_floor is not None:
            remark += f"; noise floor {wording.short(said.max_floor)}"
        number = wording.short(said.max_difference)
        found.append(("largest loss difference", number, remark))
    parameters = {figure.parameter for _, figure in figures if "/" in figure.parameter}
    remark = f"of {len(parameters)} parameters" if parameters else ""
    number = f"{len(figures)} figure{'' if len(figures) == 1 else 's'}"
    found.append(("compared", number, remark))
    return found


def _nan_last(value: float) -> float:
    return math.inf if math.isnan(value) else value
