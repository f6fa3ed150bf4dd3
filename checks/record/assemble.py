"""Make the folder of a run from its log, tokens and checkpoints, wherever these lie."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from checks.training.description import NAME
from checks.training.errors import RunError
from checks.training.folder import RecordedRun, iterations, open_run
from checks.training.tokens import Tokens, read_tokens

_BLOCK = 1 << 22


@dataclass(frozen=True)
class Material:
    """
    Attributes:
      losses: a file or folder of any format that can be read.
      tokens: .npy files; several are data-parallel ranks' shares of each batch.
      checkpoints: iterations, or folders that hold some.
      floor: losses of the run whose weights were one unit in the last place off at the start.
      first_step: of the tokens, and of losses without step numbers.
      notes: for the reader of a report.
      spec: MuonSpec fields that the checkpoints' arguments do not record.
    """

    losses: Path
    tokens: Sequence[Path]
    checkpoints: Sequence[Path]
    floor: Path | None = None
    first_step: int = 0
    notes: tuple[str, ...] = ()
    spec: Mapping[str, Any] = field(default_factory=dict)


def assemble(material: Material, out: Path) -> RecordedRun:
    """Write ``out`` and open it. Files are linked where the disk allows, otherwise copied.

    Raises:
      RunError: ``out`` exists, or the material makes no run; nothing is left behind.
    """
    out = out.absolute()
    if out.exists():
        raise RunError(f"{out}: exists: name a new folder")
    if not out.parent.is_dir():
        raise RunError(f"{out.parent}: no such folder")
    try:
        scratch = tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-")
    except OSError as error:
        raise RunError(f"{out.parent}: cannot be written: {error.strerror or error}") from error
    with scratch as name:
        growing = Path(name) / out.name
        brought: dict[Path, str] = {}
        try:
            growing.mkdir()
            _fill(growing, material, brought)
            open_run(growing)
            growing.rename(out)
        except OSError as error:
            raise RunError(f"{error.filename or out}: {error.strerror or error}") from error
        except RunError as error:
            raise RunError(_in_words_of_the_user(str(error), brought)) from error
    return open_run(out)


def _in_words_of_the_user(message: str, brought: Mapping[Path, str]) -> str:
    """The copies are gone when the message is read: it names what they were made from."""
    for target, source in sorted(brought.items(), reverse=True):
        message = message.replace(str(target), source)
    return message


def _fill(folder: Path, material: Material, brought: dict[Path, str]) -> None:
    """Bring everything; ``brought`` receives where each part of ``folder`` is from."""
    told: dict[str, Any] = {"first_step": material.first_step, "notes": list(material.notes)}
    told |= {"spec": dict(material.spec)} if material.spec else {}
    told["losses"] = _bring(material.losses, folder, brought)
    if material.floor is not None:
        told["floor_losses"] = _bring(material.floor, folder, brought, "floor-")
    brought[folder / "tokens.npy"] = ", ".join(map(str, material.tokens))
    brought[folder / NAME] = "--first-step"
    _join([read_tokens(path) for path in material.tokens], material.tokens, folder / "tokens.npy")
    for path in iterations(list(material.checkpoints)):
        _bring(path, folder, brought)
    (folder / NAME).write_text(json.dumps(told, indent=1) + "\n")


def _bring(path: Path, folder: Path, brought: dict[Path, str], prefix: str = "") -> str:
    """Put a file or a folder into ``folder``; its name there.

    Raises:
      RunError: it is missing, or something else has its name there.
    """
    if not path.exists():
        raise RunError(f"{path}: no such file or folder")
    target = folder / (prefix + path.resolve().name)
    if target in brought:
        raise RunError(f"{path}: {brought[target]} has the same name: only one of them fits in")
    brought[target] = str(path)
    path = path.resolve()
    if path.is_dir():
        shutil.copytree(path, target, copy_function=_link)
    else:
        _link(str(path), str(target))
    return target.name


def _link(source: str, target: str) -> str:
    """A log that still grows is copied: a link would let the run change behind its back."""
    if Path(source).suffix in (".distcp", ".pt"):
        try:
            os.link(source, target)
            return target
        except OSError:
            pass
    return str(shutil.copy2(source, target))


def _join(shares: Sequence[Tokens], paths: Sequence[Path], target: Path) -> None:
    """The shares side by side: sequences of a step in the order of the files."""
    first = shares[0]
    for share, path in zip(shares, paths, strict=True):
        if share.shape[0] != first.shape[0] or share.shape[2] != first.shape[2]:
            raise RunError(
                f"{path}: tokens have shape {list(share.shape)}, those of {paths[0]} "
                f"{list(first.shape)}: the shares of a batch need as many steps and as long rows"
            )
    if len(shares) == 1:
        _link(str(paths[0].resolve()), str(target))
        return
    shape = (first.shape[0], sum(share.shape[1] for share in shares), first.shape[2])
    joined = np.lib.format.open_memmap(target, "w+", np.int32, shape)
    rows = max(1, _BLOCK // (shape[1] * shape[2]))
    for start in range(0, shape[0], rows):
        blocks = [share[start : start + rows] for share in shares]
        joined[start : start + rows] = np.concatenate(blocks, axis=1)
    joined.flush()
