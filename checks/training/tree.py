"""A MaxText on disk: where its package lies, which release it is, whether it is migrated."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from converters.maxtext.versions import NEWEST_RELEASE, VERSIONS

from .errors import RunError
from .text import read_text

# What a copy needs: packages beside each other, and the record of the release.
_COPIED = ("maxtext", "MaxText", "dependencies", "maxtext-*.dist-info")
_TRAINER = "maxtext/trainers/pre_train/train.py"
_OLDER_TRAINER = "MaxText/train.py"
_VERSION = re.compile(r"""^__version__ = ["'](\d+\.\d+\.\d+)""", re.MULTILINE)


@dataclass(frozen=True)
class Tree:
    """
    Attributes:
      named: the path as the user gave it.
      base: the folder that holds the package ``maxtext``, for the module search path.
      version: as ``converters.maxtext.versions`` calls it.
      status: of muon-migrate: ``migrated``, ``not migrated`` or ``half-applied``.
      notes: how the version was settled, where the tree does not say it.
    """

    named: Path
    base: Path
    version: str
    status: str
    notes: tuple[str, ...] = ()

    @property
    def base_yml(self) -> Path:
        return self.base / "maxtext" / "configs" / "base.yml"

    @property
    def keys(self) -> frozenset[str]:
        """Of base.yml; MaxText refuses others."""
        return frozenset(re.findall(r"^(\w+):", read_text(self.base_yml), re.MULTILINE))

    @property
    def needs_tensorflow(self) -> bool:
        """Whether it needs TensorFlow, or its stand-in, to be imported."""
        return imports_tensorflow(self.base)


def imports_tensorflow(base: Path) -> bool:
    """Whether the trainer imports TensorFlow unconditionally (releases up to 0.2.3)."""
    return "\nimport tensorflow" in read_text(base / _TRAINER)


def open_tree(path: Path) -> Tree:
    """The MaxText at ``path``: a checkout, an unpacked wheel, site-packages, or the package itself.

    Raises:
      RunError: there is none whose trainer can be run, or its state cannot be told.
    """
    path = Path(path)
    if not path.is_dir():
        raise RunError(f"{path}: no such folder: --maxtext takes a checkout or an unpacked release")
    base = next((base for base in _bases(path.resolve()) if (base / _TRAINER).is_file()), None)
    if base is None and any((base / _OLDER_TRAINER).is_file() for base in _bases(path.resolve())):
        raise RunError(
            f"{path}: a MaxText from before release 0.2.0 ({_OLDER_TRAINER}): muon-migrate takes "
            "it, but its trainer is not run here; give a checkout with the package maxtext"
        )
    if base is None:
        raise RunError(
            f"{path}: no MaxText that can be trained: expected {_TRAINER} in it or in its src "
            "(release 0.2.0 or later)"
        )
    version, notes = _version(base)
    status = muon_migrate("status", str(base))
    if status["changed_since_apply"]:
        changed = ", ".join(status["changed_since_apply"])
        notes = (*notes, f"{path}: changed since it was migrated: {changed}")
    return Tree(path, base, version, status["status"], notes)


def _bases(path: Path) -> Iterator[Path]:
    yield path
    yield path / "src"
    yield path.parent
    yield from sorted(path.glob("lib/python3*/site-packages"))


def _version(base: Path) -> tuple[str, tuple[str, ...]]:
    for record in sorted(base.glob("maxtext-*.dist-info")):
        return _known(record.name.removeprefix("maxtext-").removesuffix(".dist-info"))
    for file in ("maxtext/version.py", "maxtext/__init__.py", "MaxText/__init__.py"):
        if (base / file).is_file() and (found := _VERSION.search(read_text(base / file))):
            return _known(found[1])
    return "main", (f"{base}: says no version, taken for MaxText's main branch",)


def _known(version: str) -> tuple[str, tuple[str, ...]]:
    names = [row.name for row in VERSIONS]
    if version in names:
        return version, ()
    releases = [name for name in names if name != "main"]
    # Before the first release with Muon main was at 0.1.1, with the train state of that release.
    nearest = releases[0] if _order(version) < _order(releases[0]) else NEWEST_RELEASE
    return nearest, (f"MaxText {version} is not known, its checkpoints are taken for {nearest}'s",)


def _order(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def migrated_copy(
    tree: Tree, folder: Path, edit: Callable[[Path], None] = lambda _copy: None
) -> Tree:
    """A migrated copy of the packages in ``folder``; the tree itself is only read.

    Args:
      edit: gets the copy before it is migrated.

    Raises:
      RunError: it cannot be migrated.
    """
    folder.mkdir(parents=True)
    for pattern in _COPIED:
        for path in tree.base.glob(pattern):
            shutil.copytree(
                path,
                folder / path.name,
                ignore=shutil.ignore_patterns("assets", "__pycache__", "*.pyc"),
            )
    edit(folder)
    # Nobody else's work is in the copy, even where the folder happens to lie in a git checkout.
    muon_migrate("apply", str(folder), "--reference", "megatron", "--allow-dirty")
    copied = open_tree(folder)
    note = f"{tree.named} is not migrated: a copy was, by muon-migrate apply; it was not touched"
    return Tree(tree.named, copied.base, tree.version, copied.status, (*tree.notes, note))


def muon_migrate(*arguments: str) -> dict[str, Any]:
    """What muon-migrate says, as its JSON. The two commands share no code, so it is called.

    Raises:
      RunError: it refused; the message is its own.
    """
    command = [sys.executable, "-m", "codemods.cli", *arguments, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        raise RunError(
            f"muon-migrate {' '.join(arguments)} failed: {done.stderr.strip()[-500:]}"
        ) from None
    if answer["problems"]:
        problem = answer["problems"][0]
        place = problem.get("path") or arguments[1]
        raise RunError(f"muon-migrate {arguments[0]}: {place}: {problem['message']}")
    return answer
