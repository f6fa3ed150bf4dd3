"""300 bent sources: never a broken file, never a partial tree.

The sources are those of real releases, down to what mentions Muon, so that a case takes a fraction
of a second.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import itertools
from collections import Counter
from pathlib import Path

import pytest
import yaml

from codemods.fixer import Context, Fixer
from codemods.fixers import FIXERS
from codemods.record import STATE_DIRECTORY
from tests.codemods.mutations import mutate, trimmed
from tests.codemods.trees import migrate, snapshot
from tests.real.maxtext.trees import released

VERSIONS = ("0.2.0", "0.2.3", "0.2.5")
FILES = (
    "optimizers/optimizers.py",
    "utils/muon_utils.py",
    "configs/types.py",
    "configs/base.yml",
)
OPTIONAL = ("utils/maxtext_muon_utils.py",)
CASES, CHUNK = 300, 50
_REMEMBERED: dict[tuple[str, str, object], str] = {}


@functools.cache
def _corpus(version: str) -> dict[str, str]:
    package = released(version) / "maxtext"
    names = [*FILES, *(name for name in OPTIONAL if (package / name).exists())]
    texts = {name: (package / name).read_text() for name in names}
    return {name: trimmed(t) if name.endswith(".py") else t for name, t in texts.items()}


@pytest.fixture(autouse=True)
def remembered_rewrites(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rewrites are pure: what they made of an unbent file, they will make of it again."""

    def remembered(fixer: Fixer) -> Fixer:
        def apply(text: str, context: Context) -> str:
            key = (fixer.name, text, context.spec)
            if key not in _REMEMBERED:
                _REMEMBERED[key] = fixer.apply(text, context)
            return _REMEMBERED[key]

        return dataclasses.replace(fixer, apply=apply)

    monkeypatch.setattr("codemods.fixers.FIXERS", tuple(remembered(fixer) for fixer in FIXERS))


def _plant(tree: Path, version: str) -> None:
    for name, text in _corpus(version).items():
        path = tree / "maxtext" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())


def _compiles(data: bytes) -> bool:
    try:
        compile(data, "<source>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return False
    return True


def _is_valid(name: str, text: str) -> bool:
    data = text.encode()
    return _compiles(data) if name.endswith(".py") else isinstance(_settings(data), dict)


def _settings(data: bytes) -> object:
    try:
        return yaml.load(data, Loader=yaml.CSafeLoader)
    except yaml.YAMLError:
        return None


@pytest.mark.parametrize("version", VERSIONS)
def test_the_unbent_sources_migrate(tmp_path: Path, version: str) -> None:
    _plant(tmp_path, version)
    result = migrate("apply", tmp_path)
    assert result.code == 0, result.err
    assert migrate("apply", tmp_path, "--check").code == 0


@pytest.mark.parametrize("chunk", range(CASES // CHUNK))
def test_bent_sources_end_well_or_untouched(tmp_path: Path, chunk: int) -> None:
    ends: Counter[int] = Counter()
    pairs = list(itertools.product(VERSIONS, FILES))
    for seed in range(chunk * CHUNK, (chunk + 1) * CHUNK):
        version, name = pairs[seed % len(pairs)]
        tree = tmp_path / str(seed)
        _plant(tree, version)
        bent = mutate(seed, _corpus(version)[name], functools.partial(_is_valid, name))
        (tree / "maxtext" / name).write_bytes(bent.encode())
        ends[_outcome(tree, f"seed {seed}: {version} {name}")] += 1
    assert set(ends) == {0, 2}, "every chunk should see both ends"


def _outcome(tree: Path, case: str) -> int:
    before = snapshot(tree)
    texts = {p: p.read_bytes() for p in tree.rglob("*") if p.is_file()}
    result = migrate("apply", tree)
    assert result.code in (0, 2), f"{case}: {result}"
    assert "Traceback" not in result.err, case
    if result.code == 2:
        assert result.err.startswith("muon-migrate: "), case
        assert snapshot(tree) == before, case
        return 2
    for path, data in texts.items():
        if path.suffix == ".py":
            assert _compiles(data), f"{case}: {path} was broken before and got written all the same"
            assert _compiles(path.read_bytes()), f"{case}: {path} is broken now"
    for name in ("optimizers/optimizers.py", "utils/muon_utils.py"):
        assert not _released_muons(tree / "maxtext" / name), f"{case}: {name} still takes optax's"
    _check_settings(texts, tree / "maxtext/configs/base.yml", case)
    record, aside = tree / "maxtext" / STATE_DIRECTORY, tree / "aside"
    record.rename(aside)  # With it, the tool would know the tree and rewrite nothing.
    assert migrate("apply", tree, "--check").code == 0, f"{case}: not idempotent"
    aside.rename(record)
    assert migrate("revert", tree).code == 0, case
    assert snapshot(tree) == before, case
    return 0


def _released_muons(path: Path) -> list[str]:
    """Names still imported from optax's Muon or MaxText's own."""
    nodes = [n for n in ast.walk(ast.parse(path.read_bytes())) if isinstance(n, ast.ImportFrom)]
    modules = ("optax.contrib", "optax.contrib._muon", "maxtext.optimizers.muon")
    names = {"muon", "MuonDimensionNumbers"}
    return [a.name for n in nodes if n.module in modules for a in n.names if a.name in names]


def _check_settings(texts: dict[Path, bytes], path: Path, case: str) -> None:
    """As YAML sees it: still readable, no key lost, none but Muon's changed."""
    old = _settings(texts[path])
    if not isinstance(old, dict):
        return
    new = _settings(path.read_bytes())
    assert isinstance(new, dict), f"{case}: base.yml is broken now"
    kept = {key: value for key, value in old.items() if "muon" not in key}
    assert {key: new.get(key, ...) for key in kept} == kept, case
    assert set(old) <= set(new), case
