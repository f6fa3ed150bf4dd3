"""Which decoder blocks a migrated types.py accepts."""

from __future__ import annotations

import ast
import enum
from types import SimpleNamespace
from typing import Any

import pytest

from codemods.fixers.decoder_allow_list import fixer
from muon_fork.model_dimensions import (
    DECODER_BLOCKS,
    QUERY_STORED_PLAIN,
    QUERY_STORED_SCALED,
)
from tests.codemods.fixers.tools import before, check_noop, check_refused, check_transformed, swap

TYPES = before("release-0.2.3", "config_types")
LAST = "        DecoderBlockType.LLAMA2,\n    ]:\n"


class Blocks(enum.Enum):
    """The enumeration of a checkout that lacks some families and has one of its own."""

    LLAMA2 = "llama2"
    DEEPSEEK = "deepseek"
    QWEN3 = "qwen3"
    GEMMA3 = "gemma3"
    MIXTRAL = "mixtral"
    OURS = "ours"


def accepted(text: str) -> set[str]:
    """Blocks for which the check of a migrated file raises nothing."""
    owner = next(
        node
        for node in ast.parse(text).body
        if isinstance(node, ast.ClassDef) and node.name == "Everything"
    )
    check = next(node for node in owner.body if isinstance(node, ast.FunctionDef))
    names: dict[str, Any] = {"DecoderBlockType": Blocks, "MUON_DECODER_BLOCKS": DECODER_BLOCKS}
    exec(compile(ast.Module([check], []), "types", "exec"), names)
    found = set()
    for block in Blocks:
        try:
            names["check"](SimpleNamespace(opt_type="muon", decoder_block=block))
        except ValueError:
            continue
        found.add(block.value)
    return found


def test_known_families_of_this_enumeration_are_accepted() -> None:
    assert accepted(check_transformed(fixer, TYPES)) == {block.value for block in Blocks} - {"ours"}


def test_list_on_one_line() -> None:
    start = TYPES.index("not in [") + len("not in [")
    stop = TYPES.index("]:", start)
    entries = " ".join(TYPES[start:stop].split()).rstrip(",")
    text = TYPES[:start] + entries + TYPES[stop:]
    assert accepted(check_transformed(fixer, text)) == accepted(check_transformed(fixer, TYPES))


def test_entries_of_the_checkout_and_their_comments_stay() -> None:
    own = "        DecoderBlockType.OURS,  # tried in March\n"
    result = check_transformed(fixer, swap(TYPES, LAST, own + LAST))
    assert own in result
    assert "ours" in accepted(result)


def test_migrated_text_stays() -> None:
    check_noop(fixer, check_transformed(fixer, TYPES))


def test_every_block_has_a_known_query_scale() -> None:
    assert set(DECODER_BLOCKS) <= QUERY_STORED_PLAIN | QUERY_STORED_SCALED


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        pytest.param('== "muon" and', '== "neon" and', None, "found 0", id="no check"),
        pytest.param(
            LAST,
            f"        *OURS,\n{LAST}",
            "not in [",
            "list of DecoderBlockType",
            id="another list",
        ),
        pytest.param(
            "import AttentionType, DecoderBlockType",
            "import AttentionType",
            None,
            "no top-level",
            id="no import",
        ),
    ],
)
def test_refused(old: str, new: str, line: str | None, message: str) -> None:
    check_refused(fixer, swap(TYPES, old, new), line, message)


def test_check_without_list_is_refused() -> None:
    start, stop = TYPES.index(" not in ["), TYPES.index("]:") + 1
    text = TYPES[:start] + " != DecoderBlockType.LLAMA2" + TYPES[stop:]
    check_refused(fixer, text, "opt_type == ", "expected a list")
