"""Every layout before and after: the pairs were written by hand and are read by hand."""

from __future__ import annotations

import filecmp
import re
from pathlib import Path

import libcst
import pytest

from codemods.fixers import FIXERS
from codemods.layout import LAYOUTS
from tests.codemods.fixers.tools import (
    GOLDEN,
    TREES,
    after,
    before,
    golden_context,
    golden_layout,
    migrate,
)

CASES = [
    pytest.param(tree, role, id=f"{tree}-{role}")
    for tree in TREES
    for role in golden_layout(tree).roles
]


@pytest.mark.parametrize(("tree", "role"), CASES)
def test_golden(tree: str, role: str) -> None:
    given = golden_context(tree)
    result = migrate(before(tree, role), role, given)
    assert result == after(tree, role)
    assert migrate(result, role, given) == result
    if role != "base_yml":
        assert libcst.parse_module(result).code == result


@pytest.mark.parametrize(("tree", "role"), CASES)
def test_windows_line_ends_survive(tree: str, role: str) -> None:
    result = migrate(before(tree, role).replace("\n", "\r\n"), role, golden_context(tree))
    assert result == after(tree, role).replace("\n", "\r\n")


@pytest.mark.parametrize("indent", ["    ", "\t"], ids=["four spaces", "tabs"])
@pytest.mark.parametrize(("tree", "role"), CASES)
def test_other_indentation_survives(tree: str, role: str, indent: str) -> None:
    if role == "base_yml":
        return
    text = reindented(before(tree, role), indent)
    result = migrate(text, role, golden_context(tree))
    libcst.parse_module(result)
    assert migrate(result, role, golden_context(tree)) == result
    assert tokens(result) == tokens(after(tree, role))
    if indent == "\t":
        added = set(result.splitlines()) - set(text.splitlines())
        assert not [line for line in added if line.startswith(" ")]


def tokens(text: str) -> str:
    """The text without what a line break changes: blanks, and the comma before a bracket."""
    return re.sub(r",(?=[)\]}])", "", "".join(text.split()))


def reindented(text: str, indent: str) -> str:
    """The text with ``indent`` for every two leading spaces."""
    lines = []
    for line in text.split("\n"):
        bare = line.lstrip(" ")
        depth, odd = divmod(len(line) - len(bare), 2)
        lines.append(indent * depth + " " * odd + bare)
    return "\n".join(lines)


@pytest.mark.parametrize("tree", TREES)
def test_other_files_stay(tree: str) -> None:
    old, new = GOLDEN / tree / "before", GOLDEN / tree / "after"
    names = {path.relative_to(old) for path in old.rglob("*") if path.is_file()}
    assert names == {path.relative_to(new) for path in new.rglob("*") if path.is_file()}
    touched = {path.relative_to(old.resolve()) for path in golden_layout(tree).roles.values()}
    for name in names - touched:
        assert filecmp.cmp(old / name, new / name, shallow=False)


def test_every_layout_has_a_golden_tree() -> None:
    assert {golden_layout(tree).name for tree in TREES} == {row.name for row in LAYOUTS}


def test_no_fixer_is_forgotten() -> None:
    folder = Path(__file__).parents[3] / "codemods" / "fixers"
    files = {path.stem for path in folder.glob("*.py") if not path.stem.startswith("_")}
    assert {fixer.name for fixer in FIXERS} == files
    assert len({fixer.name for fixer in FIXERS}) == len(FIXERS)


def test_every_fixer_is_seen_at_work() -> None:
    seen = set()
    for tree in TREES:
        given = golden_context(tree)
        for role in golden_layout(tree).roles:
            text = before(tree, role)
            for fixer in FIXERS:
                if fixer.role == role:
                    new = fixer.apply(text, given)
                    seen |= {fixer.name} if new != text else set()
                    text = new
    assert seen == {fixer.name for fixer in FIXERS}
