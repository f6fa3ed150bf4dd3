"""The hook writes what Megatron trained on, whole after every step."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from checks.record.appending import TokenFile, append_row
from checks.record.hook import record
from checks.training.folder import open_run
from tests.checks.record.stand_in import RerunDataIterator, run, training

ROOT = Path(__file__).parents[3]
RUNS = ROOT / "tests" / "data" / "runs"
TOKENS = torch.from_numpy(np.load(RUNS / "tokens.npy")[:40].astype(np.int64))


@pytest.fixture(autouse=True)
def fresh_iterator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test meets an iterator that nobody watches."""
    monkeypatch.setattr(RerunDataIterator, "__next__", RerunDataIterator.__next__)


@pytest.fixture
def arguments(tmp_path: Path) -> SimpleNamespace:
    """Of a run that goes on from iteration 20 and saves there too."""
    shutil.copytree(RUNS / "qwen3" / "iter_0000020", tmp_path / "saved" / "iter_0000020")
    saved = str(tmp_path / "saved")
    return SimpleNamespace(global_batch_size=4, curr_iteration=0, save=saved, load=saved)


def test_a_recorded_run_opens(tmp_path: Path, arguments: SimpleNamespace) -> None:
    module = training(arguments)
    record(tmp_path / "run", module)
    losses = run(module, TOKENS, 20, 30)
    opened = open_run(tmp_path / "run")
    assert (opened.first_step, opened.end_step) == (20, 30)
    assert opened.losses.values.tolist() == losses
    assert np.array_equal(opened.tokens, TOKENS[20:30])
    assert list(opened.checkpoints) == [20]


def test_a_run_may_be_interrupted_and_go_on(tmp_path: Path, arguments: SimpleNamespace) -> None:
    module = training(arguments)
    record(tmp_path / "run", module)
    run(module, TOKENS, 20, 27)
    # The process died while it wrote a loss; another starts from step 24, on other data.
    with (tmp_path / "run" / "losses.jsonl").open("a") as stream:
        stream.write('{"step": 27, "lo')
    stopped = open_run(tmp_path / "run")
    assert stopped.end_step == 27
    assert "losses.jsonl: its last line was cut off, and left out" in stopped.notes
    other = TOKENS.flip(2)
    second = training(arguments)
    record(tmp_path / "run", second)
    losses = run(second, other, 24, 32)
    opened = open_run(tmp_path / "run")
    assert opened.losses.values[4:].tolist() == losses
    assert np.array_equal(opened.tokens[:4], TOKENS[20:24])
    assert np.array_equal(opened.tokens[4:], other[24:32])


def test_a_step_that_megatron_runs_again_counts_once(
    tmp_path: Path, arguments: SimpleNamespace
) -> None:
    module = training(arguments, again=(22,))
    record(tmp_path / "run", module)
    run(module, TOKENS, 20, 22)
    run(module, torch.cat([TOKENS[:23], TOKENS[22:]]), 22, 23)
    assert np.array_equal(open_run(tmp_path / "run").tokens, TOKENS[20:23])


def test_evaluation_is_not_recorded(tmp_path: Path, arguments: SimpleNamespace) -> None:
    module = training(arguments)
    record(tmp_path / "run", module)
    run(module, TOKENS, 20, 22)
    next(RerunDataIterator(iter([{"tokens": TOKENS[0, :, :-1], "labels": TOKENS[0, :, 1:]}])))
    run(module, TOKENS, 22, 24)
    assert np.array_equal(open_run(tmp_path / "run").tokens, TOKENS[20:24])


def test_trouble_later_ends_the_recording_and_not_the_training(
    tmp_path: Path, arguments: SimpleNamespace
) -> None:
    module = training(arguments, skipped=(25,))
    record(tmp_path / "run", module)
    with pytest.warns(UserWarning, match="recording ended before step 25: step 25 was skipped"):
        assert len(run(module, TOKENS, 20, 30)) == 10
    assert open_run(tmp_path / "run").end_step == 25


def test_trouble_at_once_is_an_error(tmp_path: Path, arguments: SimpleNamespace) -> None:
    module = training(arguments)
    record(tmp_path / "run", module)
    run(module, TOKENS, 20, 22)
    later = training(arguments)
    record(tmp_path / "run", later)
    with pytest.raises(ValueError, match="holds the steps 20 to 21, so the batch of step 30"):
        run(later, TOKENS, 30, 31)


def test_data_whose_labels_are_not_the_next_tokens(
    tmp_path: Path, arguments: SimpleNamespace
) -> None:
    module = training(arguments)
    record(tmp_path / "run", module)
    iterator = RerunDataIterator(iter([{"tokens": TOKENS[0, :1], "labels": TOKENS[1, :1]}]))
    with pytest.raises(ValueError, match="not the tokens shifted by one"):
        module.train_step(lambda it: float(len(next(it))), iterator, iteration=20)


def test_recording_twice_is_refused(tmp_path: Path, arguments: SimpleNamespace) -> None:
    module = training(arguments)
    record(tmp_path / "run", module)
    with pytest.raises(RuntimeError, match="already recording into"):
        record(tmp_path / "other", module)


def test_it_must_come_after_megatron(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="not imported yet"):
        record(tmp_path / "run")


def test_it_needs_numpy_alone() -> None:
    code = "import sys, checks.record.hook; print(*sorted({n.split('.')[0] for n in sys.modules}))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    heavy = {"torch", "jax", "click", "converters", "muon_fork", "megatron"}
    assert not heavy & set(done.stdout.split())


def test_a_token_file_is_whole_after_every_step(tmp_path: Path) -> None:
    path = tmp_path / "tokens.npy"
    for step in range(100):
        TokenFile(path, 0).write(step, TOKENS[step % 40])
        assert np.load(path, mmap_mode="r").shape == (step + 1, 4, 33)
    assert np.array_equal(np.load(path)[41], TOKENS[1])
    # Data that no header counts yet is not there.
    with path.open("ab") as stream:
        stream.write(b"\1" * 64)
    assert np.load(path, mmap_mode="r").shape == (100, 4, 33)
    with pytest.raises(ValueError, match=r"shape \(3, 33\), the others have \(4, 33\)"):
        TokenFile(path, 0).write(100, TOKENS[0, :3])


def test_an_unfinished_line_does_not_swallow_the_next(tmp_path: Path) -> None:
    path = tmp_path / "losses.jsonl"
    path.write_text('{"step": 0, "lo')
    for step in (0, 1):
        append_row(path, {"step": step, "loss": 1.0})
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert rows == [{"step": 0, "loss": 1.0}, {"step": 1, "loss": 1.0}]
    path.write_text('{"step": 0, "loss": 1.0}\n{"st')
    append_row(path, {"step": 1, "loss": 2.0})
    assert path.read_text() == '{"step": 0, "loss": 1.0}\n{"step": 1, "loss": 2.0}\n'
