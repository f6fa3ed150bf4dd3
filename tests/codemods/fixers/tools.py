"""What every fixer's test needs: a context, golden texts, and the ways a rewrite can end."""

from __future__ import annotations

import functools
from pathlib import Path

import libcst
import pytest

from codemods.fixer import AnchorNotFound, Context, Fixer
from codemods.fixers import FIXERS
from codemods.layout import Layout, detect
from muon_fork.presets import preset
from muon_fork.spec import MuonSpec

GOLDEN = Path(__file__).parents[1] / "golden"
TREES = tuple(sorted(path.name for path in GOLDEN.iterdir() if path.is_dir()))


def context(
    spec: MuonSpec | None = None,
    *,
    package: str = "maxtext",
    shared_keys: frozenset[str] = frozenset(),
) -> Context:
    """The context of a checkout that writes ``spec`` (default: ``megatron_rfc``)."""
    layout = Layout("test", Path("/nowhere"), Path("/nowhere") / package, {})
    spec = spec or preset("megatron_rfc")
    return Context(layout, spec, package, f"{package}.third_party.optax_muon", shared_keys)


@functools.cache
def golden_layout(tree: str) -> Layout:
    """The layout of a golden tree before the migration."""
    return detect(GOLDEN / tree / "before")


def golden_context(tree: str) -> Context:
    """The context of a golden tree."""
    return context(package=golden_layout(tree).package.name)


def before(tree: str, role: str) -> str:
    """Text of a role before the migration."""
    return golden_layout(tree).roles[role].read_text()


def after(tree: str, role: str) -> str:
    """Text of a role after the migration."""
    layout = golden_layout(tree)
    below = layout.roles[role].relative_to((GOLDEN / tree / "before").resolve())
    return (GOLDEN / tree / "after" / below).read_text()


def fixers_of(role: str) -> tuple[Fixer, ...]:
    """The rewrites of one file, in order."""
    return tuple(fixer for fixer in FIXERS if fixer.role == role)


def migrate(text: str, role: str, given: Context) -> str:
    """A text through every rewrite of its role."""
    for fixer in fixers_of(role):
        text = fixer.apply(text, given)
    return text


def swap(text: str, old: str, new: str) -> str:
    """``text`` with its one ``old`` replaced: a swap that hits nothing proves nothing."""
    assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times"
    return text.replace(old, new)


def check_transformed(fixer: Fixer, text: str, given: Context | None = None) -> str:
    """The new text: it differs, it is Python, and a second run leaves it alone."""
    given = given or context()
    result = fixer.apply(text, given)
    assert result != text
    libcst.parse_module(result)
    assert fixer.apply(result, given) == result
    return result


def check_noop(fixer: Fixer, text: str, given: Context | None = None) -> None:
    """The rewrite finds nothing to do."""
    assert fixer.apply(text, given or context()) == text


def check_refused(
    fixer: Fixer, text: str, line_with: str | None, message: str, given: Context | None = None
) -> None:
    """The rewrite refuses, naming the first line that holds ``line_with``."""
    with pytest.raises(AnchorNotFound, match=message) as caught:
        fixer.apply(text, given or context())
    if line_with is None:
        assert caught.value.line is None
        return
    assert caught.value.line is not None
    assert line_with in text.splitlines()[caught.value.line - 1]
