"""The rewrites, in the order in which they run."""

from __future__ import annotations

from codemods.fixer import Fixer

FIXERS: tuple[Fixer, ...] = ()
