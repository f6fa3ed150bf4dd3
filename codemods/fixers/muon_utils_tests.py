"""Switch the imports of optax's Muon in the checkout's own ``muon_utils_test.py (muon_test.py)``.

What the tests expect stays: a test that pins released numbers now reports where the reference
differs from them.
"""

from __future__ import annotations

from codemods.fixer import Fixer
from codemods.fixers._tests import switch_imports

fixer = Fixer(
    name="muon_utils_tests",
    role="muon_utils_test",
    summary="import MuonDimensionNumbers from the fork in muon_utils_test.py",
    apply=switch_imports,
)
