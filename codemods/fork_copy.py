"""The optimizer package as it lies in a migrated checkout."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from types import ModuleType

import codemods
import muon_fork

FORK = Path("third_party/optax_muon")
_SUFFIXES = (".py", ".md", ".typed")
_NOTICE = """\
This folder is a copy of the muon_fork package of the Muon toolkit. It is licensed under the Apache
License, Version 2.0, a copy of which is at http://www.apache.org/licenses/LICENSE-2.0.
muon-migrate copies it as a whole; see UPSTREAM.md for what it follows and where it differs.
"""


def fork_files() -> dict[Path, bytes]:
    """Every file of the copy, by its path below the package that holds ``third_party``."""
    source = _home(muon_fork)
    found = sorted(p for p in source.rglob("*") if p.suffix in _SUFFIXES and p.is_file())
    files = {FORK / path.relative_to(source): path.read_bytes() for path in found}
    files[FORK / "LICENSE"] = _NOTICE.encode()
    return files


def tool_identity() -> str:
    """A digest of the rewrites and the fork: another one may migrate a tree differently."""
    found = hashlib.sha256()
    for package in (codemods, muon_fork):
        for path in sorted(_home(package).rglob("*.py")):
            found.update(path.read_bytes())
    return found.hexdigest()


def _home(package: ModuleType) -> Path:
    return Path(os.path.abspath(str(package.__file__))).parent


def is_ours(fork: Path) -> bool:
    """Whether the directory holds a copy made by this tool, of any version."""
    return (fork / "version.py").is_file() and (fork / "UPSTREAM.md").is_file()


def version_of(fork: Path) -> str | None:
    """The VERSION that a copy declares, None when it cannot be read."""
    try:
        text = (fork / "version.py").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    name, _, value = text.partition("=")
    return value.strip().strip("'\"") if name.strip() == "VERSION" else None
