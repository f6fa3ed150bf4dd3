"""Results that several files of tests look at."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.converters.commands import DENSE, run


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("done") / "out"
    result = run("megatron2orbax", DENSE, "--out", out)
    assert result.exit_code == 0, result.output
    assert result.stdout.strip() == str(out / "20/items")
    return out


@pytest.fixture
def copied(done: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(done, tmp_path / "copied"))
