"""Damaged, incomplete, mixed and hostile checkpoints: each is refused by name, none half-read."""

from __future__ import annotations

import random
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from converters.errors import CheckpointError
from converters.megatron.open import open_source
from converters.source import Key

from .corpus import CASES, MARKER, Case
from .hostile import DATA

FLIPS = 150


def read_all(folder: Path) -> dict[Key, NDArray[Any]]:
    return {key: tensor.load() for key, tensor in open_source(folder).tensors.items()}


def copied(sample: str, target: Path) -> Path:
    name = "iter_0000020"
    return Path(shutil.copytree(DATA / sample / name, target / name))


def test_there_are_enough_of_them() -> None:
    assert len(CASES) >= 150
    assert len({case.name for case in CASES}) == len(CASES)


@pytest.mark.parametrize("sample", sorted({case.sample for case in CASES}))
def test_the_samples_are_read_undamaged(sample: str, tmp_path: Path) -> None:
    assert len(read_all(copied(sample, tmp_path))) > 30


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_it_is_refused_by_name(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = copied(case.sample, tmp_path)
    case.damage(folder)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError) as caught:
        read_all(folder)
    assert re.search(case.message, str(caught.value)), str(caught.value)
    assert not (tmp_path / MARKER).exists()


@pytest.mark.parametrize("sample", ["dense_td", "bf16_td", "moe_mixed_shared_td"])
def test_a_flipped_bit_is_refused_or_changes_nothing(sample: str, tmp_path: Path) -> None:
    folder = copied(sample, tmp_path)
    expected = read_all(folder)
    chance, refused = random.Random(sample), 0
    for _ in range(FLIPS // 3):
        file = folder / chance.choice(["__0_0.distcp"] * 4 + [".metadata"])
        original = file.read_bytes()
        data = bytearray(original)
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        file.write_bytes(data)
        try:
            found = read_all(folder)
        except CheckpointError:
            refused += 1
        else:
            assert found.keys() == expected.keys()
            for key, values in found.items():
                np.testing.assert_array_equal(values, expected[key], err_msg=str(key))
        file.write_bytes(original)
    assert refused > FLIPS // 12
