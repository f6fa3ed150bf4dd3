"""One line of the comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Verdict = Literal["same", "differs", "rounding", "note", "not set", "no such key", "not reproduced"]
# What makes two runs differ, or may.
_FOUND = frozenset({"differs", "not set", "no such key", "not reproduced"})


@dataclass(frozen=True)
class Row:
    """
    Attributes:
      topic: what of the computation.
      megatron: its arguments with their values.
      key: MaxText's; "" where no key decides.
      needed: value of the key that continues the run.
      value, origin: what the user has, and whether it was given or is a default.
      verdict: ``differs`` changes numbers, ``rounding`` only their last digits; ``not set`` has a
        default that only the checkout knows; ``no such key`` is none of this MaxText;
        ``not reproduced`` is something of Megatron's that MaxText does not compute.
      remedy: ``key=value`` to set, or what to do.
    """

    topic: str
    megatron: str
    key: str
    needed: Any
    value: Any
    origin: str
    verdict: Verdict
    remedy: str

    @property
    def found(self) -> bool:
        return self.verdict in _FOUND


def argument_words(arguments: Mapping[str, Any], names: Sequence[str]) -> str:
    """The first of ``names`` that the run has, with its value; or that it says nothing."""
    for name in names:
        value = arguments.get(name)
        if isinstance(value, (bool, int, float, str, list, tuple)):
            return f"{name}={value}"
    return f"no {names[0]}" if names else ""
