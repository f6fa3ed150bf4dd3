"""Real Megatron-Core resumes from what was written as if Megatron had written it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checks.tolerances import limit
from converters.megatron import names
from converters.megatron.legacy import write_legacy
from converters.megatron.open import open_source
from converters.megatron.write_torch_dist import write_torch_dist
from converters.source import Key, State

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data" / "megatron"
# What Megatron's own log says of iteration 21, the one after the checkpoint.
LOSSES = {"dense_td": 3.266538, "qknorm_td": 3.205438}
OPTIONS = {"dense_td": (), "qknorm_td": ("qknorm",)}
# The runs had their batch in two halves, so gradients are added in another order.
LIMIT = limit("replay")

pytestmark = pytest.mark.real


def resumed(folder: Path, name: str, out: Path) -> dict[str, Any]:
    """Loss, weights after one step, and loss of the step after, from real Megatron."""
    words = [sys.executable, "-m", "tests.real.megatron_resumes", folder, out, *OPTIONS[name]]
    done = subprocess.run([str(w) for w in words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    with np.load(out) as arrays:
        return dict(arrays)


def assert_equal(first: dict[str, Any], second: dict[str, Any]) -> None:
    assert first.keys() == second.keys()
    for key, value in first.items():
        np.testing.assert_array_equal(value, second[key], err_msg=key)


@pytest.mark.parametrize("name", LOSSES)
def test_written_state_is_resumed_like_the_original(name: str, tmp_path: Path) -> None:
    """The values of one iteration in the files of another are that iteration."""
    before, after = (DATA / name / f"iter_00000{n}" for n in (20, 21))
    first = resumed(before, name, tmp_path / "before.npz")
    assert first["loss"].item() == pytest.approx(LOSSES[name], abs=5e-7)
    source = open_source(after)
    for key, weight in first.items():
        if key not in ("loss", "next_loss", "iteration"):
            expected = source.tensors[Key(names.parse(key).parameter, State.WEIGHT)].load()
            np.testing.assert_allclose(weight, expected, rtol=0, atol=LIMIT, err_msg=key)

    values = {key: tensor.load for key, tensor in source.tensors.items()}
    written = write_torch_dist(before, tmp_path, values, iteration=21)
    expected = resumed(after, name, tmp_path / "after.npz")
    assert expected["iteration"] == 21
    assert expected["loss"] != first["loss"]
    assert_equal(resumed(written, name, tmp_path / "written.npz"), expected)


def test_counts_of_another_size_are_read_back(tmp_path: Path) -> None:
    """Numbers with more digits move everything behind them in the files."""
    source = open_source(DATA / "dense_td", iteration=20)
    values = {key: tensor.load for key, tensor in source.tensors.items()}
    # Iteration 100_020 has the tokens of iteration 20.
    written = write_torch_dist(source.folder, tmp_path, values, iteration=100_020)
    found = resumed(written, "dense_td", tmp_path / "found.npz")
    assert found["iteration"] == 100_020
    assert found["loss"].item() == pytest.approx(LOSSES["dense_td"], abs=5e-7)
    assert (written / ".metadata").read_bytes() != (source.folder / ".metadata").read_bytes()


def test_a_legacy_checkpoint_is_resumed_like_torch_dist(tmp_path: Path) -> None:
    """The state of iteration 21, which only torch_dist was saved at, in the files of ``torch``."""
    after = DATA / "dense_td" / "iter_0000021"
    values = {key: tensor.load for key, tensor in open_source(after).tensors.items()}
    written = write_legacy(DATA / "dense_legacy", tmp_path, values, iteration=21)
    expected = resumed(after, "dense_td", tmp_path / "after.npz")
    assert_equal(resumed(written, "dense_td", tmp_path / "written.npz"), expected)
