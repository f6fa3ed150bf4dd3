"""Switch the imports of optax's Muon in the checkout's own ``optimizers_test.py``.

What the tests expect stays: a test that pins released numbers now reports where the reference
differs from them.
"""

from __future__ import annotations

from codemods.fixer import Fixer
from codemods.fixers._tests import switch_imports

fixer = Fixer(
    name="optimizer_tests",
    role="optimizers_test",
    summary="import MuonDimensionNumbers from the fork in optimizers_test.py",
    apply=switch_imports,
)
