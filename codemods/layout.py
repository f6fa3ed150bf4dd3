"""Which MaxText is this, and where does each file that matters lie?

A layout is a name and a place per role. The fixers speak of roles only, so a file that moves costs
one line here.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from codemods.errors import MigrateError, Problem

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
            ("embeddings", "maxtext/layers/embeddings.py"),
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
            ("embeddings", "MaxText/layers/embeddings.py"),
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
            ("embeddings", "MaxText/layers/embeddings.py"),
            ("pyconfig", "MaxText/pyconfig.py"),
        ),
    ),
)


def detect(path: Path) -> Layout:
    """The layout at ``path``: a checkout, an unpacked wheel, site-packages or the package itself.

    Raises:
      MigrateError: nothing at ``path``, no MaxText, a MaxText without Muon, or an arrangement that
        is not known; the problems then list the places that are missing.
    """
    if not path.is_dir():
        raise MigrateError(Problem(_not_a_directory(path), str(path)))
    bases = list(dict.fromkeys(_bases(path.resolve())))
    found = ((a, base) for a in LAYOUTS for base in bases if not _missing(a, base))
    for arrangement, base in found:
        return _layout(arrangement, base)
    raise MigrateError(*_why_unknown(path, bases))


def _not_a_directory(path: Path) -> str:
    if path.suffix == ".whl":
        return "is a packed wheel: unpack it first (python -m zipfile -e WHEEL DIRECTORY)"
    return "is not a directory" if path.exists() else "does not exist"


def _bases(path: Path) -> Iterator[Path]:
    """Directories that may hold the packages, for every way in which users point at a MaxText."""
    yield path
    yield path / "src"
    if path.name in {a.package for a in LAYOUTS}:
        yield path.parent
    yield from sorted(path.glob("lib/python3*/site-packages"))


def _missing(arrangement: Arrangement, base: Path) -> list[str]:
    """Required places that hold no file."""
    there = {role for role, place in arrangement.places if _is_file(base, place)}
    places = dict(reversed(arrangement.places))
    return [places[role] for role in REQUIRED if role not in there]


def _is_file(base: Path, place: str) -> bool:
    """Also on a file system that ignores case, ``maxtext`` is not ``MaxText``."""
    top = place.partition("/")[0]
    return (base / place).is_file() and top in os.listdir(base)


def _layout(arrangement: Arrangement, base: Path) -> Layout:
    root = base.parent if base.name == "src" else base
    roles: dict[str, Path] = {}
    for top, places in ((base, arrangement.places), (root, TEST_PLACES)):
        for role, place in places:
            if role not in roles and _is_file(top, place):
                roles[role] = top / place
    return Layout(arrangement.name, root, base / arrangement.package, roles)


def _why_unknown(path: Path, bases: list[Path]) -> list[Problem]:
    tried = [(a, base) for a in LAYOUTS for base in bases]
    nearest, base = min(tried, key=lambda pair: len(_missing(*pair)))
    missing = _missing(nearest, base)
    if len(missing) == len(REQUIRED):
        message = "holds no MaxText: expected the package maxtext or MaxText in it or in its src"
        return [Problem(message, str(path))]
    optimizer = base / dict(reversed(nearest.places))["optimizer"]
    if optimizer.is_file() and b"muon" not in optimizer.read_bytes():
        message = "this MaxText has no Muon to migrate: Muon came with release 0.2.0"
        return [Problem(message, str(optimizer))]
    hint = f"missing; no known layout fits, the nearest is {nearest.name} ({nearest.known_from})"
    return [Problem(hint, str(base / place)) for place in missing]
