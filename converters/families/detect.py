"""Which family a checkpoint is of."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from converters.errors import CheckpointError

from .family import Family
from .model import features_of
from .tables import FAMILIES


def detect(arguments: Mapping[str, Any], names: Collection[str]) -> Family:
    """The first family of FAMILIES that fits.

    Args:
      arguments: of the run.
      names: canonical names of its parameters.

    Raises:
      CheckpointError: none fits; the message says per family what did not.
    """
    features = features_of(arguments, names)
    for family in FAMILIES:
        if not family.misfits(features):
            return family
    reasons = [f"  {f.name}: {'; '.join(f.misfits(features))}" for f in FAMILIES]
    raise CheckpointError(
        f"no family has a model with {', '.join(sorted(features))}:\n"
        + "\n".join(reasons)
        + "\nname one with --family, or describe it in a file (--family FILE.toml)"
    )


def named(name: str) -> Family:
    """The shipped family of that name.

    Raises:
      CheckpointError: no such family.
    """
    for family in FAMILIES:
        if family.name == name:
            return family
    known = ", ".join(family.name for family in FAMILIES)
    raise CheckpointError(f"unknown family {name!r}: expected one of {known}, or a .toml file")
