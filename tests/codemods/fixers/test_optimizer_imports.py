"""Imports of a Muon, as people write them."""

from __future__ import annotations

import pytest

import muon_fork
from codemods.fixers._imports import FORK_NAMES
from codemods.fixers.optimizer_imports import fixer
from tests.codemods.fixers.tools import before, check_noop, check_refused, check_transformed, swap

OPTIMIZER = before("release-0.2.3", "optimizer")
IMPORT = "from optax.contrib._muon import muon\n"
FORK = "maxtext.third_party.optax_muon"
GLUE = f"from {FORK} import maxtext as megatron_muon\n"


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        pytest.param(IMPORT, f"from {FORK}._muon import muon\n", id="as released"),
        pytest.param(
            "from optax.contrib import muon\n", f"from {FORK}._muon import muon\n", id="public name"
        ),
        pytest.param(
            "from optax.contrib import muon as m  # ours\n",
            f"from {FORK}._muon import muon as m  # ours\n",
            id="alias and comment",
        ),
        pytest.param(
            "from optax.contrib import adopt, muon, prodigy as p\n",
            f"from optax.contrib import adopt, prodigy as p\nfrom {FORK}._muon import muon\n",
            id="beside other optimizers",
        ),
        pytest.param(
            "from optax.contrib._muon import (\n    MuonDimensionNumbers as mdn,\n    muon,\n)\n",
            f"from {FORK}.dimension_numbers import MuonDimensionNumbers as mdn\n"
            f"from {FORK}._muon import muon\n",
            id="two names in parentheses",
        ),
        pytest.param(
            "from maxtext.optimizers.muon import muon\n",
            f"from {FORK}._muon import muon\n",
            id="MaxText's own",
        ),
    ],
)
def test_switched(written: str, expected: str) -> None:
    result = check_transformed(fixer, swap(OPTIMIZER, IMPORT, written))
    assert result == swap(OPTIMIZER, IMPORT, GLUE + expected)


def test_optax_itself_and_other_optimizers_stay() -> None:
    text = swap(OPTIMIZER, "import optax\n", "import optax\nfrom optax.contrib import prodigy\n")
    assert "from optax.contrib import prodigy\n" in check_transformed(fixer, text)


def test_migrated_text_stays() -> None:
    check_noop(fixer, check_transformed(fixer, OPTIMIZER))


@pytest.mark.parametrize(
    ("written", "line", "message"),
    [
        pytest.param("from optax.contrib._muon import *\n", "import *", "star import", id="star"),
        pytest.param("from .muon import muon\n", ".muon", "relative import", id="relative"),
        pytest.param(
            "try:\n  from optax.contrib import muon\nexcept ImportError:\n  muon = None\n",
            "  from optax",
            "not at top level",
            id="conditional",
        ),
        pytest.param(
            "import optax.contrib._muon as m\n", "import optax.contrib", "by name", id="module"
        ),
        pytest.param(
            "from optax.contrib import _muon\n", "import _muon", "by name", id="module from package"
        ),
        pytest.param(
            "from maxtext.optimizers import muon\n", "import muon", "by name", id="MaxText's module"
        ),
        pytest.param(
            "from optax.contrib._muon import muon, _orthogonalize\n",
            "_orthogonalize",
            "no counterpart",
            id="private name",
        ),
        pytest.param(
            "import sys; from optax.contrib._muon import muon\n",
            "import sys",
            "shares",
            id="one line",
        ),
        pytest.param("import re\n", None, "no top-level import", id="none at all"),
    ],
)
def test_refused(written: str, line: str | None, message: str) -> None:
    check_refused(fixer, swap(OPTIMIZER, IMPORT, written), line, message)


def test_attribute_access_is_refused() -> None:
    text = swap(OPTIMIZER, "base_opt = muon(", "base_opt = optax.contrib.muon(")
    check_refused(fixer, text, "optax.contrib.muon(", "import it by name")


def test_import_inside_the_function_is_refused() -> None:
    text = swap(OPTIMIZER, IMPORT, "").replace(
        "    muon_kwargs = {", "    from optax.contrib import muon\n    muon_kwargs = {"
    )
    check_refused(fixer, text, "    from optax.contrib", "not at top level")


def test_syntax_error_names_its_line() -> None:
    text = swap(OPTIMIZER, "    if model is None:", "    if model is None")
    check_refused(fixer, text, "if model is None", "syntax error")


def test_names_lie_where_the_fork_has_them() -> None:
    for module, name in FORK_NAMES.values():
        assert muon_fork._HOME[name] == module
