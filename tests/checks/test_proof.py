"""The table of training cases, its command line, and results that outlive a stop."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from click.testing import CliRunner

from checks.measure import measure
from checks.proof import stored
from checks.proof.cli import main
from checks.proof.row import FIRST, LAST
from checks.proof.running import Place
from checks.proof.table import LAYOUTS_OF, ROWS, TITLES, row
from checks.proof.whole import report
from checks.result import Curve, Divergence, Figure, Outcome, Rung
from checks.tolerances import TOLERANCES
from checks.trainers.megatron.models import MODELS
from checks.trainers.megatron.optimizing import subtract_decay

RUNG = Rung(
    "rfc",
    "a title",
    Outcome.FAILED,
    (Figure("loss", measure([1.0], [1.5]), "training_dense", 1e-5, step=3, floor=1e-6),),
    Divergence("training", 23, "", "loss", "far apart"),
    notes=("a note",),
    curves=(Curve("one", 20, (1.0,), (1.5,), None), Curve("two", 30, (1.0,), (1.5,), (0.0,))),
    details={"max": 0.5},
)


def test_rows_are_sound() -> None:
    names = [entry.name for entry in ROWS]
    assert len(set(names)) == len(names)
    assert row(LAYOUTS_OF).training.layout.processes == 1
    assert {entry.gate for entry in ROWS} <= {limit.name for limit in TOLERANCES}
    for entry in ROWS:
        assert entry.training.steps == LAST, entry.name
        assert entry.training.saves[0] == FIRST, entry.name
        assert LAST - FIRST >= 1300
        assert entry.restarted == (len(entry.training.saves) > 1 and "_windows" in entry.name)


def test_rows_that_share_a_recording_ask_for_the_same() -> None:
    by_recording: dict[str, set[str]] = {}
    for entry in ROWS:
        asked = repr((entry.training, entry.floor))
        by_recording.setdefault(entry.recording, set()).add(asked)
    assert all(len(asked) == 1 for asked in by_recording.values())


def test_every_model_is_in_the_table() -> None:
    assert {entry.training.model.name for entry in ROWS} == {found.name for found in MODELS}


def test_a_rung_survives_its_file(tmp_path: Path) -> None:
    stored.write(RUNG, tmp_path / "rows" / "rfc.json")
    assert stored.read(tmp_path / "rows" / "rfc.json") == RUNG


def test_the_report_has_every_row(tmp_path: Path) -> None:
    """What was not run says so, and does not count as passed."""
    place = Place(tmp_path, tmp_path, tmp_path, lambda _line: None)
    stored.write(RUNG, place.result("rfc"))
    found = report(place)
    assert [rung.name for rung in found.rungs] == list(TITLES)
    outcomes = {rung.name: rung.outcome for rung in found.rungs}
    assert outcomes.pop("rfc") is Outcome.FAILED
    assert set(outcomes.values()) == {Outcome.NOT_RUN}
    assert not found.passed


def test_done_rows_are_not_run_again(tmp_path: Path) -> None:
    place = Place(tmp_path, tmp_path, tmp_path, lambda _line: None)
    stored.write(RUNG, place.result("rfc"))
    words = ["--row", "rfc", "--releases", tmp_path, "--python", tmp_path, "--out", tmp_path]
    answer = CliRunner().invoke(main, [str(word) for word in words])
    assert answer.exit_code == 1, answer.output
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")
    assert (tmp_path / "report.json").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--row", "nothing"], "no row 'nothing'"),
        ([], "--releases and --python"),
        (["--releases", "nowhere", "--python", "nowhere"], "nowhere: no such"),
    ],
)
def test_bad_words_are_refused(words: list[str], said: str) -> None:
    answer = CliRunner().invoke(main, words)
    assert answer.exit_code == 2
    assert said in answer.output


def test_decay_by_subtraction_is_not_the_rounded_factor() -> None:
    """1 - 2e-4 in float32 is 2.6e-8 too large, the same way in every step."""
    after = {}
    for subtracted in (False, True):
        weight = torch.full((4,), 0.7, requires_grad=True)
        weight.grad = torch.zeros_like(weight)
        adam = torch.optim.AdamW([weight], lr=2e-3, weight_decay=0.1)
        if subtracted:
            subtract_decay(SimpleNamespace(optimizer=adam))
        for _ in range(1000):
            adam.step()
        assert adam.param_groups[0]["weight_decay"] == 0.1
        after[subtracted] = float(weight.detach()[0]) / (0.7 * (1 - 2e-4) ** 1000) - 1
    assert abs(after[True]) < 1e-6
    assert abs(after[False]) > 1e-5
