"""What git says about the files that are about to change. No answer is never a clean answer."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from codemods.errors import MigrateError, Problem
from codemods.layout import Layout

_TIMEOUT_SECONDS = 60
_OPTIONS = ("--no-optional-locks", "--literal-pathspecs")
# A hook's or a wrapper's variables would answer for another repository.
_FOREIGN = {
    "GIT_COMMON_DIR",
    "GIT_DIR",
    "GIT_INDEX_FILE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_PREFIX",
    "GIT_WORK_TREE",
}
_STATES = {"?": "is not tracked by git", "U": "has an unresolved merge"}


def is_work_tree(layout: Layout) -> bool:
    """Whether a ``.git`` lies at the package or above it."""
    return any((parent / ".git").exists() for parent in (layout.package, *layout.package.parents))


def dirty(layout: Layout, paths: Sequence[Path]) -> list[Problem]:
    """One problem per file that git could not give back as it is now.

    Ignored files are no concern of git's and are left out: the tool's own copy must do for them.

    Raises:
      MigrateError: git is missing or fails, so that nothing is known.
    """
    if not paths:
        return []
    names = [os.path.relpath(path, layout.package) for path in paths]
    fields = _git(layout, "status", "--porcelain=v1", "-z", "--untracked-files=all", "--", *names)
    top = Path(_git(layout, "rev-parse", "--show-toplevel").rstrip("\n"))
    problems = []
    rows = iter(fields.split("\0"))
    for row in rows:
        if not row:
            continue
        state, path = row[:2], top / row[3:]
        if "R" in state or "C" in state:
            next(rows, None)  # A rename names its origin in a field of its own.
        why = next((_STATES[c] for c in state if c in _STATES), "has uncommitted changes")
        problems.append(Problem(f"{why}: commit it, or pass --allow-dirty", layout.relative(path)))
    return problems


def _git(layout: Layout, *arguments: str) -> str:
    command = ["git", *_OPTIONS, "-C", str(layout.package), *arguments]
    environment = {k: v for k, v in os.environ.items() if k not in _FOREIGN}
    try:
        answer = subprocess.run(
            command, capture_output=True, timeout=_TIMEOUT_SECONDS, env=environment, check=False
        )
    except FileNotFoundError:
        raise MigrateError(_unknown(layout, "git is not installed")) from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MigrateError(_unknown(layout, str(error))) from None
    if answer.returncode:
        reason = answer.stderr.decode(errors="replace").strip() or f"exit {answer.returncode}"
        raise MigrateError(_unknown(layout, reason))
    return os.fsdecode(answer.stdout)


def _unknown(layout: Layout, reason: str) -> Problem:
    message = (
        f"git cannot say whether the files are committed ({reason}); make git work here, or pass "
        "--allow-dirty to rely on muon-migrate's own copies"
    )
    return Problem(message, str(layout.root))
