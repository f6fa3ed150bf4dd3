"""class Muon declares every key, and the defaults are the reference's."""

from __future__ import annotations

import ast
from typing import Any

import pytest

from codemods.fixers.config_fields import fixer
from muon_fork.config_keys import CONFIG_KEYS, config_values
from muon_fork.presets import PRESETS, preset
from tests.codemods.fixers.tools import (
    before,
    check_noop,
    check_refused,
    check_transformed,
    context,
    swap,
)

TYPES = before("release-0.2.3", "config_types")
BETA = '  muon_beta: float = Field(0.95, description="Momentum.")\n'


def defaults(text: str, name: str = "Muon") -> dict[str, Any]:
    """Default of each field of a class."""
    for owner in ast.parse(text).body:
        if isinstance(owner, ast.ClassDef) and owner.name == name:
            return {
                node.target.id: ast.literal_eval(
                    node.value.args[0] if isinstance(node.value, ast.Call) else node.value
                )
                for node in owner.body
                if isinstance(node, ast.AnnAssign)
            }
    raise AssertionError(name)


@pytest.mark.parametrize("name", [row.name for row in PRESETS])
def test_defaults_are_the_references(name: str) -> None:
    spec = preset(name)
    result = check_transformed(fixer, TYPES, context(spec))
    shared = {row.key for row in CONFIG_KEYS if row.shared}
    values = {key: value for key, value in config_values(spec).items() if key not in shared}
    assert defaults(result) == values
    assert defaults(result, "AdamW") == defaults(TYPES, "AdamW")


def test_another_reference_changes_defaults_only() -> None:
    first = check_transformed(fixer, TYPES)
    spec = preset("megatron")
    second = check_transformed(fixer, first, context(spec))
    assert defaults(second) == defaults(fixer.apply(TYPES, context(spec)))
    assert len(second.splitlines()) == len(first.splitlines())


def test_plain_default_without_field() -> None:
    text = swap(TYPES, BETA, "  muon_beta: float = 0.9\n")
    assert "  muon_beta: float = 0.95\n" in check_transformed(fixer, text)


def test_keyword_default() -> None:
    text = swap(TYPES, BETA, "  muon_beta: float = Field(description='x', default=0.9)\n")
    assert "Field(description='x', default=0.95)" in check_transformed(fixer, text)


def test_fields_of_the_checkout_stay() -> None:
    own = '  muon_ours: int = Field(3, description="Ours.")  # a try\n'
    assert own in check_transformed(fixer, swap(TYPES, BETA, own + BETA))


def test_field_in_another_class_is_not_declared_twice() -> None:
    text = swap(TYPES, '  """AdamW."""\n', '  """AdamW."""\n\n  muon_split_qkv: bool = True\n')
    assert check_transformed(fixer, text).count("muon_split_qkv:") == 1


def test_class_at_the_end_of_the_file_without_line_end() -> None:
    text = TYPES[: TYPES.index("\n\nclass Everything")].rstrip("\n")
    result = check_transformed(fixer, text)
    assert defaults(result).keys() >= {row.key for row in CONFIG_KEYS if not row.shared}


def test_migrated_text_stays() -> None:
    check_noop(fixer, check_transformed(fixer, TYPES))


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        pytest.param("class Muon(", "class Neon(", None, "found 0", id="no class"),
        pytest.param(
            "class Everything(",
            "class Muon(AdamW):\n  pass\n\n\nclass Everything(",
            "class Muon(AdamW)",
            "found 2",
            id="two classes",
        ),
        pytest.param(
            BETA,
            "  muon_beta: float = Field(default_factory=float)\n",
            "default_factory",
            "with a default",
            id="factory",
        ),
        pytest.param(BETA, "  muon_beta: float\n", "muon_beta", "with a default", id="no default"),
        pytest.param(
            BETA, "  muon_beta: float = Field(BETA)\n", "muon_beta", "literal", id="a name"
        ),
        pytest.param(
            BETA, "  muon_beta: float = Field(0.95,\n", "muon_beta", "syntax", id="broken"
        ),
    ],
)
def test_refused(old: str, new: str, line: str | None, message: str) -> None:
    check_refused(fixer, swap(TYPES, old, new), line, message)
