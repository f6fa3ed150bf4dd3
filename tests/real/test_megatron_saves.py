"""What real Megatron-Core saves is read as what its model and optimizers hold."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from converters.megatron import names
from converters.megatron.open import open_source
from converters.megatron.write_torch_dist import write_torch_dist
from converters.source import Array, Key, State

from .test_megatron_muon import older_megatron

ROOT = Path(__file__).parents[2]
# Release, and how the model is built and saved.
CASES = (
    ("0.19.2", "mixed mtp"),
    ("0.19.2", "bf16 mixed singleton mtp"),
    ("0.17.1", "bf16 moe singleton"),
)
STATES = {state.value: state for state in State}

pytestmark = pytest.mark.real


def megatron(version: str, folder: Path, out: Path, *options: str) -> dict[str, Any]:
    """Save the folder, or load it, in real Megatron; what model and optimizers then hold."""
    path = str(older_megatron()) if version == "0.17.1" else ""
    done = subprocess.run(
        [sys.executable, "-m", "tests.real.megatron_saves", str(folder), str(out), *options],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert (folder / "common.pt").exists() == (version == "0.17.1")
    with np.load(out) as arrays:
        return dict(arrays)


@pytest.mark.parametrize(("version", "options"), CASES)
def test_everything_is_found_under_its_name(version: str, options: str, tmp_path: Path) -> None:
    folder = tmp_path / "iter_0000002"
    arrays = megatron(version, folder, tmp_path / "saved.npz", *options.split())
    source = open_source(folder)
    found = set()
    for entry, expected in arrays.items():
        name, _, state = entry.partition("|")
        parsed = names.parse(name)
        key = Key(parsed.parameter, STATES[state])
        found.add(key)
        values = source.tensors[key].load().astype(np.float32)
        values = values if parsed.expert is None else values[parsed.expert]
        np.testing.assert_array_equal(values, expected, err_msg=entry)
    assert found == source.tensors.keys()
    assert ("mtp.layers.0.eh_proj.weight", State.MOMENTUM) in found or "mtp" not in options
    (tmp_path / "out").mkdir()
    same = {key: tensor.load for key, tensor in source.tensors.items()}
    written = write_torch_dist(folder, tmp_path / "out", same)
    for file in folder.iterdir():
        assert (written / file.name).read_bytes() == file.read_bytes(), file.name


def test_new_values_arrive_in_megatron(tmp_path: Path) -> None:
    """Weights, masters and every state of experts, halves and prediction layers."""
    version, options = CASES[1]
    folder = tmp_path / "iter_0000002"
    arrays = megatron(version, folder, tmp_path / "saved.npz", *options.split())
    source = open_source(folder)

    def half(load: Callable[[], Array]) -> Callable[[], Array]:
        return lambda: load().astype(np.float32) / 2

    values = {key: half(tensor.load) for key, tensor in source.tensors.items()}
    (tmp_path / "out").mkdir()
    written = write_torch_dist(folder, tmp_path / "out", values, iteration=12_345)
    loaded = megatron(version, written, tmp_path / "loaded.npz", "load", *options.split())
    assert loaded.keys() == arrays.keys()
    for entry, expected in arrays.items():
        np.testing.assert_array_equal(loaded[entry], expected / 2, err_msg=entry)
