"""Which MaxText is this, and where does each file that matters lie?

A layout is a name and a place per role. The fixers speak of roles only, so a file that moves costs
one line here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

# Roles without which there is nothing to migrate; every layout must place them.
REQUIRED = ("optimizer", "muon_utils", "config_types", "base_yml")


@dataclass(frozen=True)
class Layout:
    """One MaxText tree.

    Attributes:
      name: which known arrangement it has.
      root: directory the user thinks of as "the checkout" (holds ``src`` or the package).
      package: directory of the Python package that gets ``third_party/optax_muon``.
      roles: role -> absolute path, only for files that exist.
    """

    name: str
    root: Path
    package: Path
    roles: Mapping[str, Path]

    def relative(self, path: Path) -> str:
        """``path`` as the user sees it: below ``root`` where it is, with forward slashes."""
        return (
            path.relative_to(self.root).as_posix() if path.is_relative_to(self.root) else str(path)
        )


@dataclass(frozen=True)
class Arrangement:
    """A known way to lay MaxText out.

    Attributes:
      name: how the tools call it.
      known_from: the releases or dates that have it.
      package: the package that gets ``third_party``.
      places: (role, path below the directory of the packages); the first that exists wins.
    """

    name: str
    known_from: str
    package: str
    places: tuple[tuple[str, str], ...]


# The first that exists wins. Wheels carry no tests.
TEST_PLACES = (
    ("optimizers_test", "tests/unit/optimizers_test.py"),
    ("muon_utils_test", "tests/unit/muon_utils_test.py"),
    ("muon_utils_test", "tests/unit/muon_test.py"),
    ("muon_utils_test", "tests/muon_test.py"),
)

LAYOUTS: tuple[Arrangement, ...] = (
    Arrangement(
        name="maxtext",
        known_from="releases 0.2.0 to 0.2.5, main since 2026-02",
        package="maxtext",
        places=(
            ("optimizer", "maxtext/optimizers/optimizers.py"),
            ("muon_utils", "maxtext/utils/muon_utils.py"),
            ("sharded_muon_utils", "maxtext/utils/maxtext_muon_utils.py"),
            ("config_types", "maxtext/configs/types.py"),
            ("base_yml", "maxtext/configs/base.yml"),
            ("pyconfig", "maxtext/configs/pyconfig.py"),
            ("pyconfig", "MaxText/pyconfig.py"),
        ),
    ),
    Arrangement(
        name="half-moved",
        known_from="main of 2026-01",
        package="MaxText",
        places=(
            ("optimizer", "MaxText/optimizers.py"),
            ("muon_utils", "maxtext/utils/muon_utils.py"),
            ("config_types", "MaxText/configs/types.py"),
            ("base_yml", "MaxText/configs/base.yml"),
            ("pyconfig", "MaxText/pyconfig.py"),
        ),
    ),
    Arrangement(
        name="MaxText",
        known_from="main of 2025-12",
        package="MaxText",
        places=(
            ("optimizer", "MaxText/optimizers.py"),
            ("muon_utils", "MaxText/muon_utils.py"),
            ("config_types", "MaxText/configs/types.py"),
            ("base_yml", "MaxText/configs/base.yml"),
            ("pyconfig", "MaxText/pyconfig.py"),
        ),
    ),
)
