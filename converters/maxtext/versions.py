"""What the releases of MaxText differ in, as far as their checkpoints show it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from converters.errors import CheckpointError

Layout = Literal["nnx", "linen"]


@dataclass(frozen=True)
class Version:
    """One release, or git's main branch.

    Attributes:
      name: as the user names it.
      layouts: train states that it can run with Muon, its default first.
      saves_scan_layers: writes ``scan_layers`` as custom metadata of a checkpoint.
      mtp_final_norm: prediction layers have a final norm of their own.
      bias_variables: models whose ``model_name`` starts so keep the router's bias as a variable of
        its own, layers first, and not among the parameters.
    """

    name: str
    layouts: tuple[Layout, ...]
    saves_scan_layers: bool
    mtp_final_norm: bool
    bias_variables: tuple[str, ...] = ()


VERSIONS: tuple[Version, ...] = (
    Version("0.2.0", ("linen",), False, False),
    Version("0.2.1", ("linen",), False, False),
    Version("0.2.2", ("linen",), False, False),
    Version("0.2.3", ("linen",), False, False),
    Version("0.2.4", ("nnx", "linen"), True, False),
    Version("0.2.5", ("nnx",), True, True, ("deepseek3", "kimi-k2")),
    Version("main", ("nnx", "linen"), True, False),
)
NEWEST_RELEASE = "0.2.5"

# Keys that make a version with both run the Linen one.
LINEN_KEYS = {"pure_nnx": False, "enable_nnx": False, "pure_nnx_decoder": False}


def version_of(name: str, layout: str | None) -> tuple[Version, Layout]:
    """The version, and the layout asked for or its default.

    Raises:
      CheckpointError: unknown version, or a layout that it cannot run.
    """
    for version in VERSIONS:
        if version.name == name:
            for known in version.layouts:
                if layout in (None, known):
                    return version, known
            raise CheckpointError(
                f"MaxText {name} does not run Muon with layout {layout!r}: expected "
                f"{' or '.join(version.layouts)}"
            )
    known_names = ", ".join(version.name for version in VERSIONS)
    raise CheckpointError(f"unknown MaxText version {name!r}: expected one of {known_names}")
