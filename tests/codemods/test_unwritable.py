"""Trees that cannot be written, or whose own Python cannot run what was written."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.codemods.trees import edit, migrate, refused, snapshot

OPTIMIZER = "maxtext/optimizers/optimizers.py"
TYPES = "maxtext/configs/types.py"


def test_a_read_only_file_is_refused(tree: Path) -> None:
    (tree / TYPES).chmod(0o444)
    assert f"{TYPES}: is read-only: make it writable" in refused(tree)


def test_a_symbolic_link_is_refused(tree: Path) -> None:
    (tree / TYPES).rename(tree / "real_types.py")
    (tree / TYPES).symlink_to(tree / "real_types.py")
    assert f"{TYPES}: is a symbolic link to {tree}/real_types.py" in refused(tree)


@pytest.mark.parametrize("place", ["maxtext", "maxtext/configs", "maxtext/third_party"])
def test_a_directory_behind_a_symbolic_link_is_refused(
    tree: Path, tmp_path: Path, place: str
) -> None:
    """It may belong to another checkout, whose git nobody asked."""
    elsewhere = tmp_path / "elsewhere"
    if (tree / place).exists():
        (tree / place).rename(elsewhere)
    else:
        elsewhere.mkdir()
    (tree / place).symlink_to("../" * len(Path(place).parts) + "elsewhere")
    before = snapshot(elsewhere)
    assert f"{place}: is a symbolic link to ../" in refused(tree)
    assert snapshot(elsewhere) == before


def test_something_in_the_way_of_the_fork_is_refused(tree: Path) -> None:
    (tree / "maxtext/third_party").write_text("a file\n")
    assert "maxtext/third_party: is in the way: a directory is needed here" in refused(tree)


@pytest.mark.parametrize("successes", [0, 5, 12, 20])
def test_a_directory_that_turns_read_only_half_way_is_rolled_back(
    tree: Path, monkeypatch: pytest.MonkeyPatch, successes: int
) -> None:
    real, calls = os.replace, []

    def replace(source: Path, target: Path) -> None:
        calls.append(target)
        if len(calls) == successes + 1:
            raise PermissionError(13, "Permission denied", str(target))
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)
    assert "Permission denied; nothing was changed" in refused(tree)
    monkeypatch.undo()
    assert migrate("apply", tree).code == 0


def test_a_file_that_changes_under_the_tool_is_not_overwritten(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from codemods import commit

    real = commit.check_ground

    def edits_first(*arguments: object) -> None:
        edit(tree / OPTIMIZER, lambda d: d + b"# someone else\n")
        real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(commit, "check_ground", edits_first)
    result = migrate("apply", tree)
    assert result.code == 2
    assert f"{OPTIMIZER}: changed while muon-migrate was reading" in result.err
    assert not (tree / "maxtext/third_party").exists()


def test_a_python_that_cannot_build_the_optimizer_takes_everything_back(
    tree: Path, tmp_path: Path
) -> None:
    for absent in (str(tmp_path / "python"), "./python", ""):
        assert f"--python {absent!r} cannot be run" in refused(tree, "--python", absent)
    broken = tmp_path / "broken"
    broken.write_text(f'#!/bin/sh\nexec {sys.executable} -S -E "$@"\n')
    broken.chmod(0o755)
    assert "does not run there, nothing was kept: ModuleNotFoundError" in refused(
        tree, "--python", str(broken)
    )


def test_a_python_that_builds_the_optimizer_is_content(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relative path is one of the user's directory."""
    python = Path(sys.executable)
    monkeypatch.chdir(python.parent)
    result = migrate("apply", tree, "--python", f"./{python.name}")
    assert (result.code, result.err) == (0, "")
