"""The report on a terminal and in a pipe."""

from __future__ import annotations

import dataclasses
import io

import pytest
from rich.console import Console

from checks.report.console import PIPE_WIDTH, SHOWN, show
from checks.result import Report

from . import samples


def printed(report: Report, width: int | None = None) -> list[str]:
    """Lines of a pipe, or of a terminal ``width`` columns wide."""
    file = io.StringIO()
    console = Console(file=file, width=width, force_terminal=width is not None, color_system=None)
    show(report, console)
    return file.getvalue().splitlines()


def test_a_pipe_gets_whole_lines() -> None:
    lines = printed(samples.failed())
    (row,) = [line for line in lines if line.split()[:2] == ["trajectory", "failed"]]
    assert "params/decoder/layers_0/self_attention/out/kernel, step" in row
    assert "NaN" in row
    (query,) = [line for line in lines if "layers_1/self_attention/query/kernel, step" in line]
    assert len(query) >= PIPE_WIDTH - 1
    assert any("--run runs/qwen3 --maxtext ../maxtext --steps 1300 --json" in x for x in lines)


@pytest.mark.parametrize("width", [60, 80, 100, 160])
def test_a_terminal_gets_lines_that_fit(width: int) -> None:
    lines = printed(samples.failed(), width)
    assert max(map(len, lines)) <= width
    text = " ".join(lines)
    for word in ("RMS ratio", "cosine", "max abs", "rel L2", "floor", "of limit", "6.0e-02"):
        assert word in text


@pytest.mark.parametrize("width", [None, 80])
def test_the_verdict_comes_last_and_the_divergence_before_it(width: int | None) -> None:
    lines = printed(samples.failed(), width)
    assert lines[-1] == "FAILED: 5 rungs: 2 passed, 2 failed, 1 not run"
    (at,) = [i for i, line in enumerate(lines) if line.startswith("first divergence: trajectory")]
    assert "step 12" in lines[at]
    assert "momentum" in " ".join(lines[at:])
    assert printed(samples.passed())[-1] == "PASSED: 6 rungs: 5 passed, 1 not run"


def test_nothing_run_is_no_pass() -> None:
    report = Report((samples.not_run("tpu_compile", "libtpu is not installed"),), {})
    lines = printed(report)
    assert lines[-1] == "NOT RUN: 1 rung: 1 not run"
    assert any("libtpu is not installed" in line for line in lines)


def test_failures_are_counted_when_there_are_too_many() -> None:
    lines = printed(samples.failed())
    assert sum("weights after 1000 steps" in line for line in lines) == SHOWN
    assert any("and 14 more above their limits" in line for line in lines)


def test_curves_and_notes_are_told() -> None:
    lines = printed(samples.passed())
    (curve,) = [line for line in lines if line.startswith("training: qwen3, 2 layers")]
    assert "1300 steps: max 9.5e-06" in curve
    assert "noise floor max" in curve
    assert any(line.startswith("step: note: the reference is emerging") for line in lines)


def test_a_note_of_several_rungs_is_told_once() -> None:
    rungs = tuple(dataclasses.replace(r, notes=("60 steps",)) for r in samples.lower_rungs())
    lines = [line for line in printed(Report(rungs, {})) if "note" in line]
    assert lines == ["newton_schulz, step: note: 60 steps"]


def test_names_are_not_read_as_markup() -> None:
    report = Report((samples.not_run("tpu", "install the toolkit with [tpu]"),), {})
    assert any("with [tpu]" in line for line in printed(report))
