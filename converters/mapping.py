"""Which target holds which part of which source, proven complete before a byte is read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from converters.errors import CheckpointError
from converters.splits import Array, Shape
from converters.transforms import Transform

Path = tuple[str, ...]

# Lines of an error about many rows.
_SHOWN = 12


class Spot(NamedTuple):
    """Where a part goes: a leaf, and the index on its layer axis (None if it is the whole leaf)."""

    path: Path
    slot: int | None


@dataclass(frozen=True)
class Link:
    """One source parameter and the places its parts go.

    Attributes:
      parameter: canonical name.
      transform: of its weight; ``of_state()`` of its momentum and moments.
      spots: one per part.
      is_buffer: Megatron keeps no optimizer state for it.
      alike: parameters that must hold the same numbers (the second copy of a tied embedding).
    """

    parameter: str
    transform: Transform
    spots: tuple[Spot, ...]
    is_buffer: bool = False
    alike: tuple[str, ...] = ()


class Part(NamedTuple):
    """One slot of a target leaf."""

    link: Link
    which: int


@dataclass(frozen=True)
class Leaf:
    """A target leaf.

    Attributes:
      path: in MaxText's parameter tree.
      shape: of the whole leaf.
      parts: in the order of their slots.
      axis: of the layers; None if the only part is the leaf.
      is_variable: MaxText keeps it beside the parameters, without optimizer state.
    """

    path: Path
    shape: Shape
    parts: tuple[Part, ...]
    axis: int | None
    is_variable: bool = False

    @property
    def is_buffer(self) -> bool:
        return all(part.link.is_buffer for part in self.parts)

    def slot(self, array: Array, index: int) -> Array:
        """The view of one part in an array of the leaf."""
        if self.axis is None:
            return array
        return array[(slice(None),) * self.axis + (index,)]

    def as_variable(self) -> Leaf:
        """The leaf kept beside the parameters, where layers lie along axis 0."""
        if self.axis is None:
            return replace(self, is_variable=True)
        layers = self.shape[self.axis]
        rest = (*self.shape[: self.axis], *self.shape[self.axis + 1 :])
        return replace(self, shape=(layers, *rest), axis=0, is_variable=True)


Shapes = Mapping[str, Shape]


def prove(
    links: Sequence[Link], shapes: Shapes, set_aside: Collection[str] = ()
) -> tuple[Leaf, ...]:
    """The target leaves, every source parameter used exactly once and every leaf made exactly once.

    Args:
      links: what the family's table says.
      shapes: of the weights that the source has.
      set_aside: parameters that are dropped on purpose.

    Returns:
      Leaves in the order of the table.

    Raises:
      CheckpointError: the tables and the source do not match; every row that does not is named.
    """
    wrong = _unmatched(links, shapes, set_aside)
    parts: dict[Path, list[tuple[Spot, Part, Shape]]] = {}
    for link in links:
        if link.parameter not in shapes:
            continue
        try:
            made = link.transform.shapes(shapes[link.parameter])
        except CheckpointError as error:
            wrong.append(f"{link.parameter}: {error}")
            continue
        for index, (spot, shape) in enumerate(zip(link.spots, made, strict=True)):
            parts.setdefault(spot.path, []).append((spot, Part(link, index), shape))
    if not wrong:
        wrong = [line for path, found in parts.items() for line in _overlaps(path, found)]
    if wrong:
        raise CheckpointError(_listed("the checkpoint does not fit the family's table", wrong))
    return tuple(_leaf(path, found) for path, found in parts.items())


def _unmatched(links: Sequence[Link], shapes: Shapes, set_aside: Collection[str]) -> list[str]:
    used = [name for link in links for name in (link.parameter, *link.alike)]
    wrong = [f"{name}: {n} rows use it" for name, n in Counter(used).items() if n > 1]
    known = set(used) | set(set_aside)
    wrong += [f"{name}: in the table, not in the checkpoint" for name in used if name not in shapes]
    wrong += [f"{name}: in the checkpoint, no row uses it" for name in shapes if name not in known]
    return wrong


def _overlaps(path: Path, found: list[tuple[Spot, Part, Shape]]) -> list[str]:
    """What is wrong with one leaf's parts: slots must be 0, 1, ... and shapes equal."""
    name = "/".join(path)
    slots = [spot.slot for spot, _, _ in found]
    sources = ", ".join(part.link.parameter for _, part, _ in found[:3])
    if None in slots:
        return [] if len(slots) == 1 else [f"{name}: made {len(slots)} times, from {sources}"]
    numbers = sorted(slot for slot in slots if slot is not None)
    if numbers != list(range(len(numbers))):
        return [f"{name}: layers {numbers}, expected each of 0 to {len(numbers) - 1} once"]
    by_shape: dict[Shape, str] = {}
    for _, part, shape in found:
        by_shape.setdefault(shape, part.link.parameter)
    if len(by_shape) > 1:
        seen = "; ".join(f"{list(shape)} from {who}" for shape, who in by_shape.items())
        return [f"{name}: layers of different shapes: {seen}"]
    return []


def _leaf(path: Path, found: list[tuple[Spot, Part, Shape]]) -> Leaf:
    ordered = sorted(found, key=lambda entry: entry[0].slot or 0)
    shape, parts = ordered[0][2], tuple(part for _, part, _ in ordered)
    if ordered[0][0].slot is None:
        return Leaf(path, shape, parts, None)
    # MaxText's param_scan_axis.
    return Leaf(path, (*shape[:1], len(parts), *shape[1:]), parts, 1)


def _listed(title: str, lines: Iterable[str]) -> str:
    lines = list(lines)
    shown = [f"  {line}" for line in lines[:_SHOWN]]
    if len(lines) > _SHOWN:
        shown.append(f"  and {len(lines) - _SHOWN} more")
    return "\n".join([f"{title}:", *shown])
