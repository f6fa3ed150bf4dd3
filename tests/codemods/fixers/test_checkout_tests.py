"""The checkout's own tests build the fork's dimension numbers."""

from __future__ import annotations

import pytest

from codemods.fixer import Fixer
from codemods.fixers.muon_utils_tests import fixer as muon_utils_tests
from codemods.fixers.optimizer_tests import fixer as optimizer_tests
from tests.codemods.fixers.tools import before, check_noop, check_refused, check_transformed, swap

TEXT = before("main-2026-08", "optimizers_test")
IMPORT = "from optax.contrib import MuonDimensionNumbers as mdn\n"
FIXERS = pytest.mark.parametrize("fixer", [optimizer_tests, muon_utils_tests])


@FIXERS
def test_switched(fixer: Fixer) -> None:
    new = (
        "from maxtext.third_party.optax_muon.dimension_numbers import MuonDimensionNumbers as mdn\n"
    )
    assert check_transformed(fixer, TEXT) == swap(TEXT, IMPORT, new)


@FIXERS
def test_without_muon_nothing_happens(fixer: Fixer) -> None:
    check_noop(fixer, "this is not Python at all (")


@FIXERS
def test_star_import_is_refused(fixer: Fixer) -> None:
    text = swap(TEXT, IMPORT, "from optax.contrib._muon import *\n")
    check_refused(fixer, text, "import *", "star import")
