"""Where the decay mask's function goes."""

from __future__ import annotations

import ast

from codemods.fixers.adam_wd_mask import fixer
from tests.codemods.fixers.tools import before, check_noop, check_refused, check_transformed, swap

OPTIMIZER = before("release-0.2.3", "optimizer")
ANCHOR = "def get_optimizer("


def functions(text: str) -> list[str]:
    return [node.name for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]


def test_stands_before_get_optimizer() -> None:
    assert functions(check_transformed(fixer, OPTIMIZER)) == [
        "get_adamw_mask",
        "get_adam_wd_mask",
        "get_optimizer",
    ]


def test_comments_and_decorators_stay_with_their_function() -> None:
    above = "# Called by the trainer.\n@logged\n"
    result = check_transformed(fixer, swap(OPTIMIZER, ANCHOR, above + ANCHOR))
    assert f"\n\n\n{above}{ANCHOR}" in result


def test_migrated_text_stays() -> None:
    check_noop(fixer, check_transformed(fixer, OPTIMIZER))


def test_function_of_that_name_is_refused() -> None:
    own = "def get_adam_wd_mask(config):\n  return None\n\n\n"
    text = swap(OPTIMIZER, ANCHOR, own + ANCHOR)
    check_refused(fixer, text, "def get_adam_wd_mask", "this checkout's own")


def test_missing_anchor_is_refused() -> None:
    check_refused(fixer, swap(OPTIMIZER, ANCHOR, "def build("), None, "get_optimizer")
