"""Whose Muon the checkout shall compute by default."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from codemods import base_yml
from codemods.errors import MigrateError, Problem
from muon_fork.config_keys import CONFIG_KEYS, config_values
from muon_fork.presets import PRESETS, preset
from muon_fork.spec import MuonSpec, SpecError


@dataclass(frozen=True)
class Reference:
    """A spec, what to call it, and how sure it is of the keys that other optimizers read too.

    Attributes:
      label: preset name, file of arguments, or ``custom``.
      shared_keys: see ``Context.shared_keys``.
      notes: assumptions to show to the user.
    """

    label: str
    spec: MuonSpec
    shared_keys: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()

    @property
    def settings(self) -> dict[str, Any]:
        """The configuration keys that it settles, with their values."""
        kept = {row.key for row in CONFIG_KEYS if row.shared} - self.shared_keys
        return {k: v for k, v in config_values(self.spec).items() if k not in kept}


def from_preset(name: str) -> Reference:
    """A named preset; of the shared keys it settles those on which its publication has a word.

    Raises:
      MigrateError: there is no such preset.
    """
    try:
        spec = preset(name)
    except SpecError as error:
        raise MigrateError(Problem(f"--reference: {error}")) from None
    stated = spec.differences(MuonSpec())
    shared = frozenset(row.key for row in CONFIG_KEYS if row.shared and row.field in stated)
    return Reference(name, spec, shared)


def from_args_file(path: Path, assumptions: Sequence[str] = ()) -> Reference:
    """The arguments of a Megatron run, which settle every key.

    Args:
      path: JSON file.
      assumptions: ``FIELD=VALUE`` each, for what the arguments do not say.

    Raises:
      MigrateError: the file cannot be read or does not settle a field; the message names the flag.
    """
    from muon_fork import megatron_args

    overrides = dict(_assumption(text) for text in assumptions)
    try:
        args = megatron_args.read_args_file(path)
    except SpecError as error:  # It names the file, and the line if there is one.
        raise MigrateError(Problem(str(error))) from None
    try:
        spec, notes = megatron_args.settle(args, overrides)
    except SpecError as error:
        raise MigrateError(Problem(str(error), str(path))) from None
    shared = frozenset(row.key for row in CONFIG_KEYS if row.shared)
    return Reference(path.name, spec, shared, tuple(notes))


def _assumption(text: str) -> tuple[str, base_yml.Scalar]:
    field, found, value = text.partition("=")
    if not found:
        raise MigrateError(Problem(f"--assume {text}: expected FIELD=VALUE"))
    return field.strip(), base_yml.scalar(value.strip())


def from_base_yml(text: str, path: str, shared_keys: frozenset[str]) -> Reference:
    """What a migrated checkout is set to now, so that a repeated apply keeps it.

    Raises:
      MigrateError: its keys are incomplete or contradict each other.
    """
    try:
        spec = base_yml.spec_of(text)
    except SpecError as error:
        message = f"{error}; or pass --reference to set every key anew"
        raise MigrateError(Problem(message, path)) from None
    return Reference(label_of(spec), spec, shared_keys)


def label_of(spec: MuonSpec) -> str:
    """The preset that ``spec`` is, shared keys aside; else ``custom``."""
    shared = {row.field for row in CONFIG_KEYS if row.shared}
    for row in PRESETS:
        if not set(row.spec.differences(spec)) - shared:
            return row.name
    return "custom"
