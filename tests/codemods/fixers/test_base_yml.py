"""Every key in base.yml, in a spelling that YAML 1.1 reads back, comments kept."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from codemods.fixers._yaml import same_value, setting, yaml_literal
from codemods.fixers.base_yml import fixer
from muon_fork.config_keys import CONFIG_KEYS, config_values
from muon_fork.presets import PRESETS, preset
from tests.codemods.fixers.tools import (
    before,
    check_refused,
    context,
    swap,
)

BASE = before("release-0.2.3", "base_yml")
BETA = "muon_beta: 0.95 # Momentum.\n"
SHARED = frozenset(row.key for row in CONFIG_KEYS if row.shared)


def read(text: str) -> dict[str, Any]:
    """The file as MaxText reads it: YAML 1.1, ``None`` as a word."""
    loaded = yaml.safe_load(text)
    return {key: None if value == "None" else value for key, value in loaded.items()}


@pytest.mark.parametrize("name", [row.name for row in PRESETS])
def test_values_are_the_references(name: str) -> None:
    spec = preset(name)
    result = fixer.apply(BASE, context(spec, shared_keys=SHARED))
    values = read(result)
    for key, value in config_values(spec).items():
        assert values[key] == value
        assert type(values[key]) is type(value) or key == "muon_weight_decay"
    assert fixer.apply(result, context(spec, shared_keys=SHARED)) == result


def test_shared_keys_stay_unless_they_are_settled() -> None:
    spec = preset("deepseek_v4")
    some = fixer.apply(BASE, context(spec, shared_keys=frozenset({"adam_eps"})))
    assert "adam_eps: 1.0e-20 # Guard.\n" in some
    assert "adam_b1: 0.9 # Decay of the first moment.\n" in some
    assert "adam_eps: 1.e-8 # Guard.\n" in fixer.apply(BASE, context(spec))


def test_other_lines_stay() -> None:
    kept = [line for line in BASE.splitlines() if "muon" not in line and '"nesterov"' not in line]
    kept = [line for line in kept if '"mu_dtype", "adam_eps"' not in line]
    result = fixer.apply(BASE, context()).splitlines()
    assert [line for line in result if line in kept] == kept


def test_equal_value_keeps_its_spelling() -> None:
    assert "muon_weight_decay: 0 # Decoupled" in fixer.apply(BASE, context())


def test_another_reference_changes_values_only() -> None:
    first = fixer.apply(BASE, context(preset("optax")))
    assert fixer.apply(first, context(preset("megatron"))) == fixer.apply(
        BASE, context(preset("megatron"))
    )


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        pytest.param(
            "muon_batch_update: False # Stacks. TODO(not-yet-wired)",
            "muon_batch_update: True # Stacks.",
            id="behind a sentence",
        ),
        pytest.param(
            "muon_batch_update: False # Stacks (TODO(not-yet-wired))",
            "muon_batch_update: True # Stacks",
            id="in parentheses",
        ),
        pytest.param(
            "muon_batch_update: False # TODO(not-yet-wired)",
            "muon_batch_update: True # Stack same-shape matrices.",
            id="alone",
        ),
        pytest.param(
            'muon_nesterov_style: "ema"   # ours',
            'muon_nesterov_style: "sgd"   # ours',
            id="spacing and comment",
        ),
        pytest.param("muon_ns_eps: 1e-7", "muon_ns_eps: 1.0e-07", id="a string to YAML 1.1"),
        pytest.param("muon_ns_eps : 1.e-7", "muon_ns_eps : 1.e-7", id="blank before the colon"),
    ],
)
def test_key_that_is_there(line: str, expected: str) -> None:
    result = fixer.apply(swap(BASE, BETA, f"{BETA}{line}\n"), context())
    assert f"\n{expected}\n" in result


def test_marker_above_a_key_goes() -> None:
    text = swap(BASE, BETA, f"# Stacks. TODO(not-yet-wired)\n{BETA}")
    assert f"\n# Stacks.\n{BETA}" in fixer.apply(text, context())


def test_keys_of_the_checkout_stay() -> None:
    own = "muon_ours: [1, 2] # a try\n"
    assert own in fixer.apply(swap(BASE, BETA, BETA + own), context())


def test_file_that_ends_in_the_section_without_line_end() -> None:
    text = BASE[: BASE.index("\n\n# Something else")]
    result = fixer.apply(text, context())
    assert read(result).keys() >= config_values(preset("megatron_rfc")).keys()
    assert not result.endswith("\n")


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        pytest.param(BETA, "", None, "no top-level key muon_beta", id="no section"),
        pytest.param(BETA, BETA + BETA, "muon_beta", "set twice", id="twice"),
        pytest.param(BETA, "muon_beta: [0.95]\n", "muon_beta", "plain value", id="list"),
        pytest.param(BETA, "muon_beta:\n  - 0.95\n", "muon_beta", "plain value", id="nested"),
    ],
)
def test_refused(old: str, new: str, line: str | None, message: str) -> None:
    check_refused(fixer, swap(BASE, old, new), line, message)


@pytest.mark.parametrize("value", [None, True, 0, 16, 0.0, 0.2, 1e-7, 1e-20, 1e22, "sgd", "a: #b"])
def test_literal_is_read_back(value: Any) -> None:
    loaded = yaml.safe_load(f"key: {yaml_literal(value)} # comment")["key"]
    assert loaded == ("None" if value is None else value)
    assert same_value(yaml_literal(value), value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", False),
        ("true", 1),
        ("1", True),
        ("null", None),
        ("", None),
        ("None", "None"),
        ("x", 1),
    ],
)
def test_look_alikes_differ(text: str, value: Any) -> None:
    assert not same_value(text, value)


@pytest.mark.parametrize(
    "line",
    ["# a: b", "  a: b", "- a: b", "https://x/y", "a", "", "a:b"],
)
def test_not_a_setting(line: str) -> None:
    assert setting(line) is None


def test_setting_is_the_line_again() -> None:
    for line in ('a: "x # y" # z', "a:   b#c   # d", "a:", "a: # only", "a: 'it''s'", "a: b c"):
        assert str(setting(line)) == line
