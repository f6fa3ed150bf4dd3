"""Migrated copies of released MaxText, made once per test session and shared between workers."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.real.maxtext.trainer import built

RELEASES = ("0.2.0", "0.2.1", "0.2.2", "0.2.3", "0.2.4", "0.2.5")


def released(version: str) -> Path:
    """The unpacked wheel: only to be read."""
    return built("releases") / version


def shared_folder(factory: pytest.TempPathFactory) -> Path:
    """A folder of this session that all xdist workers see."""
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "maxtext-trees"
    folder.mkdir(exist_ok=True)
    return folder


def migrated(folder: Path, version: str, reference: str) -> Path:
    """``version`` after ``muon-migrate apply --reference``, by the installed command.

    Raises:
      AssertionError: the command failed; the message holds its output.
    """
    tree, done = folder / f"{version}-{reference}", folder / f"{version}-{reference}.done"
    with _locked(folder / f"{version}-{reference}.lock"):
        if not done.exists():
            shutil.rmtree(tree, ignore_errors=True)
            copy_release(version, tree)
            _migrate(tree, reference)
            done.touch()
    return tree


def copy_release(version: str, tree: Path) -> None:
    """The release without its 25 MB of tokenizers, which synthetic tokens do not need."""
    shutil.copytree(released(version), tree, ignore=shutil.ignore_patterns("assets"))


def _migrate(tree: Path, reference: str) -> None:
    command = [str(Path(sys.executable).with_name("muon-migrate")), "apply", str(tree)]
    answer = subprocess.run(
        [*command, "--reference", reference], capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, f"{' '.join(command)}:\n{answer.stdout}\n{answer.stderr}"


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
