"""The folder of a recorded run: what is found in it, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from checks.training.errors import RunError
from checks.training.folder import open_run
from checks.training.windows import cut, windows

RUNS = Path(__file__).parents[2] / "data" / "runs"
MLA_RUN = RUNS.parent / "megatron" / "mla_run"
LOG_LINE = (
    " iteration {:8d}/    1320 | consumed samples: 4 | lm loss: {:.6E} | number of skipped "
    "iterations:   0 | number of nan iterations:   0 |"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run of 30 steps with its checkpoint at iteration 20."""
    target = tmp_path / "runs" / "qwen3"
    shutil.copytree(RUNS / "qwen3", target)
    lines = (RUNS / "qwen3" / "losses.txt").read_text().splitlines()[:30]
    (target / "losses.txt").write_text("\n".join(lines) + "\n")
    np.save(target / "tokens.npy", np.load(RUNS / "tokens.npy")[:30])
    return target


def describe(folder: Path, **told: object) -> None:
    (folder / "run.json").write_text(json.dumps(told))


@pytest.mark.parametrize("name", ["qwen3", "llama", "mla"])
def test_the_recorded_runs_open(name: str) -> None:
    run = open_run(RUNS / name)
    assert list(run.checkpoints) == [20]
    assert (run.first_step, run.end_step) == (0, 1320)
    assert run.tokens.shape == (1320, 4, 33)
    assert isinstance(run.tokens, np.memmap)
    assert run.losses.values.dtype == np.float64


def test_a_run_may_begin_at_a_later_step() -> None:
    run = open_run(MLA_RUN)
    assert (run.first_step, run.end_step, run.first_batch) == (20, 50, 20)


def test_tokens_may_lie_above(folder: Path) -> None:
    shutil.move(folder / "tokens.npy", folder.parent / "tokens.npy")
    assert open_run(folder).tokens_path == folder.parent / "tokens.npy"


def test_an_iteration_may_be_named_itself(folder: Path) -> None:
    assert list(open_run(folder / "iter_0000020").checkpoints) == [20]


def test_more_tokens_than_losses_do_no_harm(folder: Path) -> None:
    np.save(folder / "tokens.npy", np.load(RUNS / "tokens.npy")[:50])
    assert open_run(folder).end_step == 30


def test_a_log_and_a_floor(folder: Path) -> None:
    losses = [float(line) for line in (folder / "losses.txt").read_text().split()]
    (folder / "losses.txt").rename(folder / "floor.txt")
    lines = [LOG_LINE.format(n, loss) for n, loss in enumerate(losses, 1)]
    (folder / "train.log").write_text("\n".join(lines))
    describe(folder, floor_losses="floor.txt", notes=["from a log"])
    run = open_run(folder)
    assert run.losses.values == pytest.approx(losses, abs=5.01e-7)
    assert run.floor is not None
    assert run.notes[0] == "from a log"
    assert np.isnan(cut(run.losses, 0, 3)).tolist() == [False, True, False]


def test_what_the_arguments_do_not_record(folder: Path) -> None:
    describe(folder, spec={"adam_decay_style": "factor"})
    run = open_run(folder)
    assert run.spec == {"adam_decay_style": "factor"}


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (["adam_decay_style"], "spec is .*expected an object of MuonSpec fields"),
        ("factor", "spec is 'factor', expected an object"),
        (None, "spec is None, expected an object"),
        ({"adam_decay": "factor"}, "spec: unknown override adam_decay"),
        ({"adam_decay_style": "multiply"}, "adam_decay_style='multiply': expected one of subtract"),
        ({"adam_decay_style": None}, "adam_decay_style=None: expected a word"),
        ({"ns_eps": "1e-15"}, "ns_eps='1e-15': expected a float"),
        ({"split_qkv": "true"}, "split_qkv='true': expected a bool"),
        ({"beta": 1.5}, "beta=1.5: expected a decay"),
        ({"ns_dtype": ["float32"]}, r"ns_dtype=\['float32'\]: expected"),
    ],
)
def test_a_spec_that_is_none(folder: Path, spec: object, said: str) -> None:
    describe(folder, spec=spec)
    with pytest.raises(RunError, match=f"run.json: .*{said}"):
        open_run(folder)


def test_heads_are_split_only_with_projections_but_may_be_named_alone(folder: Path) -> None:
    describe(folder, spec={"split_head": True})
    assert open_run(folder).spec == {"split_head": True}


def test_windows_follow_the_checkpoints(folder: Path) -> None:
    shutil.copytree(folder / "iter_0000020", folder / "iter_0000025")
    with pytest.raises(RunError, match="iter_0000025"):
        open_run(folder)  # a copy under another name
    shutil.rmtree(folder / "iter_0000025")
    run = open_run(folder)
    (free,) = windows(run, None, restarted=False)
    assert (free.first, free.end, free.steps) == (20, 30, 10)
    two = {20: free.checkpoint, 25: free.checkpoint}
    restarted = windows(type(run)(**{**vars(run), "checkpoints": two}), 8, restarted=True)
    assert [(w.first, w.end) for w in restarted] == [(20, 25), (25, 28)]


@pytest.mark.parametrize("steps", [0, -1, 11])
def test_steps_that_were_not_recorded(folder: Path, steps: int) -> None:
    with pytest.raises(RunError, match=f"--steps {steps}: .* 10 steps after its checkpoint"):
        windows(open_run(folder), steps, restarted=False)


def test_a_window_without_a_known_loss(folder: Path) -> None:
    """The second line after a start may be a mean: here it is the only step."""
    run = open_run(folder)
    known = run.losses.known.copy()
    known[20] = False
    losses = type(run.losses)(**{**vars(run.losses), "known": known})
    unknown = type(run)(**{**vars(run), "losses": losses})
    with pytest.raises(RunError, match="no loss is known of the steps 20 to 20, after iter_0000"):
        windows(unknown, 1, restarted=False)
    assert len(windows(unknown, 2, restarted=False)) == 1


def tokens_with(folder: Path, change: str) -> None:
    tokens = np.load(RUNS / "tokens.npy")[:30].astype(np.int32)
    changed = {
        "short": tokens[:25],
        "long_rows": np.concatenate([tokens, tokens[:, :, :1]], axis=2),
        "more_rows": np.concatenate([tokens, tokens], axis=1),
        "flat": tokens[0],
        "floats": tokens.astype(np.float32),
        "objects": np.array([None], dtype=object),
        "empty": tokens[:0],
    }
    if change in changed:
        np.save(folder / "tokens.npy", changed[change])
    if change in ("padding", "negative"):
        tokens[7, 1, 3] = 255 if change == "padding" else -1
        np.save(folder / "tokens.npy", tokens)
    if change == "truncated":
        whole = (folder / "tokens.npy").read_bytes()
        (folder / "tokens.npy").write_bytes(whole[: len(whole) // 2])
    if change == "text":
        (folder / "tokens.npy").write_text("1 2 3")
    if change == "archive":
        np.savez(folder / "tokens.npz", tokens)
        (folder / "tokens.npz").rename(folder / "tokens.npy")
    if change == "gone":
        (folder / "tokens.npy").unlink()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("short", r"steps 0 to 29, .* the batches of 0 to 24"),
        ("long_rows", "seq_length is 33, the checkpoint's run has 32"),
        ("more_rows", "global_batch_size is 8, the checkpoint's run has 4"),
        ("flat", r"shape \[4, 33\], expected \[steps, batch, sequence \+ 1\]"),
        ("empty", r"shape \[0, 4, 33\]"),
        ("floats", "tokens are float32, expected integers"),
        ("objects", "not a NumPy array on disk"),
        ("padding", "token 255 in batch 7, the model's vocabulary is 0 to 254"),
        ("negative", "token -1 in batch 7"),
        ("truncated", "not a NumPy array on disk"),
        ("text", "not a NumPy array on disk"),
        ("archive", "an archive of arrays"),
        ("gone", "no tokens in it or in the folder above"),
    ],
)
def test_tokens_that_are_refused(folder: Path, change: str, message: str) -> None:
    tokens_with(folder, change)
    with pytest.raises(RunError, match=message):
        open_run(folder)


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"padded_vocab_size": 512}, "padded to 256 rows, but to 512 in the run of .*run.json"),
        ({"losses": "none.txt"}, "none.txt: no such file"),
        ({"tokens": 3}, "tokens is 3, expected a path"),
        ({"first_step": -1}, "first_step is -1"),
        ({"first_step": True}, "first_step is True"),
        ({"checkpoints": "iter_0000020"}, "expected a list of texts"),
        ({"checkpoints": ["iter_0000021"]}, "iter_0000021: no such folder"),
        ({"checkpoints": ["qwen3"]}, "qwen3: no checkpoint in it"),
        ({"loses": "x"}, "unknown key 'loses'"),
        ({"first_step": 21}, "after it comes step 20, .* steps 21 to 50"),
        ({"floor_losses": "late.jsonl"}, "steps 99 to 99, none of them in"),
    ],
)
def test_descriptions_that_are_refused(folder: Path, told: dict[str, object], message: str) -> None:
    (folder / "late.jsonl").write_text('{"step": 99, "loss": 1.0}\n')
    describe(folder, **told)
    with pytest.raises(RunError, match=message):
        open_run(folder)


def test_a_description_that_is_no_json(folder: Path) -> None:
    (folder / "run.json").write_text("{")
    with pytest.raises(RunError, match=r"run\.json: not JSON"):
        open_run(folder)


def test_a_checkpoint_after_the_last_loss(folder: Path) -> None:
    lines = (folder / "losses.txt").read_text().splitlines()
    (folder / "losses.txt").write_text("\n".join(lines[:20]))
    with pytest.raises(RunError, match=r"after it comes step 20, .* the steps 0 to 19"):
        open_run(folder)


def test_a_log_of_another_padding(folder: Path) -> None:
    vocabulary = " > padded vocab (size: 255) with 257 dummy tokens (new size: 512)\n"
    lines = [LOG_LINE.format(n, 5.0) for n in range(1, 31)]
    (folder / "losses.txt").write_text(vocabulary + "\n".join(lines))
    with pytest.raises(RunError, match=r"padded to 256 rows, but to 512 in the run of .*losses"):
        open_run(folder)


def test_two_logs(folder: Path) -> None:
    (folder / "losses.txt").unlink()
    for name in ("a.log", "b.log"):
        (folder / name).write_text("x")
    with pytest.raises(RunError, match=r"several files may hold the losses \(a.log, b.log\)"):
        open_run(folder)


def test_folders_without_a_run(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no such folder"):
        open_run(tmp_path / "nothing")
    with pytest.raises(RunError, match="no losses in it"):
        open_run(tmp_path)
    shutil.rmtree(folder / "iter_0000020")
    with pytest.raises(RunError, match="no checkpoint in it"):
        open_run(folder)


def test_a_damaged_checkpoint(folder: Path) -> None:
    (folder / "iter_0000020" / ".metadata").write_bytes(b"x")
    with pytest.raises(RunError, match="iter_0000020"):
        open_run(folder)
