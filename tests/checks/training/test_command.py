"""muon-check parity --run: what it refuses, in one line and with exit code 2."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from checks.cli import main
from checks.training.options import how_words

RUNS = Path(__file__).parents[2] / "data" / "runs"
MAXTEXT = Path(__file__).parents[2] / "codemods" / "golden" / "release-0.2.5"


@pytest.fixture
def maxtext(tmp_path: Path) -> Path:
    """An unmigrated MaxText as far as it is looked at before anything runs."""
    tree = tmp_path / "maxtext_tree"
    shutil.copytree(MAXTEXT / "before", tree)
    trainer = tree / "maxtext" / "trainers" / "pre_train" / "train.py"
    trainer.parent.mkdir(parents=True)
    trainer.write_text("")
    return tree


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--run", "{runs}/nothing", "--maxtext", "{maxtext}"], "nothing: no such folder"),
        (["--run", "{runs}", "--maxtext", "{maxtext}"], "no losses in it"),
        (["--run", "{runs}/qwen3"], "--run DIR needs --maxtext PATH"),
        (["--run", "{runs}/qwen3", "--maxtext", "{runs}"], "no MaxText that can be trained"),
        (
            ["--run", "{runs}/qwen3", "--maxtext", "{maxtext}", "--steps", "1301"],
            "--steps 1301: .* has 1300 steps after its checkpoint at iteration 20",
        ),
        (
            ["--run", "{runs}/qwen3", "--maxtext", "{maxtext}", "--no-migrate"],
            "not migrated.*muon-migrate apply .*maxtext_tree --reference megatron",
        ),
        (["--run", "{runs}/qwen3", "--maxtext", "{maxtext}"], "name the one .* with --python"),
        (["--run", "{runs}/qwen3", "--maxtext", "{maxtext}", "--dtype", "f64"], "--dtype"),
        (["--windows"], "need --run DIR"),
    ],
)
def test_what_cannot_be_compared(words: list[str], message: str, maxtext: Path) -> None:
    spelled = [word.format(runs=RUNS, maxtext=maxtext) for word in words]
    done = CliRunner().invoke(main, ["parity", *spelled])
    assert done.exit_code == 2, done.output
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith("muon-check: ")
    assert re.search(message, line), line


def test_words_become_choices() -> None:
    nothing = dict.fromkeys(("restarted", "as_released", "no_migrate", "no_scan", "floor"), False)
    assert how_words({**nothing, "spec_words": ()}) == {}
    given = how_words({**nothing, "no_scan": True, "floor": True, "spec_words": ("ns_eps=1e-15",)})
    assert given == {"scan": False, "floor": True, "spec_overrides": {"ns_eps": 1e-15}}
