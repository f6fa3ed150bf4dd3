"""How far a tree is migrated, read from the files themselves."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from codemods import record as records
from codemods.fork_copy import FORK, is_ours, version_of
from codemods.layout import Layout
from codemods.record import Record

Progress = Literal["not migrated", "migrated", "half-applied"]

_IMPORTS_FORK = re.compile(rb"\bthird_party\.optax_muon\b")
# A key that no MaxText has had on its own.
_HAS_KEYS = re.compile(rb"^[ \t]*muon_ns_eps_mode[ \t]*:", re.MULTILINE)
MARKS: Mapping[str, re.Pattern[bytes]] = {
    "optimizer": _IMPORTS_FORK,
    "muon_utils": _IMPORTS_FORK,
    "sharded_muon_utils": _IMPORTS_FORK,
    "config_types": _HAS_KEYS,
    "base_yml": _HAS_KEYS,
}


@dataclass(frozen=True)
class TreeState:
    """What was found.

    Attributes:
      progress: all of the parts are migrated, none, or some.
      done, open: the parts on either side, as the user knows their paths.
      record: what the last apply left behind, if it did so here.
      changed: files that no longer hold what that apply wrote.
      version: of the copied fork.
    """

    progress: Progress
    done: tuple[str, ...]
    open: tuple[str, ...]
    record: Record | None
    changed: tuple[str, ...]
    version: str | None

    @property
    def is_explained(self) -> bool:
        """Whether the tree is exactly what an apply, maybe of selected fixers, made of it."""
        return self.record is not None and self.record.state == "applied" and not self.changed


def is_marked(role: str, data: bytes) -> bool:
    """Whether the file of that role is migrated."""
    return bool(MARKS[role].search(data))


def examine(layout: Layout) -> TreeState:
    """The state of a tree.

    Raises:
      MigrateError: its record cannot be trusted.
    """
    fork = layout.package / FORK
    parts = {fork: is_ours(fork)}
    for role, path in layout.roles.items():
        if role in MARKS:
            parts[path] = is_marked(role, path.read_bytes())
    done = tuple(layout.relative(path) for path, is_done in parts.items() if is_done)
    open_ = tuple(layout.relative(path) for path, is_done in parts.items() if not is_done)
    record = records.load(layout)
    return TreeState(
        progress=_progress(done, open_, record),
        done=done,
        open=open_,
        record=record,
        changed=_changed(layout, record),
        version=version_of(fork),
    )


def _progress(done: tuple[str, ...], open_: tuple[str, ...], record: Record | None) -> Progress:
    if record is not None and record.state == "applying":
        return "half-applied"
    if not done:
        return "not migrated"
    return "half-applied" if open_ else "migrated"


def _changed(layout: Layout, record: Record | None) -> tuple[str, ...]:
    keys = records.changed_since(layout, record) if record else []
    return tuple(layout.relative(records.path_of(layout, key)) for key in keys)


def stray_fork(layout: Layout) -> Path | None:
    """A ``third_party/optax_muon`` that this tool did not make."""
    fork = layout.package / FORK
    occupied = fork.is_dir() and any(p.suffix == ".py" for p in fork.iterdir())
    return fork if occupied and not is_ours(fork) else None
