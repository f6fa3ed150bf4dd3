"""muon-check record: material in, folder out, or a message and nothing."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from checks.cli import main
from checks.training.folder import open_run

RUNS = Path(__file__).parents[2] / "data" / "runs"


@pytest.fixture
def words(tmp_path: Path) -> dict[str, str]:
    np.save(tmp_path / "batches.npy", np.load(RUNS / "tokens.npy"))
    return {
        "--log": str(RUNS / "qwen3" / "losses.txt"),
        "--tokens": str(tmp_path / "batches.npy"),
        "--checkpoint": str(RUNS / "qwen3"),
        "--out": str(tmp_path / "run"),
    }


def call(words: dict[str, str], *more: str) -> Result:
    arguments = [word for pair in words.items() for word in pair]
    return CliRunner().invoke(main, ["record", *arguments, *more])


def test_a_run_is_made_of_its_material(words: dict[str, str], tmp_path: Path) -> None:
    done = call(words, "--note", "by hand", "--spec", "adam_decay_style=factor", "--json", "-")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert (told["checkpoints"], told["first_step"], told["last_step"]) == ([20], 0, 1319)
    run = open_run(tmp_path / "run")
    assert run.notes == ("by hand",)
    assert run.spec == told["spec"] == {"adam_decay_style": "factor"}
    assert np.array_equal(run.losses.values, open_run(RUNS / "qwen3").losses.values)


def test_shares_of_ranks_are_joined(words: dict[str, str], tmp_path: Path) -> None:
    tokens = np.load(RUNS / "tokens.npy")
    for rank in (0, 1):
        np.save(tmp_path / f"tokens-{rank}.npy", tokens[:, 2 * rank : 2 * rank + 2])
    words["--tokens"] = str(tmp_path / "tokens-0.npy")
    done = call(words, "--tokens", str(tmp_path / "tokens-1.npy"))
    assert done.exit_code == 0, done.output
    assert np.array_equal(open_run(tmp_path / "run").tokens, tokens)


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--log", "nothing.txt", "nothing.txt: no such file"),
        ("--tokens", "nothing.npy", "nothing.npy: no such file"),
        ("--tokens", "text.npy", "not a NumPy array on disk"),
        ("--checkpoint", "empty", "empty: no checkpoint in it"),
        ("--floor", "nothing.txt", "nothing.txt: no such file"),
        ("--first-step", "5", "every loss needs its batch|after it comes step"),
        ("--first-step", "30", "after it comes step 20"),
        ("--out", "empty", "empty: exists"),
        ("--out", "nowhere/run", "nowhere: no such folder"),
        ("--spec", "adam_decay_style=add", "--spec: adam_decay_style='add': expected one of"),
        ("--spec", "nope=3", "--spec: unknown override nope"),
    ],
)
def test_what_is_refused_leaves_nothing(
    words: dict[str, str], tmp_path: Path, option: str, value: str, message: str
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.npy").write_text("1")
    words[option] = value if value.isdecimal() or "=" in value else str(tmp_path / value)
    before = sorted(path.name for path in tmp_path.iterdir())
    done = call(words)
    if (option, value) == ("--first-step", "5"):
        assert done.exit_code == 0  # Both begin later: a run that was recorded from step 5 on.
        return
    assert done.exit_code == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_messages_name_what_the_user_named(words: dict[str, str], tmp_path: Path) -> None:
    tokens = np.load(RUNS / "tokens.npy").astype(np.int16)
    tokens[7, 0, 0] = 300
    np.save(tmp_path / "batches.npy", tokens)
    (tmp_path / "my.log").write_text("1.5\nnan\n")
    done = call(words)
    assert f"muon-check: {tmp_path / 'batches.npy'}: token 300 in batch 7, " in done.stderr
    done = call({**words, "--log": str(tmp_path / "my.log")})
    assert done.stderr.startswith(f"muon-check: {tmp_path / 'my.log'}: the loss of step 1 is nan")
    done = call({**words, "--out": "/proc/run"})
    assert done.stderr.startswith("muon-check: /proc: cannot be written: ")
