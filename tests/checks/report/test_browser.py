"""The page in a real browser: light and dark, wide and narrow, on paper."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from checks.report.page import render

from . import samples
from .devtools import Browser

WINDOWS = {1280: 800, 390: 844}
LEAST_CONTRAST = 4.5

# Contrast of every piece of text with the ground it really has, worst first.
CONTRASTS = """(() => {
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const rgba = (color) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = color;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = ([r, g, b]) => [r, g, b].map((c) => c / 255)
    .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const color = rgba(getComputedStyle(at).backgroundColor);
      if (color[3] === 255) return color;
    }
    return [255, 255, 255, 255];
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const found = [];
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const element = node.parentElement, words = node.data.trim();
    if (!words || ["SCRIPT", "STYLE"].includes(element.tagName) || element.closest("svg")) continue;
    if (!element.checkVisibility() || !element.getClientRects().length) continue;
    const [a, b] = [light(rgba(getComputedStyle(element).color)), light(ground(element))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    found.push([ratio, element.tagName + "." + element.className, words.slice(0, 40)]);
  }
  return found.sort((x, y) => x[0] - y[0]);
})()"""

OPEN_ALL = 'document.querySelectorAll("details").forEach((one) => { one.open = true; })'
OVERFLOW = """(() => {
  const room = document.documentElement.clientWidth;
  const wide = [...document.querySelectorAll("main *")].filter((one) =>
    one.getClientRects().length && one.getBoundingClientRect().right > room + 0.5);
  return [document.documentElement.scrollWidth, innerWidth, wide.map((one) => one.outerHTML
    .slice(0, 120))];
})()"""
BOX = "(({top, bottom, left, right}) => ({top, bottom, left, right}))(%s.getBoundingClientRect())"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    one = Browser(tmp_path_factory.mktemp("profile"))
    yield one
    one.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    files = {}
    for name in ("passed", "failed"):
        files[name] = folder / f"{name}.html"
        files[name].write_text(render(getattr(samples, name)()), encoding="utf-8")
    return files


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WINDOWS)
@pytest.mark.parametrize("name", ["passed", "failed"])
def test_it_fits_is_legible_and_asks_for_nothing(
    browser: Browser, pages: dict[str, Path], name: str, width: int, scheme: str
) -> None:
    browser.open(pages[name], width, WINDOWS[width], scheme)
    headline, badge = (browser.evaluate(BOX % _query(place)) for place in ("h1", "h1 .badge"))
    assert 0 <= headline["top"] < badge["bottom"] <= WINDOWS[width]
    assert 0 <= badge["left"] < badge["right"] <= width
    assert browser.evaluate(_query("h1 .badge") + ".innerText").endswith(name)
    browser.evaluate(OPEN_ALL)
    scrolled, inner, wide = browser.evaluate(OVERFLOW)
    assert inner == width
    assert scrolled <= width, wide
    assert not wide
    contrasts = browser.evaluate(CONTRASTS)
    assert len(contrasts) > 200
    assert contrasts[0][0] >= LEAST_CONTRAST, contrasts[:5]
    assert not _complaints(browser.events)
    assert _requests(browser.events) == [pages[name].as_uri()]


def test_the_two_schemes_are_light_and_dark(browser: Browser, pages: dict[str, Path]) -> None:
    grounds = []
    for scheme in ("light", "dark"):
        browser.open(pages["passed"], 1280, 800, scheme)
        color = browser.evaluate("getComputedStyle(document.body).backgroundColor")
        grounds.append(sum(map(int, color.removeprefix("rgb(").removesuffix(")").split(","))))
    assert grounds[0] > 700
    assert grounds[1] < 100


def test_the_first_divergence_is_in_the_first_screen(
    browser: Browser, pages: dict[str, Path]
) -> None:
    for width, height in WINDOWS.items():
        browser.open(pages["failed"], width, height, "light")
        box = browser.evaluate(BOX % _query("section.divergence"))
        assert box["bottom"] <= height


@pytest.mark.parametrize("width", WINDOWS)
def test_curves_fill_their_frames(browser: Browser, pages: dict[str, Path], width: int) -> None:
    browser.open(pages["failed"], width, WINDOWS[width], "light")
    frames = browser.evaluate(
        '[...document.querySelectorAll(".frame")].map((frame) => { const f = '
        "frame.getBoundingClientRect(); return [f.width, f.height, ...[...frame.querySelectorAll("
        '"path")].map((path) => { const p = path.getBoundingClientRect(); '
        "return [p.left - f.left, f.right - p.right, p.top - f.top, f.bottom - p.bottom]; })]; })"
    )
    assert [len(frame) - 2 for frame in frames] == [2, 4]
    for wide, high, *margins in frames:
        assert wide > 0.7 * width
        assert high > 150
        for left, right, top, bottom in margins:
            assert abs(left) < 6
            assert abs(right) < 6
            assert min(top, bottom) > -6


def test_pointer_and_arrow_keys_read_a_step(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["failed"], 1280, 2000, "light")
    frame = browser.evaluate(BOX % _query(".frame"))
    middle = {"x": (frame["left"] + frame["right"]) / 2, "y": frame["top"] + 20}
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", **middle)
    read = _query(".readout") + ".textContent"
    first = browser.evaluate(read)
    step = int(first.split(":")[0].removeprefix("step "))
    assert abs(step - (20 + 650)) <= 2
    losses = samples.failed().rungs[3].curves[0]
    assert f"Megatron {losses.reference[step - 20]:.9g}" in first
    browser.evaluate(_query(".plot") + ".focus()")
    for kind in ("keyDown", "keyUp"):
        browser.call("Input.dispatchKeyEvent", type=kind, key="ArrowRight", code="ArrowRight")
    assert browser.evaluate(read).startswith(f"step {step + 1}: ")


def test_on_paper_nothing_is_folded_away(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["passed"], 1280, 800, "light")
    folded = 'document.querySelectorAll("details:not([open])").length'
    assert browser.evaluate(folded) > 3
    printed = base64.b64decode(browser.call("Page.printToPDF", printBackground=True)["data"])
    assert printed.startswith(b"%PDF")
    browser.evaluate('dispatchEvent(new Event("beforeprint"))')
    assert browser.evaluate(folded) == 0
    browser.evaluate('dispatchEvent(new Event("afterprint"))')
    assert browser.evaluate(folded) > 3


def test_it_is_whole_without_scripts(browser: Browser, pages: dict[str, Path]) -> None:
    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.open(pages["failed"], 1280, 800, "light")
        text = browser.evaluate("document.body.innerText")
    finally:
        browser.call("Emulation.setScriptExecutionDisabled", value=False)
    for words in ("First divergence", "The ladder", "Parameters", "Limits, and why", "To repeat"):
        assert words in text


def _query(selector: str) -> str:
    return f"document.querySelector({selector!r})"


def _complaints(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the page logged, threw, or was refused."""
    methods = ("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled")
    return [event for event in events if event["method"] in methods]


def _requests(events: list[dict[str, Any]]) -> list[str]:
    """Addresses that the page asked for; what lies in the page itself is none."""
    sent = [e["params"]["request"]["url"] for e in events if e["method"] == _REQUEST]
    return [address for address in sent if not address.startswith("data:")]


_REQUEST = "Network.requestWillBeSent"
