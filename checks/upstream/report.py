"""What the comparison with the installed optax found."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from checks.tolerances import limit as limit_of

from .api import Change, interface_changes
from .numbers import CASES, Agreement, Case, agreements

# The release whose interface and numbers the fork follows (muon_fork/UPSTREAM.md).
FOLLOWED = "0.2.8"


@dataclass(frozen=True)
class Report:
    """
    Attributes:
      installed, followed: versions of optax.
      interface: changed names, arguments and defaults.
      numbers: one agreement per set of arguments.
      limit: on |difference| of an update of size 0.1.
    """

    installed: str
    followed: str
    interface: tuple[Change, ...]
    numbers: tuple[Agreement, ...]
    limit: float

    @property
    def changes(self) -> tuple[Change, ...]:
        return (*self.interface, *(row.change for row in self.numbers if row.change))

    @property
    def passed(self) -> bool:
        return not self.changes

    def as_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self) | {"passed": self.passed}


def compare(module: Any, installed: str, cases: tuple[Case, ...] = CASES) -> Report:
    """Compare ``module``, which stands for ``optax.contrib._muon``, with the fork."""
    limit = limit_of("upstream")
    return Report(
        installed,
        FOLLOWED,
        interface_changes(module),
        tuple(agreements(module, limit, cases)) if hasattr(module, "muon") else (),
        limit,
    )
