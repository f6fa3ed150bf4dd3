"""Small MaxText trees, and what a test wants to know about them."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import shutil
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from codemods.cli import main

GOLDEN = Path(__file__).parent / "golden"
SMALL = "release-0.2.5"  # the tree with the most to migrate


@dataclass(frozen=True)
class Result:
    """How one ``muon-migrate`` command ended."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        loaded: dict[str, Any] = json.loads(self.out)
        return loaded


def migrate(*arguments: str | Path) -> Result:
    """``muon-migrate`` in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main([str(argument) for argument in arguments])
        except SystemExit as error:
            code = error.code
    assert isinstance(code, int)
    return Result(code, out.getvalue(), err.getvalue())


def refused(root: Path, *options: str) -> str:
    """An apply that must not work: exit 2, no traceback, the tree untouched. Returns stderr."""
    before = snapshot(root)
    result = migrate("apply", root, *options)
    assert result.code == 2, result
    assert result.err.startswith("muon-migrate: ")
    assert "Traceback" not in result.err
    assert snapshot(root) == before
    return result.err


def snapshot(root: Path) -> dict[str, tuple[str, int, int]]:
    """Digest, mode and modification time of every file; mode alone of every directory."""
    found = {}
    for path in sorted(root.rglob("*")):
        if ".git" in path.parts or "__pycache__" in path.parts:
            continue
        seen = path.lstat()
        mode = stat.S_IMODE(seen.st_mode)
        name = path.relative_to(root).as_posix()
        if path.is_symlink():
            found[name] = (f"-> {path.readlink()}", mode, seen.st_mtime_ns)
        elif path.is_dir():
            found[name] = ("directory", mode, 0)
        else:
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            found[name] = (digest, mode, seen.st_mtime_ns)
    return found


def edit(path: Path, change: Callable[[bytes], bytes]) -> None:
    """A file's bytes through ``change``."""
    path.write_bytes(change(path.read_bytes()))


def copy_of(name: str, destination: Path) -> Path:
    """A hand-written tree from the golden files, as it is before a migration."""
    shutil.copytree(GOLDEN / name / "before", destination)
    return destination
