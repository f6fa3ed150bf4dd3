"""A report on a terminal, or in a pipe, where lines stay whole for grep."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from checks.result import Curve, Figure, Outcome, Report, Rung

from .series import summarize
from .wording import (
    gated,
    label,
    near_one,
    part,
    plain,
    seconds,
    share,
    short,
    tally,
    words,
    worst_first,
)
from .wording import verdict as verdict_of

PIPE_WIDTH = 200
# What the table needs beside a readable name of the figure; narrower terminals get blocks.
TABLE_WIDTH = 150
# Figures above their limit that a rung lists; the JSON and the page have all of them.
SHOWN = 5
STYLES = {Outcome.PASSED: "bold green", Outcome.FAILED: "bold red", Outcome.NOT_RUN: "yellow"}
COLUMNS = ("max abs", "rel L2", "RMS ratio", "cosine", "floor", "limit", "of limit")


def show(report: Report, console: Console) -> None:
    """Environment, ladder, curves, first divergence and, last, the verdict."""
    _print(console, ", ".join(f"{key} {value}" for key, value in report.environment.items()))
    if console.is_terminal and console.width < TABLE_WIDTH:
        _show_blocks(report, console)
    else:
        _show_table(report, console)
    for line in (*_remarks(report), *_verdict(report)):
        _print(console, line)


def _print(console: Console, line: str) -> None:
    console.print(line, highlight=False, soft_wrap=not console.is_terminal)


def _show_table(report: Report, console: Console) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("rung", "outcome"):
        table.add_column(name, no_wrap=True)
    table.add_column("the worst figure", no_wrap=not console.is_terminal, overflow="fold")
    for name in (*COLUMNS, "time"):
        table.add_column(name, justify="right", no_wrap=True)
    for rung in report.rungs:
        time = seconds(rung.seconds) if rung.seconds else ""
        rows = list(_rows(rung)) or [(escape(rung.reason or rung.title), *[""] * len(COLUMNS))]
        table.add_row(rung.name, _outcome(rung.outcome), *rows[0], time)
        for row in rows[1:]:
            table.add_row("", "", *row, "")
    if not console.is_terminal:
        wide = console.options.update(width=10 * PIPE_WIDTH)
        console.width = max(PIPE_WIDTH, console.measure(table, options=wide).maximum)
    console.print(table)


def _show_blocks(report: Report, console: Console) -> None:
    for rung in report.rungs:
        time = f"  {seconds(rung.seconds)}" if rung.seconds else ""
        _print(console, f"[bold]{rung.name}[/]  {_outcome(rung.outcome)}{time}")
        for name, *values in _rows(rung):
            _print(console, f"  {name}")
            pairs = zip(COLUMNS, values, strict=True)
            shown = [f"[dim]{key}[/] {value}" for key, value in pairs if value]
            for line in (shown[:4], shown[4:]):
                if line:
                    _print(console, "    " + "  ".join(line))
        if not rung.figures:
            _print(console, f"  {escape(rung.reason or rung.title)}")


def _rows(rung: Rung) -> Iterator[tuple[str, ...]]:
    """Of the worst figure, and of further ones above their limits."""
    ordered = worst_first(rung.figures)
    failed = sum(not figure.passed for figure in ordered)
    for figure in ordered[: max(1, min(failed, SHOWN))]:
        yield (escape(label(figure)), *_values(figure))
    if failed > SHOWN:
        yield (f"and {failed - SHOWN} more above their limits", *[""] * len(COLUMNS))


def _values(figure: Figure) -> tuple[str, ...]:
    """In the order of ``COLUMNS``."""
    difference = figure.difference
    value = part(share(figure))
    return (
        short(difference.max_abs),
        short(difference.relative_l2),
        near_one(difference.rms_ratio),
        near_one(difference.cosine),
        short(figure.floor),
        f"{plain(figure.limit)} {gated(figure)}",
        value if figure.passed else f"[bold red]{value}[/]",
    )


def _remarks(report: Report) -> Iterator[str]:
    for rung in report.rungs:
        if rung.reason and rung.figures:
            yield f"{rung.name}: {escape(rung.reason)}"
        for curve in rung.curves:
            yield f"{rung.name}: {escape(_curve(curve))}"
        if not rung.figures:
            yield from (f"{rung.name}: {escape(line)}" for line in _details(rung))
    for note in dict.fromkeys(note for rung in report.rungs for note in rung.notes):
        names = ", ".join(rung.name for rung in report.rungs if note in rung.notes)
        yield f"{names}: note: {escape(note)}"
    for command in report.commands:
        yield f"to repeat: {escape(command)}"


def _details(rung: Rung) -> Iterator[str]:
    """Of a rung that has nothing else to show."""
    for name, value in rung.details.items():
        rows = value if isinstance(value, (list, tuple)) else [value]
        for row in rows:
            words = ", ".join(f"{k} {v}" for k, v in row.items()) if isinstance(row, dict) else row
            yield f"{name}: {words}"


def _curve(curve: Curve) -> str:
    summary = summarize(curve)
    line = (
        f"{curve.name}: |{curve.ours_name} - {curve.reference_name}| over "
        f"{len(curve.reference)} steps: max {short(summary.max_difference)}"
        f" at step {summary.worst_step}, mean {short(summary.mean_difference)}"
    )
    if summary.max_floor is not None:
        line += f"; noise floor max {short(summary.max_floor)}, mean {short(summary.mean_floor)}"
    return line


def _verdict(report: Report) -> Iterator[str]:
    divergence = report.divergence
    if divergence is not None:
        step = "" if divergence.step is None else f"step {divergence.step}"
        place = ", ".join(word for word in (divergence.rung, step, divergence.parameter) if word)
        detail = escape(f"{place}: {divergence.term}: {divergence.detail}")
        yield f"[bold red]first divergence[/]: {detail}"
    outcome = verdict_of(report)
    yield f"[{STYLES[outcome]}]{words(outcome).upper()}[/]: {tally(report)}"


def _outcome(outcome: Outcome) -> str:
    return f"[{STYLES[outcome]}]{words(outcome)}[/]"
