"""run.json: what a recorded run says about itself, where names and defaults do not do."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from muon_fork.megatron_args import checked_overrides
from muon_fork.spec import SpecError

from .errors import RunError
from .text import read_text

NAME = "run.json"
_KEYS = (
    "checkpoints",
    "first_step",
    "floor_losses",
    "losses",
    "notes",
    "padded_vocab_size",
    "spec",
    "tokens",
)


@dataclass(frozen=True)
class Description:
    """Paths are absolute; None and empty where the file says nothing.

    Attributes:
      file: run.json itself.
      first_step: step of the first batch, and of the first loss in formats without step numbers.
      floor: losses of the run whose weights were one unit in the last place off at the start.
      padded_vocab_size: rows of the softmax of the run that made the losses.
      spec: MuonSpec fields that the checkpoint's arguments do not record.
    """

    file: Path
    losses: Path | None = None
    tokens: Path | None = None
    floor: Path | None = None
    checkpoints: list[Path] | None = None
    first_step: int = 0
    padded_vocab_size: int | None = None
    notes: tuple[str, ...] = ()
    spec: Mapping[str, Any] = field(default_factory=dict)


def read_description(folder: Path) -> Description:
    """Of the folder's run.json; the defaults where there is none.

    Raises:
      RunError: it is no JSON object, or a value is of another type.
    """
    file = folder / NAME
    if not file.is_file():
        return Description(file)
    try:
        told = json.loads(read_text(file))
    except (ValueError, RecursionError) as error:
        raise RunError(f"{file}: not JSON: {error}") from error
    if not isinstance(told, dict):
        raise RunError(f"{file}: expected a JSON object")
    unknown = sorted(told.keys() - set(_KEYS))
    if unknown:
        raise RunError(f"{file}: unknown key {unknown[0]!r}, expected some of {', '.join(_KEYS)}")
    checkpoints = _list(file, told, "checkpoints")
    return Description(
        file,
        _path(file, told, "losses"),
        _path(file, told, "tokens"),
        _path(file, told, "floor_losses"),
        None if checkpoints is None else [folder / name for name in checkpoints],
        _count(file, told, "first_step") or 0,
        _count(file, told, "padded_vocab_size"),
        tuple(_list(file, told, "notes") or ()),
        _spec(file, told),
    )


def _path(file: Path, told: dict[str, Any], key: str) -> Path | None:
    if key not in told:
        return None
    if not isinstance(told[key], str):
        raise RunError(f"{file}: {key} is {told[key]!r}, expected a path")
    return file.parent / str(told[key])


def _list(file: Path, told: dict[str, Any], key: str) -> list[str] | None:
    value = told.get(key)
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise RunError(f"{file}: {key} is {value!r}, expected a list of texts")
    return value


def _count(file: Path, told: dict[str, Any], key: str) -> int | None:
    value = told.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise RunError(f"{file}: {key} is {value!r}, expected a whole number from 0")
    return value


def _spec(file: Path, told: dict[str, Any]) -> dict[str, Any]:
    value = told.get("spec", {})
    if not isinstance(value, dict):
        raise RunError(f"{file}: spec is {value!r}, expected an object of MuonSpec fields")
    try:
        checked_overrides(value)
    except SpecError as error:
        raise RunError(f"{file}: spec: {error}") from error
    return value
