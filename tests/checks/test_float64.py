"""What a comparison in float64 changes: names in torch, one line of MaxText, the limit."""

from __future__ import annotations

import difflib
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from checks.references.megatron_cpu.float64 import float64_for_float32
from checks.training.errors import RunError
from checks.training.float64 import ALLOW, EXACT, allow_float64
from checks.training.gates import gate_of
from checks.training.how import How
from muon_fork.presets import preset
from tests.real.maxtext.trainer import built

TYPES = """\
class DType(str, Enum):
  FLOAT32 = "float32"
  FLOAT16 = "float16"
"""


def test_names_of_float32_mean_float64_within_the_block_only() -> None:
    usual, single = torch.float32, torch.ones(2)
    with float64_for_float32():
        assert torch.float32 is torch.float is torch.float64
        third = torch.ones(2) / 3
        assert third.dtype is single.float().dtype is torch.float64
        assert float(third[0]) == np.float64(1) / 3
        assert torch.zeros(1, dtype=torch.float).type() == "torch.FloatTensor"
    assert torch.float32 is torch.float is usual is not torch.float64
    assert torch.ones(2).dtype is single.double().float().dtype is usual
    assert torch.ones(1).double().type() == "torch.DoubleTensor"


def test_names_come_back_after_an_error() -> None:
    usual = torch.float32
    with pytest.raises(KeyError), float64_for_float32():
        raise KeyError
    assert torch.float32 is usual is torch.get_default_dtype()


def test_maxtext_is_given_one_line(tmp_path: Path) -> None:
    file = tmp_path / "maxtext/configs/types.py"
    file.parent.mkdir(parents=True)
    file.write_text(TYPES)
    allow_float64(tmp_path)
    assert file.read_text() == TYPES + '  FLOAT64 = "float64"\n'
    with pytest.raises(RunError, match=r"types\.py: expected 'FLOAT16"):
        allow_float64(tmp_path)
    file.write_text(TYPES)
    with pytest.raises(RunError, match=r"normalizations\.py: expected 'jnp\.float32'"):
        allow_float64(tmp_path, exact=True)


def test_the_released_maxtext_is_as_the_edits_expect(tmp_path: Path) -> None:
    release = built("releases") / "0.2.5"
    for edit in (*ALLOW, *EXACT):
        (tmp_path / edit.file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(release / edit.file, tmp_path / edit.file)
    allow_float64(tmp_path, exact=True)
    for edit in (*ALLOW, *EXACT):
        before, after = (place / edit.file for place in (release, tmp_path))
        changed = [
            line
            for line in difflib.ndiff(*(f.read_text().splitlines() for f in (before, after)))
            if line.startswith("+ ")
        ]
        assert changed
        assert all(edit.new.strip().splitlines()[-1].strip() in line for line in changed)


def test_limits_in_float64_are_its_own() -> None:
    spec = preset("megatron").replace(ns_dtype="float64")
    assert gate_of(spec, {}, How(float64=True)).row == "training_f64"
    assert gate_of(spec, {}, How(float64=True, exact=True)).row == "training_f64_exact"
