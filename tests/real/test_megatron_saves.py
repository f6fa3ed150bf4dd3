"""What real Megatron-Core saves is read as what its model and optimizers hold."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from converters.megatron import names
from converters.megatron.open import open_source
from converters.megatron.write_torch_dist import write_torch_dist
from converters.source import Key, State

from .test_megatron_muon import older_megatron

ROOT = Path(__file__).parents[2]
# Release, and how the model is built and saved.
CASES = (
    ("0.19.2", "moe singleton"),
    ("0.19.2", "mixed mtp"),
    ("0.19.2", "bf16 mixed singleton mtp"),
    ("0.17.1", "bf16 moe"),
    ("0.17.1", "mixed singleton"),
)
STATES = {state.value: state for state in State}

pytestmark = pytest.mark.real


def saved(version: str, options: str, target: Path) -> Path:
    """An iteration's folder that Megatron wrote, and ``arrays.npz`` beside it."""
    folder = target / "iter_0000002"
    words = [sys.executable, "-m", "tests.real.megatron_saves", str(folder), f"{target}/arrays.npz"]
    path = str(older_megatron()) if version == "0.17.1" else ""
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(
        [*words, *options.split()], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert (folder / "common.pt").exists() == (version == "0.17.1")
    return folder


@pytest.mark.parametrize(("version", "options"), CASES)
def test_everything_is_found_under_its_name(version: str, options: str, tmp_path: Path) -> None:
    folder = saved(version, options, tmp_path)
    source = open_source(folder)
    found = set()
    with np.load(tmp_path / "arrays.npz") as arrays:
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
    values_of = {key: tensor.load for key, tensor in source.tensors.items()}
    written = write_torch_dist(folder, tmp_path / "out", values_of)
    for file in folder.iterdir():
        assert (written / file.name).read_bytes() == file.read_bytes(), file.name
