"""``muon-check upstream`` on the installed optax, and on doctored copies of it."""

from __future__ import annotations

import json
import re
import types
from pathlib import Path

import numpy as np
import optax
import pytest
from click.testing import CliRunner
from optax.contrib import _muon

from checks.cli import main
from checks.tolerances import limit
from checks.upstream.api import ADDITIONS, interface_changes
from checks.upstream.numbers import CASES
from checks.upstream.report import FOLLOWED, compare

UPSTREAM = Path(__file__).parents[2] / "muon_fork" / "UPSTREAM.md"


def doctored(*edits: tuple[str, str]) -> types.ModuleType:
    """The installed module with each (pattern, replacement) applied wherever it matches."""
    text = Path(str(_muon.__file__)).read_text()
    for pattern, replacement in edits:
        text, count = re.subn(pattern, replacement, text)
        assert count, f"optax has no {pattern}"
    module = types.ModuleType("doctored")
    exec(compile(text, "doctored", "exec"), module.__dict__)
    return module


def case(name: str) -> tuple:
    return tuple(row for row in CASES if row.name == name)


def test_the_installed_optax_is_what_the_fork_follows(capsys: pytest.CaptureFixture[str]) -> None:
    result = CliRunner().invoke(main, ["upstream", "--json", "-"])
    report = json.loads(result.stdout)
    assert (result.exit_code, report["passed"]) == (0, True), report
    assert report["installed"] == optax.__version__
    worst = max(row["worst"]["max_abs"] for row in report["numbers"])
    assert worst <= limit("upstream")
    with capsys.disabled():
        print(f"\nupstream: worst |difference| {worst:.1e}")


def test_what_is_followed_and_added_is_written_down() -> None:
    text = UPSTREAM.read_text()
    assert f"optax {FOLLOWED}" in text
    assert [name for name in sorted(ADDITIONS) if f"`{name}`" not in text] == []


@pytest.mark.parametrize(
    ("edit", "where", "what", "detail"),
    [
        ((r"(\bbeta\b[^=\n]*= )0\.95", r"\g<1>0.9"), "muon.beta", "default", "optax 0.9"),
        ((r"adaptive: bool = False,", ""), "muon.adaptive", "missing", "no longer"),
        (
            (r"(consistent_rms: [^\n]*= None,)", r"\1 cautious: bool = False,"),
            "muon.cautious",
            "added",
            "the fork has not",
        ),
        (
            (r"(consistent_rms: [^\n]*= None,)", r"\1 ns_dtype: str = 'x',"),
            "muon.ns_dtype",
            "added",
            "the fork has one of that name",
        ),
        (
            (r"(mu_dtype: [^\n]*= None,)\n    \*,", r"*, \1"),
            "muon.mu_dtype",
            "kind",
            "keyword only",
        ),
        ((r"output_axis: ", "outer: "), "MuonDimensionNumbers.output_axis", "missing", ""),
        ((r"  count: ", "  number: "), "MuonState.count", "missing", ""),
        ((r"def scale_by_shape", "def scale_by_size"), "scale_by_shape", "missing", "no such"),
        (
            (r"(    ns_steps: [^\n]*\n)(    beta: [^\n]*\n)", r"\2\1"),
            "muon",
            "order",
            "beta, ns_steps",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and value.isidentifier() else "",
)
def test_a_changed_interface_is_named(
    edit: tuple[str, str], where: str, what: str, detail: str
) -> None:
    found = interface_changes(doctored(edit))
    assert any((c.where, c.what) == (where, what) and detail in c.detail for c in found), found


@pytest.mark.parametrize(
    ("edit", "name", "term"),
    [
        ((r"ord='fro'\) \+ eps", "ord='fro') + 0.1"), "defaults", "Newton-Schulz: wide"),
        ((r"jnp\.maximum\(1, ", "jnp.maximum(0, "), "defaults", "scale: heads"),
        ((r"state\.mu, beta, 1\)", "state.mu, beta, 2)"), "defaults", "momentum: wide"),
        ((r"nesterov=nesterov,\n *\),\n *\},", "),},"), "defaults", "AdamW: bias"),
        ((r"adaptive=adaptive", "adaptive=True"), "defaults", "scale: wide"),
        ((r"eps=eps", "eps=missing"), "defaults", "optax fails: NameError"),
    ],
    ids=["guard", "scale", "momentum", "adam", "adaptive", "fails"],
)
def test_changed_arithmetic_is_named(edit: tuple[str, str], name: str, term: str) -> None:
    report = compare(doctored(edit), "doctored", case(name))
    assert not report.passed
    assert not report.interface
    (change,) = report.changes
    assert (change.where, change.what) == (name, "numbers")
    assert term in change.detail
    assert np.isnan(report.numbers[0].worst.max_abs) or "step" in change.detail


def test_command_lists_what_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    edits = ((r"(\bbeta\b[^=\n]*= )0\.95", r"\g<1>0.9"), (r"jnp\.maximum\(1, ", "jnp.maximum(0, "))
    monkeypatch.setattr(optax.contrib, "_muon", doctored(*edits))
    monkeypatch.setattr("checks.upstream.report.CASES", case("defaults"))
    monkeypatch.setattr("checks.upstream.report.compare.__defaults__", (case("defaults"),))
    result = CliRunner().invoke(main, ["upstream"])
    assert result.exit_code == 1
    assert "CHANGED default: muon.beta: optax 0.9, the fork 0.95" in result.stdout
    assert "CHANGED numbers: defaults" in result.stdout
    assert "agree" not in result.stdout


def test_command_without_muon_cannot_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(optax.contrib, "_muon")
    monkeypatch.setitem(__import__("sys").modules, "optax.contrib._muon", None)
    result = CliRunner().invoke(main, ["upstream"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "install the toolkit" in result.stderr
    assert "Traceback" not in result.stderr
