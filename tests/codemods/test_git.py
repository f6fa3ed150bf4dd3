"""What counts as dirty, and that no answer is not a clean one. Real repositories throughout."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from codemods import git
from codemods.errors import MigrateError
from codemods.layout import Layout


@pytest.fixture
def repository(tmp_path: Path) -> Layout:
    root = tmp_path / "maxtext checkout"
    package = root / "src" / "maxtext"
    package.mkdir(parents=True)
    (package / "a.py").write_text("x = 1\n")
    (package / "ümlaut.py").write_text("x = 1\n")
    _git(root, "init", "-q")
    _git(root, "add", "-A")
    _git(root, "-c", "user.name=t", "-c", "user.email=t@t", "commit", "-qm", "start")
    return Layout("maxtext", root, package, {})


def _git(root: Path, *arguments: str) -> None:
    subprocess.run(["git", "-C", str(root), *arguments], check=True, capture_output=True)


def _dirty(layout: Layout, *names: str) -> list[str]:
    return [str(p) for p in git.dirty(layout, [layout.package / name for name in names])]


def test_committed_files_are_clean(repository: Layout) -> None:
    assert git.is_work_tree(repository)
    assert _dirty(repository, "a.py", "ümlaut.py") == []


def test_only_the_files_asked_for_count(repository: Layout) -> None:
    (repository.package / "other.py").write_text("")
    (repository.package / "ümlaut.py").write_text("x = 2\n")
    assert _dirty(repository, "a.py") == []
    advice = "has uncommitted changes: commit it, or pass --allow-dirty"
    assert _dirty(repository, "a.py", "ümlaut.py") == [f"src/maxtext/ümlaut.py: {advice}"]


def test_staged_and_renamed_and_untracked_files_are_dirty(repository: Layout) -> None:
    _git(repository.root, "mv", "src/maxtext/a.py", "src/maxtext/b.py")
    (repository.package / "c.py").write_text("")
    (repository.package / "ümlaut.py").write_text("x = 2\n")
    _git(repository.root, "add", "src/maxtext/ümlaut.py")
    found = _dirty(repository, "b.py", "c.py", "ümlaut.py")
    assert len(found) == 3
    assert any(line.startswith("src/maxtext/c.py: is not tracked by git") for line in found)


def test_ignored_files_are_no_concern_of_git(repository: Layout) -> None:
    (repository.root / ".gitignore").write_text("build/\n")
    (repository.package / "build").mkdir()
    (repository.package / "build" / "x.py").write_text("")
    assert _dirty(repository, "build/x.py") == []


def test_the_index_is_not_touched(repository: Layout) -> None:
    index = repository.root / ".git" / "index"
    (repository.package / "a.py").write_text("x = 1\n")
    before = index.stat().st_mtime_ns
    _dirty(repository, "a.py")
    assert index.stat().st_mtime_ns == before


def test_a_hooks_environment_does_not_answer_for_another_repository(
    repository: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (repository.package / "a.py").write_text("x = 2\n")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    assert len(_dirty(repository, "a.py")) == 1


def test_without_git_nothing_is_known(repository: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(MigrateError, match=r"git is not installed.*--allow-dirty"):
        _dirty(repository, "a.py")


def test_a_git_that_fails_is_not_a_clean_tree(repository: Layout) -> None:
    (repository.root / ".git" / "HEAD").unlink()
    with pytest.raises(MigrateError, match="git cannot say"):
        _dirty(repository, "a.py")


def test_outside_a_repository_there_is_nothing_to_ask(tmp_path: Path) -> None:
    assert not git.is_work_tree(Layout("maxtext", tmp_path, tmp_path / "maxtext", {}))
