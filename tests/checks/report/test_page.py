"""The page as text: what is in it, what it must not reach for, how large it may be."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from html.parser import HTMLParser

import pytest

from checks.report.axes import Axis, linear, logarithmic
from checks.report.document import as_json
from checks.report.heat import LEGEND, SHADES, heat, shade
from checks.report.page import render
from checks.report.series import join, points
from checks.report.view import POINTS
from checks.result import Curve, Outcome, Report

from . import samples

# Elements without an end tag.
VOID = {"meta", "link", "br", "wbr", "hr", "img", "input", "path"}


class Reader(HTMLParser):
    """Checks that elements nest, and keeps every attribute."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.feed(html)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("name", ["passed", "failed", "small"])
def test_elements_nest_and_every_link_and_label_has_its_target(name: str) -> None:
    reader = Reader(render(getattr(samples, name)()))
    ids = [value for _, key, value in reader.attributes if key == "id"]
    assert len(set(ids)) == len(ids)
    targets = [
        value[1:] for _, key, value in reader.attributes if key == "href" and value[0] == "#"
    ]
    labels = [
        v for _, key, value in reader.attributes if "labelledby" in key for v in value.split()
    ]
    assert targets
    assert set(targets) | set(labels) <= set(ids)


def test_it_reaches_for_nothing() -> None:
    html = render(samples.failed())
    assert not re.findall(r"https?:|//[a-z]|@import|url\(", html)
    sources = [value for _, key, value in Reader(html).attributes if key in ("src", "href")]
    assert all(value.startswith(("#", "data:,")) for value in sources)
    assert "default-src 'none'" in html


def test_drawings_are_described_in_words() -> None:
    html = render(samples.passed())
    drawings = re.findall(r"<svg.*?</svg>", html, re.S)
    assert len(drawings) == 2
    for drawing in drawings:
        assert re.search(r'role="img" aria-labelledby="\S+ \S+"', drawing)
        assert "<title" in drawing
        assert "differ by at most 9.5e-06 (step 1297)" in drawing


def test_a_page_of_many_long_curves_stays_below_a_megabyte() -> None:
    curves = tuple(samples.curve(f"model {n}", 1e-5, n, steps=5200) for n in range(12))
    rung = dataclasses.replace(samples.training(1e-5, Outcome.PASSED), curves=curves)
    html = render(dataclasses.replace(samples.passed(), rungs=(*samples.lower_rungs(), rung)))
    assert len(html.encode()) < 1e6
    assert sum(len(points(curve, POINTS // 12)) for curve in curves) <= POINTS
    assert "Of every 13 steps the one with the largest difference is drawn, and the one" in html


@pytest.mark.parametrize("count", [8, 120])
def test_however_many_curves_there_are(count: int) -> None:
    curves = tuple(samples.curve(f"model {n}", 1e-5, n, steps=1500) for n in range(count))
    rung = dataclasses.replace(samples.training(1e-5, Outcome.PASSED), curves=curves)
    report = dataclasses.replace(samples.passed(), rungs=(*samples.lower_rungs(), rung))
    html = render(report)
    assert len(html.encode()) < 1e6
    assert html.count('<figure class="chart"') == count
    shown = [json.loads(rows) for rows in re.findall(r'class="data">(.*?)</script>', html)]
    for curve, rows in zip(curves, shown, strict=True):
        gaps = [abs(a - b) for a, b in zip(curve.ours, curve.reference, strict=True)]
        assert max(row[3] for row in rows) == pytest.approx(max(gaps), rel=1e-2)
        assert max(row[4] for row in rows) == pytest.approx(max(curve.floor or ()), rel=1e-2)
    (told,) = (rung for rung in as_json(report)["rungs"] if rung["name"] == "training")
    assert {len(curve["ours"]) for curve in told["curves"]} == {1500}


def test_the_head_says_what_was_compared_how_far_apart_it_is_and_the_limit() -> None:
    report = samples.failed()
    assert (
        "Compared: the losses of MaxText and Megatron on the same tokens, 1300 steps. "
        "They differ by at most 6.0e-02; the limit is 1e-05."
    ) in re.sub("<[^>]*>", "", render(report))
    report = dataclasses.replace(report, rungs=samples.lower_rungs())
    assert "No model was trained; muon-check parity" in render(report)
    nothing = dataclasses.replace(report, rungs=(samples.not_run("step", "no JAX"),))
    assert "Compared:" not in render(nothing)


def test_the_specification_is_shown_once() -> None:
    report = samples.small()
    rung = dataclasses.replace(report.rungs[0], details={"spec": {"a_field": 1}})
    same = dataclasses.replace(report, rungs=(rung,), spec={"a_field": 1})
    assert render(same).count("a_field") == 1
    assert render(dataclasses.replace(same, spec={"a_field": 2})).count("a_field") == 2


def test_thinning_a_curve_keeps_its_worst_step() -> None:
    curve = samples.curve("one", 1e-5, seed=5)
    worst = max(abs(a - b) for a, b in zip(curve.reference, curve.ours, strict=True))
    assert max(point.difference for point in points(curve, 40)) == worst
    broken = dataclasses.replace(curve, ours=(*curve.ours[:700], math.nan, *curve.ours[701:]))
    assert sum(math.isnan(point.difference) for point in points(broken, 40)) == 1


@pytest.mark.parametrize(
    "curve",
    [
        Curve("empty", 0, (), ()),
        Curve("one step", 3, (1.0,), (1.0,)),
        Curve("flat", 0, (2.0,) * 9, (2.0,) * 9, (0.0,) * 9),
        Curve("never a number", 0, (1.0,) * 3, (math.nan, math.inf, math.nan)),
        Curve("nothing known", 0, (math.nan,) * 3, (1.0,) * 3, (math.nan,) * 3),
    ],
    ids=lambda curve: curve.name,
)
def test_odd_curves_are_drawn(curve: Curve) -> None:
    rung = dataclasses.replace(samples.training(1e-6, Outcome.FAILED), curves=(curve,))
    html = render(Report((rung,), {}))
    Reader(html)
    for path in re.findall(r' d="([^"]*)"', html):
        assert re.fullmatch(r"(M\d+,\d+( \d+,\d+)+)*", path), path


def test_windows_of_one_run_are_one_chart() -> None:
    whole = samples.curve("qwen3_moe", 1e-6, seed=4, steps=300)
    cuts = [(n, n + 100) for n in (0, 100, 200)]
    windows = tuple(
        dataclasses.replace(
            whole,
            first_step=20 + first,
            reference=whole.reference[first:end],
            ours=whole.ours[first:end],
            floor=(whole.floor or ())[first:end],
        )
        for first, end in cuts
    )
    (joined,) = join(windows)
    assert joined.curve == whole
    assert joined.restarts == (120, 220)
    rung = dataclasses.replace(samples.training(1e-6, Outcome.PASSED), curves=windows)
    html = render(Report((rung,), {}))
    assert html.count('<figure class="chart"') == 1
    assert "over 300 steps in 3 windows, each from its own checkpoint, differ by" in html
    so_far = re.findall(r'class="gap so-far" d="([^"]*)"', html)
    assert [line.count("M") for line in so_far] == [3]
    assert len(join((windows[0], windows[2]))) == 2
    assert len(join((windows[0], dataclasses.replace(windows[1], ours_name="fork")))) == 2


def test_text_from_outside_is_escaped() -> None:
    rung = samples.not_run("tpu", "<script>alert(1)</script> & [tpu]")
    html = render(Report((rung,), {"platform": "<b>x</b>"}, {"beta": "<i>"}, ("a < b && c",)))
    assert "<script>alert" not in html
    assert "&lt;script&gt;alert(1)" in html
    assert "<b>x</b>" not in html
    assert "a &lt; b &amp;&amp; c" in html


def test_a_parameter_that_a_rung_left_out_has_no_colour() -> None:
    one, two = samples.lower_rungs()
    extra = dataclasses.replace(two, name="other", figures=two.figures[:1])
    table = heat(Report((one, two, extra), {}))
    assert table is not None
    assert table.rungs == ("step", "other")
    assert [cells[1].shade is None for _, cells in table.rows] == [False] + [True] * 18
    assert heat(Report((one,), {})) is None


def test_shades_say_how_near_the_limit_is() -> None:
    assert [shade(value) for value in (0.0, 1e-9, 5e-3, 0.05, 0.3, 1.0)] == list(range(6))
    assert shade(1.0001) == shade(math.inf) == len(SHADES) == len(LEGEND) - 1


def test_axes() -> None:
    assert [tick.text for tick in Axis(20, 1319).ticks(about=7)][:2] == ["200", "400"]
    log = logarithmic([3e-9, 2e-6, 0.0, math.nan])
    assert (log.low, log.high) == pytest.approx((1e-9, 1e-5))
    assert log.place(0.0) == 0.0
    assert log.place(1e-7) == pytest.approx(0.5)
    assert log.place(math.nan) is None
    assert logarithmic([1e-30, 1.0]).low == pytest.approx(1e-9)
    assert linear([1.0, math.inf, 3.0]).high == pytest.approx(3.08)
