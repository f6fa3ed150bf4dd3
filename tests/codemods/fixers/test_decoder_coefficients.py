"""Coefficients by decoder block go, comments and everything else stay."""

from __future__ import annotations

from codemods.fixers import muon_kwargs
from codemods.fixers.decoder_coefficients import fixer
from tests.codemods.fixers.tools import (
    before,
    check_noop,
    check_refused,
    check_transformed,
    context,
    swap,
)

OPTIMIZER = muon_kwargs.fixer.apply(before("release-0.2.4", "optimizer"), context())
IMPORT = "from maxtext.common.common_types import DecoderBlockType\n"
CHOICE = """\
    if config.decoder_block == DecoderBlockType.DEEPSEEK4:
      ns_coeffs = [(3.0, -4.0, 2.0)] * 8
      ns_steps = 8
    else:
      ns_coeffs = (3.0, -4.0, 2.0)
      ns_steps = 5
"""


def test_choice_and_import_go() -> None:
    result = check_transformed(fixer, OPTIMIZER)
    assert result == swap(swap(OPTIMIZER, CHOICE, ""), IMPORT, "")


def test_import_stays_where_it_is_used() -> None:
    text = swap(OPTIMIZER, "  return base_opt\n", "  return base_opt, DecoderBlockType\n")
    assert IMPORT in check_transformed(fixer, text)


def test_import_of_two_names_stays() -> None:
    more = IMPORT.replace("import D", "import AttentionType, D")
    assert more in check_transformed(fixer, swap(OPTIMIZER, IMPORT, more))


def test_comments_inside_stay() -> None:
    text = swap(OPTIMIZER, "      ns_steps = 8\n", "      # Eight is enough.\n      ns_steps = 8\n")
    assert "    # Eight is enough.\n" in check_transformed(fixer, text)


def test_read_coefficients_stay() -> None:
    check_noop(fixer, before("release-0.2.4", "optimizer"))


def test_releases_without_choice_stay() -> None:
    check_noop(fixer, before("release-0.2.3", "optimizer"))


def test_more_than_coefficients_is_refused() -> None:
    text = swap(OPTIMIZER, "      ns_steps = 8\n", "      ns_steps = 8\n      warn(config)\n")
    check_refused(fixer, text, "if config.decoder_block", "chooses more")
