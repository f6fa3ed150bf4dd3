"""What a rewrite is: a pure function from the text of one file to its new text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from codemods.layout import Layout
from muon_fork.spec import MuonSpec


class AnchorNotFound(Exception):
    """A rewrite cannot find the place it must edit, or finds it in a shape it must not edit.

    Args:
      message: what was expected and what to do; the engine adds the file.
      line: 1-based line of the offending code, None when the anchor is absent altogether.
    """

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.line = line


@dataclass(frozen=True)
class Context:
    """What a rewrite may know besides the text.

    Attributes:
      layout: the tree at hand.
      spec: its values become the defaults in ``base.yml`` and ``types.py``.
      package: import name of the package that holds ``third_party`` (``maxtext`` or ``MaxText``).
      module: import path of the fork, ``<package>.third_party.optax_muon``.
      shared_keys: the keys read by other optimizers too (``ConfigKey.shared``) whose value
        ``spec`` really settles. Such a key outside this set keeps the checkout's value.
    """

    layout: Layout
    spec: MuonSpec
    package: str
    module: str
    shared_keys: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Fixer:
    """One rewrite.

    Attributes:
      name: its file name, as ``--only`` and ``--skip`` take it.
      role: the file of the layout it edits; skipped where the layout has no such file.
      summary: what it does, one line.
      apply: text -> text; the same text when there is nothing (left) to do. Text comes without a
        byte order mark and keeps its line ends. Raises AnchorNotFound when it cannot.
      note: what the user loses or must set when the rewrite happened; shown with the result.
    """

    name: str
    role: str
    summary: str
    apply: Callable[[str, Context], str]
    note: str = ""
