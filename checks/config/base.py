"""What MaxText takes for a key that the user did not set: of a checkout, or of a release."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from checks.training.tree import Tree, open_tree

from .defaults import NEWEST, RELEASES, defaults_of
from .given import ConfigError, Given, read_yaml


@dataclass(frozen=True)
class Base:
    """
    Attributes:
      version: of MaxText, as ``converters.maxtext.versions`` calls it.
      name: where the values are from, for a reader.
      values: by key.
      complete: every key of that MaxText is in ``values``.
      notes: what was assumed.
    """

    version: str
    name: str
    values: Mapping[str, Any]
    complete: bool
    notes: tuple[str, ...] = ()


def base_of(given: Given, maxtext: Path | None, version: str | None) -> Base:
    """Of the checkout at ``maxtext``, else of ``version``, else of the newest release.

    Raises:
      ConfigError, RunError: no such checkout, release or model.
    """
    if maxtext is not None:
        return _of_tree(open_tree(maxtext), given)
    release = version or given.version or NEWEST
    if release not in RELEASES:
        raise ConfigError(
            f"the defaults of MaxText {release} are not known here: give its checkout with "
            f"--maxtext, or --maxtext-version with one of {', '.join(RELEASES)}"
        )
    notes = []
    model = given.values.get("model_name", "default")
    if model != "default":
        notes.append(
            f"model_name={model}: configs/models/{model}.yml of the checkout may set further keys; "
            "give --maxtext to compare these"
        )
    return Base(release, f"default of {release}", defaults_of(release), False, tuple(notes))


def _of_tree(tree: Tree, given: Given) -> Base:
    values = read_yaml(tree.base_yml)
    model = str(given.values.get("model_name", values.get("model_name", "default")))
    if model != "default":
        values |= _model(tree, model)
    notes = list(tree.notes)
    if tree.status != "migrated":
        notes.append(f"{tree.named}: {tree.status} (muon-migrate apply)")
    return Base(tree.version, "default", values, True, tuple(notes))


def _model(tree: Tree, name: str) -> dict[str, Any]:
    file = tree.base_yml.parent / "models" / f"{name}.yml"
    if not file.is_file():
        raise ConfigError(f"model_name={name}: {tree.named} has no {file.name} in configs/models")
    return read_yaml(file)
