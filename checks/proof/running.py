"""Run a row: record with Megatron, go on with MaxText, keep what was found."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from checks.result import Outcome, Rung
from checks.setting import Setting
from checks.trainers.megatron.launch import TrainingFailed, record
from checks.training.compare import How, compare
from checks.training.errors import RunError
from checks.training.float64 import allow_float64
from checks.training.folder import open_run
from checks.training.tree import migrated_copy, open_tree
from muon_fork.presets import preset

from . import stored
from .layouts import TITLE, equal_layouts
from .row import FIRST, Row

_FLOAT64 = (
    "float64: Megatron-Core with params_dtype=float64 and float64 where its code names float32; "
    "MaxText with float64 added to the dtypes of its configuration, one line"
)
_EXACT = (
    "MaxText's RMSNorm has float64 where its code names float32, and the loss is divided by the "
    "number of tokens without adding 1e-8"
)


@dataclass(frozen=True)
class Place:
    """
    Attributes:
      out: recordings, migrated copies of MaxText and results go here.
      releases: folder with MaxText's unpacked releases by their number.
      python: of MaxText's environment.
      progress: gets a line now and then.
    """

    out: Path
    releases: Path
    python: Path
    progress: Callable[[str], None]

    def result(self, name: str) -> Path:
        return self.out / "rows" / f"{name}.json"

    def recording(self, row: Row) -> Path:
        return self.out / "runs" / row.recording


def run(row: Row, place: Place) -> Rung:
    """The row's rung, kept in its file; a failure of a trainer is a failed rung."""
    return _kept(row.name, row.title, place, lambda: _compared(row, recorded(row, place), place))


def run_layouts(row: Row, place: Place) -> Rung:
    """The row's first checkpoint in every layout."""

    def check() -> Rung:
        iteration = recorded(row, place) / f"iter_{FIRST:07d}"
        return equal_layouts(row.training, iteration, progress=place.progress)

    return _kept("layouts", TITLE, place, check)


def _kept(name: str, title: str, place: Place, check: Callable[[], Rung]) -> Rung:
    began = time.monotonic()
    try:
        found = check()
    except (RunError, TrainingFailed) as error:
        found = Rung(name, title, Outcome.FAILED, reason=str(error))
    seconds = time.monotonic() - began
    rung = dataclasses.replace(found, name=name, title=title, seconds=seconds)
    stored.write(rung, place.result(name))
    return rung


def recorded(row: Row, place: Place) -> Path:
    """Folder of the row's Megatron run, recorded now if it is not there."""
    folder = place.recording(row)
    if (folder / "run.json").exists():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    place.progress(f"{row.name}: Megatron trains {row.training.steps} steps")
    return record(row.training, folder, floor=row.floor, progress=place.progress)


def _compared(row: Row, folder: Path, place: Place) -> Rung:
    tree = migrated(row.release, place, float64=row.float64, exact=row.exact)
    overrides = row.spec_overrides
    how = How(
        restarted=row.restarted,
        scan=row.scan,
        spec_overrides=overrides,
        float64=row.float64,
        exact=row.exact,
    )
    setting = Setting(preset("megatron"), progress=place.progress)
    place.progress(f"{row.name}: MaxText {row.release} goes on")
    rung = compare(open_run(folder), tree, place.python, None, setting, how)
    told = [f"{name}={value}: not in the arguments" for name, value in overrides.items()]
    told += [_FLOAT64] if row.float64 else []
    told += [_EXACT] if row.exact else []
    rung = dataclasses.replace(rung, notes=(*rung.notes, *told))
    gates = {figure.gate for figure in rung.figures}
    if gates != {row.gate}:
        reason = f"limited by {', '.join(sorted(gates))}, but the table says {row.gate}"
        return dataclasses.replace(rung, outcome=Outcome.FAILED, reason=reason)
    return rung


def migrated(release: str, place: Place, *, float64: bool = False, exact: bool = False) -> Path:
    """A copy of the release migrated by this very toolkit, made once.

    Args:
      float64, exact: for ``How`` with the same.
    """
    words = [word for word, is_so in (("float64", float64), ("exact", exact)) if is_so]
    folder = place.out / "maxtext" / "-".join([release, _toolkit(), *words])
    if not folder.exists():
        place.progress(f"migrating a copy of MaxText {release}")
        partial = folder.with_name(f"{folder.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        edit = functools.partial(allow_float64, exact=exact) if float64 else _as_it_is
        migrated_copy(open_tree(place.releases / release), partial, edit)
        partial.rename(folder)
    return folder


def _as_it_is(_copy: Path) -> None:
    """No edit."""


@functools.cache
def _toolkit() -> str:
    """Digest of what makes a migrated copy what it is."""
    root = Path(__file__).parents[2]
    digest = hashlib.sha256()
    for package in ("codemods", "muon_fork"):
        for file in sorted((root / package).rglob("*.py")):
            digest.update(file.read_bytes())
    return digest.hexdigest()[:12]
