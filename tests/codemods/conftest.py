"""The golden trees hold MaxText's tests, which are material here and no tests of ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.codemods.trees import SMALL, copy_of

collect_ignore = ["golden"]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A small MaxText of its own for each test."""
    return copy_of(SMALL, tmp_path / "tree")
