"""Whatever is wrong with a legacy checkpoint, an error names it; nothing is read wrongly."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from converters.errors import CheckpointError
from converters.megatron.open import open_source

from . import hostile
from .legacy_cases import BF16, CASES, DENSE, EP2, FLAT4, WISE
from .legacy_damage import WISE_1
from .legacy_files import FLAT, MODEL, copy, edit, flip

PAYLOADS = tuple(hostile.payloads(Path("marker")))


def read_all(folder: Path) -> None:
    for tensor in open_source(folder).tensors.values():
        tensor.load()


@pytest.mark.parametrize("name", CASES)
def test_damage_is_named(name: str, tmp_path: Path) -> None:
    sample, damage, message = CASES[name]
    folder = copy(sample, tmp_path)
    damage(folder)
    with pytest.raises(CheckpointError) as caught:
        read_all(folder)
    assert re.search(message, str(caught.value)), str(caught.value)


@pytest.mark.parametrize("sample", [DENSE, "twins/adam_distopt_legacy"])
def test_a_flipped_bit_changes_nothing_or_is_refused(sample: str, tmp_path: Path) -> None:
    folder = copy(sample, tmp_path)
    good = {key: t.load().tobytes() for key, t in open_source(folder).tensors.items()}
    refused: list[str] = []
    random = Random(5)
    for _ in range(40):
        file = random.choice(sorted(folder.glob("*/*.pt")))
        data = file.read_bytes()
        # Half of them where the archive describes itself.
        place = random.choice([random.randrange(len(data)), random.randrange(-9000, 0)])
        flip(file, place, random.randrange(8))
        try:
            bad = {key: t.load().tobytes() for key, t in open_source(folder).tensors.items()}
        except CheckpointError as error:
            refused.append(f"{file.name in str(error)}: {error}")
        else:
            assert bad == good, (file, place)
        file.write_bytes(data)
    assert len(refused) > 10
    assert [error for error in refused if error.startswith("False")] == []


@pytest.fixture
def marker(tmp_path: Path) -> Iterator[Path]:
    file = tmp_path / "executed"
    yield file
    assert not file.exists()


@pytest.mark.parametrize("file", [MODEL, FLAT])
@pytest.mark.parametrize("name", PAYLOADS)
def test_no_pickle_is_executed(name: str, file: str, marker: Path, tmp_path: Path) -> None:
    folder = copy(FLAT4, tmp_path)
    attack = hostile.archive(hostile.payloads(marker)[name])
    (folder / "mp_rank_01_001" / file).write_bytes(attack)
    with pytest.raises(CheckpointError, match=f"mp_rank_01_001/{file}"):
        read_all(folder)


@pytest.mark.parametrize("name", PAYLOADS)
def test_no_layer_wise_pickle_is_executed(name: str, marker: Path, tmp_path: Path) -> None:
    folder = copy(WISE, tmp_path)
    attack = hostile.archive(hostile.payloads(marker)[name])
    (folder / "mp_rank_00" / WISE_1).write_bytes(attack)
    with pytest.raises(CheckpointError, match=WISE_1):
        read_all(folder)


@pytest.mark.parametrize("sample", [DENSE, BF16, FLAT4, EP2])
def test_edited_but_unharmed_is_read(sample: str, tmp_path: Path) -> None:
    """The edits above change nothing else."""
    folder = copy(sample, tmp_path)
    for rank in folder.iterdir():
        edit(rank / MODEL, lambda _state: None)
    read_all(folder)
