"""Writing several files all or not at all, with failures at every step."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from codemods.changes import Change, make_directories, obstacles, transaction, write_all
from codemods.errors import MigrateError
from tests.codemods.trees import snapshot


def _tree(root: Path) -> list[Change]:
    """Two files to change, one to remove, two to create in a new folder."""
    for name in ("a", "b", "old"):
        (root / name).write_text(name)
        os.utime(root / name, ns=(10**18, 10**18))
    (root / "b").chmod(0o751)
    return [
        Change(root / "a", b"a", b"A"),
        Change(root / "b", b"b", b"B"),
        Change(root / "old", b"old", None),
        Change(root / "new" / "c", None, b"C"),
        Change(root / "new" / "d", None, b"D"),
    ]


def _write(changes: list[Change]) -> None:
    with transaction() as undo:
        make_directories([change.path.parent for change in changes], undo)
        write_all(changes, undo)


def test_everything_is_written_and_modes_are_kept(tmp_path: Path) -> None:
    _write(_tree(tmp_path))
    found = {name: row for name, row in snapshot(tmp_path).items() if row[0] != "directory"}
    assert sorted(found) == ["a", "b", "new/c", "new/d"]
    assert [(tmp_path / name).read_text() for name in found] == ["A", "B", "C", "D"]
    assert found["b"][1] == 0o751
    umask = os.umask(0)
    os.umask(umask)
    assert found["new/c"][1] == 0o666 & ~umask


_STEPS = [("replace", n) for n in range(4)] + [("fsync", n) for n in range(4)] + [("mkdir", 0)]


@pytest.mark.parametrize(("call", "successes"), _STEPS)
@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), KeyboardInterrupt()], ids=["full", "stopped"]
)
def test_a_failure_at_any_step_leaves_the_tree_as_it_was(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    call: str,
    successes: int,
    error: BaseException,
) -> None:
    changes = _tree(tmp_path)
    before = snapshot(tmp_path)
    real, calls = getattr(os, call), []

    def fails_once(*arguments: Any, **options: Any) -> Any:
        calls.append(arguments)
        if len(calls) == successes + 1:
            raise error
        return real(*arguments, **options)

    monkeypatch.setattr(os, call, fails_once)
    with pytest.raises((MigrateError, KeyboardInterrupt)) as caught:
        _write(changes)
    monkeypatch.undo()
    assert snapshot(tmp_path) == before
    if isinstance(error, OSError):
        assert str(caught.value).endswith("No space left on device; nothing was changed")
    if call == "fsync" and isinstance(error, OSError):  # the only step whose error names no file
        written = [change.path for change in changes if change.after is not None]
        assert str(caught.value).startswith(f"{written[successes]}: ")


def test_a_directory_that_becomes_a_file_half_way_is_rolled_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No permission bits involved, so that it also holds for root."""
    changes = _tree(tmp_path)
    before = snapshot(tmp_path)
    real, calls = os.replace, []

    def sabotage(source: Path, target: Path) -> None:
        calls.append(target)
        if len(calls) == 2:
            source.unlink()
        real(source, target)

    monkeypatch.setattr(os, "replace", sabotage)
    with pytest.raises(MigrateError, match="nothing was changed"):
        _write(changes)
    assert snapshot(tmp_path) == before


def test_a_roll_back_that_fails_says_what_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = _tree(tmp_path)
    real, calls = os.replace, []

    def fails_from_the_second_on(source: Path, target: Path) -> None:
        calls.append(target)
        if len(calls) >= 2:
            raise OSError(5, "Input/output error", str(target))
        real(source, target)

    monkeypatch.setattr(os, "replace", fails_from_the_second_on)
    with pytest.raises(MigrateError) as caught:
        _write(changes)
    assert "not everything could be put back" in str(caught.value)
    assert f"{tmp_path / 'a'}: could not be put back" in str(caught.value)


def test_obstacles_are_seen_before_anything_is_written(tmp_path: Path) -> None:
    changes = _tree(tmp_path)
    (tmp_path / "a").chmod(0o444)
    (tmp_path / "b").unlink()
    (tmp_path / "b").symlink_to("a")
    (tmp_path / "old").unlink()
    (tmp_path / "old").mkdir()
    (tmp_path / "new").write_text("in the way")
    found = {str(problem).removeprefix(f"{tmp_path}/") for problem in obstacles(changes)}
    assert found == {
        "a: is read-only: make it writable (chmod u+w)",
        "b: is a symbolic link to a: replace it by a file",
        "old: is in the way: a file must be written here",
        "new: is in the way: a directory is needed here",
    }


def test_a_read_only_directory_is_an_obstacle_even_to_root(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir(mode=0o555)
    (problem,) = obstacles([Change(tmp_path / "sub" / "x", None, b"")])
    (tmp_path / "sub").chmod(0o755)
    assert str(problem) == f"{tmp_path}/sub: is read-only: make it writable (chmod u+w)"
