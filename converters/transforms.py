"""Small invertible transforms of one parameter: cut into parts, each through a chain of steps.

Both are declared by sizes only, so shapes are known before a byte is read, one part can be made
without the others, and the way back is the same declaration read in reverse.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from converters.splits import Array, Shape, Split, Whole
from converters.steps import Kind, Step


@dataclass(frozen=True)
class Transform:
    """A split, and one chain of steps for each of its parts."""

    split: Split
    chains: tuple[tuple[Step, ...], ...]

    def shapes(self, source: Shape) -> tuple[Shape, ...]:
        """Shapes of all targets.

        Raises:
          CheckpointError: the source's shape does not fit the declared sizes.
        """
        parts = self.split.shapes(source)
        return tuple(_shape(chain, part) for chain, part in zip(self.chains, parts, strict=True))

    def forward(self, source: Array) -> tuple[Array, ...]:
        return tuple(self.part(source, index) for index in range(len(self.chains)))

    def part(self, source: Array, index: int) -> Array:
        """Target ``index`` alone; a view of the source where nothing has to be computed."""
        _shape(self.chains[index], self.split.shapes(source.shape)[index])
        part = self.split.part(source, index)
        for step in self.chains[index]:
            part = step.apply(part)
        return part

    def inverse(self, targets: Sequence[Array], like: Array | None = None) -> Array:
        """The source of ``targets``.

        A stored scale or offset rounds, so its quotient need not be the number it came from. With
        ``like``, a source of which the targets may be a changed copy, entries that the transform
        takes to the target's bits come back as they were, and so do rows that the target dropped.
        """
        parts = []
        for index, (chain, target) in enumerate(zip(self.chains, targets, strict=True)):
            likes = [None if like is None else self.split.part(like, index)]
            for step in chain[:-1]:
                last = likes[-1]
                likes.append(None if last is None else step.apply(last))
            for step, before in zip(reversed(chain), reversed(likes[: len(chain)]), strict=True):
                target = step.undo(target, before)
            parts.append(target)
        return self.split.join(parts)

    def of_state(self) -> Transform:
        """The transform of momentum and moments: without stored scales and offsets."""
        kept = tuple(tuple(s for s in chain if s.kind in ("P", "PAD")) for chain in self.chains)
        return self if kept == self.chains else Transform(self.split, kept)

    def kinds(self, index: int) -> tuple[Kind, ...]:
        """Classes of the steps to target ``index``, each once, ``P`` last and always."""
        found = {step.kind for step in self.chains[index]} - {"P"}
        return (*sorted(found), "P")

    def describe(self, index: int) -> str:
        """The way to target ``index`` in words, for reports."""
        words = [] if isinstance(self.split, Whole) else [self.split.describe(index)]
        words += [repr(step) for step in self.chains[index]]
        return " > ".join(words) or "copy"


def _shape(chain: tuple[Step, ...], shape: Shape) -> Shape:
    for step in chain:
        shape = step.shape(shape)
    return shape
