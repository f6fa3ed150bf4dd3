"""Losses of every format, and what each refuses."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from checks.training.errors import RunError
from checks.training.loss_formats import FORMATS
from checks.training.losses import Losses, read_losses

LINE = (
    " [2026-08-22 10:00:00] iteration {:8d}/    1320 | consumed samples: {:12d} | elapsed time per "
    "iteration (ms): 15.3 | learning rate: 2.000000E-03 | global batch size:     4 | lm loss: {} | "
    "loss scale: 1.0 | grad norm: 1.333 | number of skipped iterations: {:3d} | number of nan "
    "iterations:   0 |"
)


def read(path: Path, first_step: int = 0) -> Losses:
    return read_losses(path, first_step, FORMATS)


def written(folder: Path, name: str, *lines: str) -> Path:
    path = folder / name
    path.write_text("\n".join(lines) + "\n")
    return path


def log_line(iteration: int, loss: float | str, skipped: int = 0) -> str:
    text = loss if isinstance(loss, str) else f"{loss:.6E}"
    return LINE.format(iteration, 4 * iteration, text, skipped)


def test_text_has_one_number_a_line(tmp_path: Path) -> None:
    losses = read(written(tmp_path, "x", "5.5658674240112305", "5.5", "4.25", ""), first_step=20)
    assert losses.first_step == 20
    assert losses.values.tolist() == [5.5658674240112305, 5.5, 4.25]
    assert losses.precision < 1e-15
    assert losses.known.all()


def test_numbers_printed_alike_are_as_coarse_as_their_last_digit(tmp_path: Path) -> None:
    assert read(written(tmp_path, "a", "5.566", "5.500")).precision == pytest.approx(5e-4)
    exponents = written(tmp_path, "b", "1.084321E+01", "9.984321E+00")
    assert read(exponents).precision == pytest.approx(5e-6)


def test_json_lines_number_their_steps(tmp_path: Path) -> None:
    rows = [{"step": s, "loss": 3.0 + s / 7, "lr": 1e-3} for s in (4, 5, 6)]
    lines = [*map(json.dumps, rows), json.dumps({"step": 6, "validation": 1.0})]
    losses = read(written(tmp_path, "x", *lines))
    assert losses.first_step == 4
    assert losses.values.tolist() == [row["loss"] for row in rows]
    assert "1 lines without a loss" in losses.notes[0]


def test_an_iteration_is_counted_from_one(tmp_path: Path) -> None:
    losses = read(written(tmp_path, "x", '{"iteration": 1, "lm loss": 5.5}'))
    assert losses.first_step == 0


def test_a_repeated_step_counts_as_it_was_last(tmp_path: Path) -> None:
    rows = ['{"step": 0, "loss": 5.5}', '{"step": 1, "loss": 9.0}', '{"step": 1, "loss": 5.25}']
    losses = read(written(tmp_path, "x", *rows))
    assert losses.values.tolist() == [5.5, 5.25]
    assert "occur again" in losses.notes[0]


def test_megatrons_log(tmp_path: Path) -> None:
    vocabulary = " > padded vocab (size: 255) with 1 dummy tokens (new size: 256)"
    lines = [vocabulary, "other", *(log_line(n, 5.5 - n / 10) for n in range(21, 26))]
    losses = read(written(tmp_path, "train.log", *lines))
    assert losses.first_step == 20
    assert losses.values == pytest.approx([3.4, 3.3, 3.2, 3.1, 3.0])
    # The mean of the first two, which Megatron prints second, is no step's loss.
    assert losses.known.tolist() == [True, False, True, True, True]
    assert losses.precision == pytest.approx(5e-7)
    assert losses.padded_vocab_size == 256
    assert any("mean of the first two" in note for note in losses.notes)


def test_a_log_of_two_starts(tmp_path: Path) -> None:
    start = "[before the start of training step] datetime: 2026-08-22"
    first = [log_line(n, 3.0) for n in (1, 2, 3, 4)]
    again = [log_line(n, 2.0) for n in (3, 4, 5)]
    losses = read(written(tmp_path, "a.log", start, *first, start, *again))
    assert losses.values.tolist() == [3.0, 3.0, 2.0, 2.0, 2.0]
    assert losses.known.tolist() == [True, False, True, False, True]
    consecutive = read(written(tmp_path, "b.log", *first[:2], start, *again))
    assert consecutive.known.tolist() == [True, False, True, False, True]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["5.5", "nan"], "the loss of step 1 is nan"),
        (["5.5", "inf"], "the loss of step 1 is inf"),
        (["5.5", "five"], ":2: 'five' is no number"),
        (["hello"], "no losses that can be read"),
        ([""], "no losses that can be read"),
        (['{"step": 0, "loss": 5.5}', "{"], ":2: not JSON"),
        (['{"step": 0, "loss": "a"}'], "the loss is 'a'"),
        (['{"step": 0, "loss": NaN}'], "the loss of step 0 is nan"),
        (['{"step": -1, "loss": 1.0}'], "step is -1"),
        (['{"iteration": 0, "loss": 1.0}'], "iteration is 0"),
        (['{"loss": 1.0}'], "a loss without its step"),
        (['{"lr": 1.0}'], "holds no loss"),
        (['{"step": 0, "loss": 1.0}', '{"step": 2, "loss": 1.0}'], "step 1 is missing"),
        ([log_line(1, 3.0), log_line(3, 3.0)], "--log-interval 1"),
        ([log_line(1, "nan")], "the loss of step 0 is nan"),
        ([log_line(1, 3.0, skipped=1)], "1 skipped iterations"),
        ([log_line(1, 3.0).replace("lm loss", "loss")], "an iteration without 'lm loss'"),
    ],
)
def test_what_is_refused(tmp_path: Path, lines: list[str], message: str) -> None:
    path = written(tmp_path, "losses", *lines)
    with pytest.raises(RunError, match=message) as caught:
        read(path)
    assert str(path) in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no such file"):
        read(tmp_path / "losses.txt")


def test_values_are_float64(tmp_path: Path) -> None:
    assert read(written(tmp_path, "x", "5.5")).values.dtype == np.float64


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["1.5", "", "1.25"], "x:2: '' is no number"),
        (["1.5", "sNaN"], "x:2: 'sNaN' is no number"),
        (["1.5", "1_0.5"], "x:2: '1_0.5' is no number"),
        (["1.5", "١.٥"], "x:2: '١.٥' is no number"),
        (["1e999"], "loss of step 0 is inf"),
        (['{"step": 0, "loss": 2}', '{"step": 1000000000000, "loss": 2}'], "of step 1 is missing"),
    ],
)
def test_numbers_that_are_none(tmp_path: Path, lines: list[str], message: str) -> None:
    with pytest.raises(RunError, match=message):
        read(written(tmp_path, "x", *lines))


def test_a_byte_order_mark_is_no_loss(tmp_path: Path) -> None:
    file = tmp_path / "x"
    file.write_bytes(b"\xef\xbb\xbf1.5\r\n1.25\r\n")
    assert read(file).values.tolist() == [1.5, 1.25]
