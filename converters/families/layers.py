"""Where MaxText keeps each layer, scanned and not."""

from __future__ import annotations

from typing import NamedTuple

from converters.errors import CheckpointError

from .family import Family

HALVES = ("local", "global")


class Place(NamedTuple):
    """A layer's container, its index on the layer axis (None without one), its half of a pair."""

    container: tuple[str, ...]
    slot: int | None
    half: str = ""


def place(family: Family, layer: int, layers: int, dense: int, scan: bool) -> Place:
    """Place of ``layer``, counted from 0.

    Args:
      family: its pattern.
      layer: number over the whole model.
      layers: how many there are.
      dense: how many dense layers come before the first MoE layer.
      scan: MaxText's ``scan_layers``.

    Raises:
      CheckpointError: MaxText cannot arrange that many layers so.
    """
    if family.layers == "pairs":
        if layers % 2:
            raise CheckpointError(f"{layers} layers: {family.name} needs pairs of local and global")
        return _numbered("layers", layer // 2, scan, HALVES[layer % 2])
    if family.layers == "dense_then_moe":
        if layer < dense:
            return _numbered("dense_layers", layer, scan)
        return _numbered("moe_layers", layer - dense, scan)
    if family.layers == "cycle" and scan:
        return _in_cycle(family, layer, layers)
    return _numbered("layers", layer, scan)


def _numbered(name: str, index: int, scan: bool, half: str = "") -> Place:
    if scan:
        return Place(("decoder", name), index, half)
    return Place(("decoder", f"{name}_{index}"), None, half)


def _in_cycle(family: Family, layer: int, layers: int) -> Place:
    whole = layers - layers % family.cycle
    if layer < whole:
        position, turn = layer % family.cycle, layer // family.cycle
        return Place(("decoder", "layers", f"layers_{position}"), turn)
    if family.name == "gpt_oss":
        raise CheckpointError(
            f"{layers} layers: scanned gpt_oss needs whole cycles of {family.cycle}: --no-scan"
        )
    return Place(("decoder", "layers_remainder", f"layers_{layer - whole}"), None)
