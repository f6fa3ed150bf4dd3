"""What a model family is: one literal table of rows, read in both directions.

A row says which MaxText leaves hold the numbers of one Megatron parameter, and the word for how
(``words.py``). Names on both sides are whole suffixes; the layer's place comes from the family's
layer pattern (``layers.py``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Pattern = Literal["stack", "pairs", "cycle", "dense_then_moe"]


@dataclass(frozen=True)
class Row:
    """One parameter.

    Attributes:
      source: canonical name or suffix (``converters.source``).
      targets: MaxText paths, ``/`` between segments. ``{half}`` is the layer's place in a pair and
        ``{k}`` the number of a prediction layer, from 1.
      word: how, a key of ``words.WORDS``.
      when: words that must all be features of the model or layer; ``!word`` must not.
    """

    source: str
    targets: tuple[str, ...]
    word: str
    when: str = ""

    def applies(self, features: Collection[str]) -> bool:
        return all(
            (word[1:] not in features) if word.startswith("!") else (word in features)
            for word in self.when.split()
        )


@dataclass(frozen=True)
class Family:
    """A family.

    Attributes:
      name: as the user names it.
      decoder_block: MaxText's.
      requires, allows: features that its models must have and may have; every other feature is
        another family's.
      layers: how MaxText arranges layers; ``cycle`` is the length of the repeated pattern.
      top, layer, mtp: rows outside the layers, of each layer, and of each prediction layer beside
        its transformer layer.
      config: MaxText keys that belong to the family whatever the sizes.
      scans: MaxText can scan its layers.
      refusal: why no MaxText runs it; such a table serves arrays only.
      verified: the names were read from real checkpoints or from Megatron's and MaxText's sources.
    """

    name: str
    decoder_block: str
    requires: frozenset[str]
    allows: frozenset[str]
    layers: Pattern
    layer: tuple[Row, ...]
    top: tuple[Row, ...]
    mtp: tuple[Row, ...] = ()
    cycle: int = 1
    config: Mapping[str, Any] = field(default_factory=dict)
    scans: bool = True
    refusal: str = ""
    verified: bool = True

    def misfits(self, features: Collection[str]) -> tuple[str, ...]:
        """Why a model with these features is not of this family; empty if it may be."""
        lacking = sorted(self.requires - set(features))
        foreign = sorted(set(features) - self.requires - self.allows)
        return tuple(
            f"{verb} {', '.join(words)}"
            for verb, words in (("needs", lacking), ("knows no", foreign))
            if words
        )
