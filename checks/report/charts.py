"""A pair of loss curves as two panels: the losses, and how far they are apart."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from checks.result import Curve

from .axes import Axis, Tick, linear, logarithmic
from .series import Joined, Point, Summary, points, stretch, summarize
from .wording import plain, short

# Units of a panel's drawing; it is stretched to whatever width the page has.
WIDTH, HEIGHT = 4000, 1000


@dataclass(frozen=True)
class Line:
    """``kind`` is its CSS class, ``path`` its SVG path data."""

    kind: str
    path: str


@dataclass(frozen=True)
class Panel:
    lines: tuple[Line, ...]
    ticks: tuple[Tick, ...]
    limit: Tick | None = None


@dataclass(frozen=True)
class Chart:
    """What the template draws; ``data`` is JSON for the read-out below the pointer."""

    curve: Curve
    summary: Summary
    losses: Panel
    gaps: Panel
    steps: tuple[Tick, ...]
    description: str
    notes: tuple[str, ...]
    data: str


def chart(joined: Joined, most: int) -> Chart:
    """Of a curve, in at most ``most`` points."""
    curve = joined.curve
    shown, summary = points(curve, most), summarize(curve)
    last = curve.first_step + max(len(curve.reference) - 1, 1)
    x = Axis(curve.first_step, last)
    return Chart(
        curve=curve,
        summary=summary,
        losses=_losses(shown, x),
        gaps=_gaps(shown, x, curve.limit, joined.restarts),
        steps=tuple(x.ticks(about=7)),
        description=describe(joined, summary),
        notes=tuple(_notes(curve, shown, stretch(curve, most))),
        data=_data(shown),
    )


def describe(joined: Joined, summary: Summary) -> str:
    """The chart in words."""
    curve, windows = joined.curve, len(joined.restarts) + 1
    within = f" in {windows} windows, each from its own checkpoint," if windows > 1 else ""
    text = (
        f"{curve.ours_name} and {curve.reference_name} over {len(curve.reference)} steps{within} "
        f"differ by at most {short(summary.max_difference)} (step {summary.worst_step}), "
        f"on average by {short(summary.mean_difference)}."
    )
    if summary.max_floor is not None:
        text += (
            f" One unit in the last place alone moves {curve.reference_name} by up to "
            f"{short(summary.max_floor)}, on average by {short(summary.mean_floor)}."
        )
    return text


def _losses(shown: Sequence[Point], x: Axis) -> Panel:
    y = linear([value for p in shown for value in (p.reference, p.ours)])
    lines = (
        Line("reference", _path(((p.step, p.reference) for p in shown), x, y)),
        Line("ours", _path(((p.step, p.ours) for p in shown), x, y)),
    )
    return Panel(lines, tuple(y.ticks()))


def _gaps(shown: Sequence[Point], x: Axis, limit: float | None, restarts: tuple[int, ...]) -> Panel:
    gaps = [(p.step, p.difference) for p in shown if p.known]
    floors = [(p.step, p.floor) for p in shown if p.floor is not None]
    y = logarithmic([value for _, value in (*gaps, *floors)] + ([limit] if limit else []))
    lines = [Line(f"{kind} each", _path(s, x, y)) for kind, s in (("floor", floors), ("gap", gaps))]
    for kind, series in (("floor", floors), ("gap", gaps)):
        lines.append(Line(f"{kind} so-far", _path(_running_max(series, restarts), x, y)))
    ends = ((step, value) for step in restarts for value in (y.low, y.high, math.nan))
    lines.append(Line("restart", _path(ends, x, y)))
    mark = Tick(100.0 * (y.place(limit) or 0.0), f"limit {plain(limit)}") if limit else None
    return Panel(tuple(line for line in lines if line.path), tuple(y.ticks()), mark)


def _running_max(
    series: Iterable[tuple[int, float]], restarts: tuple[int, ...]
) -> Iterable[tuple[int, float]]:
    """The largest so far, window by window; the line is broken between them."""
    most, ahead = 0.0, list(restarts)
    for step, value in series:
        if ahead and step >= ahead[0]:
            most, ahead = 0.0, [one for one in ahead if one > step]
            yield step, math.nan
        most = math.nan if math.isnan(value) or math.isnan(most) else max(most, value)
        yield step, most


def _path(series: Iterable[tuple[int, float]], x: Axis, y: Axis) -> str:
    """Broken where a value is NaN; a lone point becomes a dot (a line of no length)."""
    pieces: list[list[tuple[int, int]]] = [[]]
    for step, value in series:
        across, up = x.place(step), y.place(value)
        if across is None or up is None:
            pieces.append([])
            continue
        place = (round(WIDTH * across), round(HEIGHT * (1.0 - up)))
        if [at[1] for at in pieces[-1][-2:]] == [place[1]] * 2:
            pieces[-1].pop()  # A level stretch needs its ends only.
        pieces[-1].append(place)
    return "".join(f"M{_words(p if len(p) > 1 else [*p, *p])}" for p in pieces if p)


def _words(places: Sequence[tuple[int, int]]) -> str:
    return " ".join(f"{across},{down}" for across, down in places)


def _notes(curve: Curve, shown: Sequence[Point], width: int) -> Iterable[str]:
    if width > 1:
        floor = "" if curve.floor is None else ", and the one with the largest floor"
        yield f"Of every {width} steps the one with the largest difference is drawn{floor}."
    equal = sum(a == b for a, b in zip(curve.reference, curve.ours, strict=True))
    if equal:
        steps, them = ("step is", "it") if equal == 1 else ("steps are", "them")
        yield f"{equal} {steps} equal to the bit; the lower panel has {them} on its bottom line."
    unknown = sum(math.isnan(loss) for loss in curve.reference)
    if unknown:
        yield f"{unknown} steps have no recorded loss; they are left out."
    if any(math.isnan(p.ours) for p in shown):
        yield f"{curve.ours_name}'s line ends where its loss is not a number."


def _data(shown: Sequence[Point]) -> str:
    rows = [
        [
            p.step,
            _number(p.reference, ".9g"),
            _number(p.ours, ".9g"),
            _number(p.difference, ".2e"),
            None if p.floor is None else _number(p.floor, ".2e"),
        ]
        for p in shown
    ]
    return json.dumps(rows, separators=(",", ":"), allow_nan=False)


def _number(value: float, form: str) -> float | str:
    return float(format(value, form)) if math.isfinite(value) else short(value)
