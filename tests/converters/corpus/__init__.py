"""Checkpoints that must be refused, by what is wrong with them."""

from .archives import CASES as ARCHIVES
from .archives import MARKER
from .case import Case
from .files import CASES as FILES
from .index import CASES as INDEX
from .values import CASES as VALUES

__all__ = ["CASES", "MARKER", "Case"]

CASES: tuple[Case, ...] = (*FILES, *INDEX, *VALUES, *ARCHIVES)
