"""The rules come first, the checkout's own branches keep their say, and no caller is forgotten."""

from __future__ import annotations

import ast
from typing import Any, Optional

import pytest

from codemods.fixers.dimension_numbers import fixer
from muon_fork.dimension_numbers import MuonDimensionNumbers as mdn
from muon_fork.model_dimensions import ModelDimensions
from muon_fork.presets import preset
from muon_fork.rules import UNKNOWN, dimension_numbers_for
from tests.codemods.fixers.tools import (
    after,
    before,
    check_noop,
    check_refused,
    check_transformed,
    swap,
)

OLD = before("release-0.2.3", "muon_utils")
NEW = before("release-0.2.5", "muon_utils")
DEFAULT = "  return mdn((0,), (-1,))\n"
QUERY = '    elif _is_path_contain_any(("query", "key", "value", "wq_b", "wkv_b"), path):\n'
EXPERTS = '  if "MoeBlock_0" in path:\n'


class Glue:
    """Stands for the module ``megatron_muon`` of a checkout."""

    UNKNOWN = UNKNOWN


def logic_of(text: str) -> Any:
    """``transform_logic`` of a migrated file, alone."""
    wanted = ("transform_logic", "_is_path_contain_any")
    body = [
        node
        for node in ast.parse(text).body
        if (isinstance(node, ast.FunctionDef) and node.name in wanted)
        or isinstance(node, ast.Assign)
    ]
    names = {"mdn": mdn, "Optional": Optional, "Tuple": tuple, "megatron_muon": Glue}
    exec(compile(ast.Module(body, []), "muon_utils", "exec"), names)
    return names["transform_logic"]


def rules(path: tuple[str, ...], shape: tuple[int, ...] | None = None) -> Any:
    """Rules of a small llama under the default reference."""
    dimensions = ModelDimensions("llama2", 64, 4, 4, 16)
    return dimension_numbers_for(path, dimensions, preset("megatron_rfc"), shape)


@pytest.mark.parametrize("text", [OLD, NEW], ids=["until 0.2.4", "0.2.5"])
def test_the_rules_come_first(text: str) -> None:
    logic = logic_of(check_transformed(fixer, text))
    query = ("decoder", "layers", "self_attention", "query", "kernel")
    assert logic(query) == mdn((0,), (-2, -1))
    assert logic(query, rules=rules) == mdn((0,), (-1,), update_scale=0.25)
    assert logic(("decoder", "ours", "kernel"), rules=rules) == mdn((0,), (-1,))


def test_branches_of_the_checkout_keep_their_say() -> None:
    logic = logic_of(after("rfc-fork", "muon_utils"))
    memory = ("decoder", "layers", "self_attention", "memory_bank", "kernel")
    assert logic(memory, rules=rules) == mdn((-2,), (-1,))
    adapter = ("decoder", "layers", "self_attention", "query", "lora_a")
    assert logic(adapter, rules=rules) is None
    inside = ("decoder", "layers", "memory_bank", "self_attention", "query", "kernel")
    assert logic(inside, rules=rules) == mdn((0,), (-2, -1)), "the rules alone would split heads"


@pytest.mark.parametrize(
    "test",
    [
        '"ours" in path',
        '"ours" in path and "query" in path',
        '"ours" in path or "theirs" in path',
        'path[-1] == "ours"',
        '_is_path_contain_any(("ours", "theirs"), path)',
    ],
)
def test_own_branch_stays(test: str) -> None:
    text = swap(OLD, EXPERTS, f"  if {test}:\n    return None\n\n{EXPERTS}")
    result = check_transformed(fixer, text)
    assert f"  own = {test}\n" in result
    assert f"  if {test}:\n    return None\n" in result


def test_own_branch_over_several_lines() -> None:
    test = '(\n      "ours" in path  # thin\n      and "query" in path\n  )'
    text = swap(OLD, EXPERTS, f"  if {test}:\n    return None\n\n{EXPERTS}")
    assert "  own = 'ours' in path and 'query' in path\n" in check_transformed(fixer, text)


def test_statements_of_an_own_branch_are_its_own() -> None:
    own = (
        '  if "ours" in path:\n    axes = (0,)\n    if path[0] == "x":\n      return None\n'
        "    return mdn(axes, (-1,))\n"
    )
    assert own in check_transformed(fixer, swap(OLD, EXPERTS, own + EXPERTS))


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        pytest.param(
            EXPERTS, f'  if "query" in path:\n    return None\n{EXPERTS}', '"query" in', id="known"
        ),
        pytest.param(
            EXPERTS,
            f'  if "ours" in path or "query" in path:\n    return None\n{EXPERTS}',
            '"ours" in',
            id="own or known",
        ),
        pytest.param(
            EXPERTS, f"  if len(path) > 5:\n    return None\n{EXPERTS}", "len(path)", id="no name"
        ),
        pytest.param(
            EXPERTS,
            f'  if any("ours" in s for s in path):\n    return None\n{EXPERTS}',
            'any("ours"',
            id="substring",
        ),
        pytest.param(
            EXPERTS, f'  if "ours" not in path:\n    return None\n{EXPERTS}', "not in", id="negated"
        ),
        pytest.param(
            QUERY + "      return mdn((0,), (-2, -1))\n",
            QUERY + "      return mdn((0,), (-1,))\n",
            '"query"',
            id="other numbers in a released branch",
        ),
        pytest.param(QUERY, QUERY.replace(', "wkv_b"', ""), '"query"', id="fewer names"),
        pytest.param(DEFAULT, "  return None\n", "return None", id="other default"),
        pytest.param(EXPERTS, f"  path = path[1:]\n{EXPERTS}", "path = path[1:]", id="statement"),
        pytest.param(
            EXPERTS, f"  for _ in path:\n    return None\n{EXPERTS}", "for _ in", id="loop"
        ),
        pytest.param(
            DEFAULT, f"  else:\n    return None\n{DEFAULT}", "return None", id="new else branch"
        ),
    ],
)
def test_overruled_branch_is_refused(old: str, new: str, line: str) -> None:
    text = swap(OLD, old, new)
    message = "may decide a parameter that the fork's rules know"
    check_refused(fixer, text, line, message)


def test_own_name_in_a_table_stays() -> None:
    text = swap(NEW, '    "shared_expert_gate",\n', '    "shared_expert_gate",\n    "ours",\n')
    assert '    "ours",\n' in check_transformed(fixer, text)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param('    "conv1d",\n', "", id="name removed"),
        pytest.param('    "conv1d",\n', '    "conv1d",\n    "wo",\n', id="known name added"),
        pytest.param('    "conv1d",\n', '    "conv1d",\n    "quer",\n', id="part of a known name"),
    ],
)
def test_changed_table_is_refused(old: str, new: str) -> None:
    check_refused(fixer, swap(NEW, old, new), "EXCLUDED_SUBSTRINGS = (", "EXCLUDED_SUBSTRINGS")


@pytest.mark.parametrize("text", [OLD, NEW], ids=["until 0.2.4", "0.2.5"])
def test_migrated_text_stays(text: str) -> None:
    check_noop(fixer, check_transformed(fixer, text))


def test_function_without_docstring() -> None:
    bare = '  """Walk a dictionary of parameters."""\n'
    document = '  """Dimension numbers in the shape of the model\'s parameters."""\n'
    result = check_transformed(fixer, swap(swap(OLD, bare, ""), document, ""))
    assert ", verbose=False):\n  rules = None if config is None" in result


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        pytest.param(
            "def transform_logic(", "def logic(", None, "no top-level function", id="no logic"
        ),
        pytest.param(
            "def transform_logic(path: Tuple[str, ...])",
            "def transform_logic(path, rules)",
            "def transform_logic",
            "already takes rules",
            id="rules of its own",
        ),
        pytest.param(
            "def transform_logic(path: Tuple[str, ...])",
            "def transform_logic(path, **options)",
            "def transform_logic",
            "unexpected parameters",
            id="keywords",
        ),
        pytest.param(
            "model, config, verbose=False",
            "model, verbose=False",
            "def get_muon_weight",
            "does not take config",
            id="no config",
        ),
        pytest.param(
            'if __name__ == "__main__":\n',
            'def show(path):\n  return transform_logic(path)\n\n\nif __name__ == "__main__":\n',
            "return transform_logic(path)",
            "is called from show",
            id="unknown caller",
        ),
        pytest.param(
            'if __name__ == "__main__":\n',
            'print(transform_logic(("wo",)))\nif __name__ == "__main__":\n',
            "print(transform_logic",
            "the top level",
            id="call at the top",
        ),
        pytest.param(
            "from optax.contrib._muon import MuonDimensionNumbers as mdn\n",
            "mdn = tuple\n",
            None,
            "no top-level import",
            id="no import",
        ),
    ],
)
def test_refused(old: str, new: str, line: str | None, message: str) -> None:
    check_refused(fixer, swap(OLD, old, new), line, message)
