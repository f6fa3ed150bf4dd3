"""The rewrites, in the order in which they run."""

from __future__ import annotations

from codemods.fixer import Fixer
from codemods.fixers import (
    adam_wd_mask,
    base_yml,
    config_fields,
    decoder_allow_list,
    decoder_coefficients,
    dimension_numbers,
    muon_kwargs,
    muon_utils_tests,
    optimizer_imports,
    optimizer_tests,
    sharded_dimension_numbers,
    tied_logits,
)

FIXERS: tuple[Fixer, ...] = (
    optimizer_imports.fixer,
    adam_wd_mask.fixer,
    muon_kwargs.fixer,
    decoder_coefficients.fixer,
    dimension_numbers.fixer,
    sharded_dimension_numbers.fixer,
    config_fields.fixer,
    decoder_allow_list.fixer,
    base_yml.fixer,
    tied_logits.fixer,
    optimizer_tests.fixer,
    muon_utils_tests.fixer,
)
