"""The dictionary that muon() gets, and everything that could get past it."""

from __future__ import annotations

import ast

import pytest

from codemods.fixers.muon_kwargs import fixer
from tests.codemods.fixers.tools import before, check_noop, check_refused, check_transformed, swap

OPTIMIZER = before("release-0.2.3", "optimizer")
MERGING = before("release-0.2.5", "optimizer")
CALL = "    base_opt = muon(**muon_kwargs)\n"
EPS = '        "eps": config.adam_eps,\n'
LAST = '        "adam_weight_decay": config.adam_weight_decay,\n    }\n'


def entries(text: str) -> list[str]:
    """Keys of the dictionary, ``**`` entries as the expression."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            pairs = zip(node.value.keys, node.value.values, strict=True)
            return [ast.unparse(value) if key is None else key.value for key, value in pairs]
    raise AssertionError("no dictionary")


def test_the_spec_comes_last_and_wins() -> None:
    result = entries(check_transformed(fixer, OPTIMIZER))
    assert result[-2:] == ["adam_weight_decay_mask", "megatron_muon.muon_kwargs(config, model)"]
    assert set(entries(OPTIMIZER)) - set(result) == {"eps"}


def test_coefficients_go() -> None:
    gone = set(entries(MERGING)) - set(entries(check_transformed(fixer, MERGING)))
    assert gone == {"eps", "ns_coeffs", "ns_steps"}


def test_entries_of_the_checkout_stay() -> None:
    text = swap(OPTIMIZER, EPS, EPS + '        "adaptive": config.ours,  # a try\n')
    assert '        "adaptive": config.ours,  # a try\n' in check_transformed(fixer, text)


def test_comment_behind_a_dropped_entry_stays() -> None:
    text = swap(OPTIMIZER, EPS, '        "eps": config.adam_eps  ,  # why\n')
    assert "        # why\n" in check_transformed(fixer, text)


def test_last_entry_without_comma() -> None:
    result = check_transformed(fixer, swap(OPTIMIZER, LAST, LAST.replace(",\n    }", "\n    }")))
    assert entries(result) == entries(check_transformed(fixer, OPTIMIZER))


def test_config_by_another_name() -> None:
    text = OPTIMIZER.replace("config", "cfg")
    assert "**megatron_muon.muon_kwargs(cfg, model)," in check_transformed(fixer, text)


def test_migrated_text_stays() -> None:
    check_noop(fixer, check_transformed(fixer, MERGING))


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        pytest.param(
            CALL,
            "    base_opt = muon(config.learning_rate, **muon_kwargs)\n",
            "muon(config",
            "otherwise than with one",
            id="another argument",
        ),
        pytest.param(
            CALL,
            "    base_opt = muon(learning_rate=1.0)\n",
            "muon(learning_rate",
            "otherwise than with one",
            id="plain keywords",
        ),
        pytest.param(
            CALL,
            "    base_opt = functools.partial(muon)(**muon_kwargs)\n",
            "partial",
            "otherwise than as muon",
            id="partial",
        ),
        pytest.param(
            "def get_adamw_mask(config):",
            "def our_muon(**kwargs):\n  return muon(**kwargs)\n\n\ndef get_adamw_mask(config):",
            "return muon(**kwargs)",
            "otherwise than with one",
            id="wrapper",
        ),
        pytest.param(
            "def get_adamw_mask(config):",
            'TABLE = {"muon": muon}\n\n\ndef get_adamw_mask(config):',
            "TABLE",
            "otherwise than as muon",
            id="table of optimizers",
        ),
        pytest.param(
            CALL,
            '    muon_kwargs["nesterov"] = False\n' + CALL,
            '["nesterov"]',
            "also used here",
            id="changed later",
        ),
        pytest.param(
            CALL,
            "    muon_kwargs.update(config.extra)\n" + CALL,
            "update",
            "also used here",
            id="updated later",
        ),
        pytest.param(
            CALL,
            '    muon_kwargs = muon_kwargs | {"beta": 0.9}\n' + CALL,
            "| {",
            "merged over",
            id="merged over the spec",
        ),
        pytest.param(
            EPS, '        "eps": 1e-6,\n', '"eps"', "would be overridden", id="eps of its own"
        ),
        pytest.param(
            '"beta": config.muon_beta', '"beta": 0.9', '"beta"', "overridden", id="fixed beta"
        ),
        pytest.param(
            EPS,
            EPS + '        "nesterov": config.nesterov,\n',
            '"nesterov": ',
            "config.muon_nesterov",
            id="a key of the spec",
        ),
        pytest.param(
            EPS, EPS + "        **config.more,\n", "config.more", "unknown", id="star entry"
        ),
        pytest.param(
            EPS, EPS + "        config.key: 1,\n", "config.key", "plain string", id="computed key"
        ),
        pytest.param(
            EPS,
            '        "eps": config.adam_eps, "adaptive": False,\n',
            '"eps"',
            "line of its own",
            id="two entries on a line",
        ),
        pytest.param(
            LAST,
            '        "adam_weight_decay": config.adam_weight_decay}\n',
            "muon_kwargs = {",
            "closing brace",
            id="brace behind the last entry",
        ),
        pytest.param(
            "    muon_kwargs = {",
            "    muon_kwargs = {}\n    muon_kwargs = {",
            "def get_optimizer",
            "found 2",
            id="two dictionaries",
        ),
        pytest.param(
            "def get_optimizer(", "def make_optimizer(", None, "no top-level function", id="renamed"
        ),
    ],
)
def test_refused(old: str, new: str, line: str | None, message: str) -> None:
    check_refused(fixer, swap(OPTIMIZER, old, new), line, message)


def test_spec_that_is_not_last_is_refused() -> None:
    text = check_transformed(fixer, OPTIMIZER)
    spec = "        **megatron_muon.muon_kwargs(config, model),\n"
    text = swap(text, spec, spec + '        "beta": 0.9,\n')
    check_refused(fixer, text, "muon_kwargs(config, model)", "last entry")
