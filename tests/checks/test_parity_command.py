"""The command line of ``muon-check parity``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from checks.cases import CASES
from checks.cli import main
from checks.traps import TRAPS


def run(*words: str) -> Result:
    return CliRunner().invoke(main, ["parity", *words])


def test_no_rung_is_forgotten() -> None:
    folder = Path(__file__).parents[2] / "checks" / "cases"
    files = {file.stem for file in folder.glob("*.py")} - {"__init__"}
    assert {case.name for case in CASES} == files
    for entry in CASES:
        case = entry.load()
        assert (case.name, case.title, case.levels) == (entry.name, entry.title, entry.levels)


def test_lists_cost_nothing_and_name_everything() -> None:
    shown = run("--list-cases", "--list-traps")
    assert shown.exit_code == 0
    for name in (*(case.name for case in CASES), *(trap.name for trap in TRAPS)):
        assert f"\n{name} " in f"\n{shown.stdout}"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--case", "nonsense"], "unknown case nonsense; known: newton_schulz, step"),
        (["--trap", "nonsense"], "unknown trap nonsense; known: simple_for_quintic"),
        (["--steps", "3"], "--steps belongs to --run DIR"),
        (["--run", "somewhere"], "--run DIR needs --maxtext PATH"),
        (["--run", "d", "--maxtext", "m", "--case", "step"], "leave --case and --trap out"),
        (["--device", "gpu"], "no gpu"),
        (["--trap", "nadam", "--reference", "optax"], "--trap nadam changes nothing"),
        (
            ["--json", "/nowhere/at/all"],
            "/nowhere/at/all: cannot be written: no folder /nowhere/at",
        ),
    ],
)
def test_what_cannot_run_says_why(words: list[str], message: str) -> None:
    shown = run(*words)
    assert shown.exit_code == 2, shown.output
    assert message in shown.stderr
    assert "Traceback" not in shown.output


def test_json_alone_is_on_stdout() -> None:
    shown = run("--case", "newton_schulz", "--json", "-")
    assert shown.exit_code == 0, shown.output
    document = json.loads(shown.stdout)
    assert document["passed"]
    assert [rung["name"] for rung in document["rungs"]] == ["newton_schulz"]
    assert document["environment"]["matmul precision"] == "highest"


def test_a_difference_exits_1_and_is_named() -> None:
    shown = run("--case", "newton_schulz", "--trap", "simple_for_quintic")
    assert shown.exit_code == 1, shown.output
    assert "first divergence: newton_schulz, " in shown.stdout
    assert ": newton_schulz: " in shown.stdout
    assert "a known mistake is switched on" in shown.stdout


def test_the_page_is_written(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    shown = run("--case", "routing", "--html", str(page))
    assert shown.exit_code == 0, shown.output
    assert "routing" in page.read_text()


def test_nothing_that_ran_is_exit_2() -> None:
    shown = run("--case", "tpu_compile")
    assert shown.exit_code == 2, shown.output
    assert "--maxtext PATH" in shown.stdout
