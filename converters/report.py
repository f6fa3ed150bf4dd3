"""conversion.json: what was made of what, and how to go on from it."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

from converters.source import SetAside, Source
from converters.target import TargetState, TargetTensor, leaves
from muon_fork.spec import MuonSpec
from muon_fork.version import VERSION

_PACKAGES = ("numpy", "ml_dtypes", "jax", "orbax-checkpoint", "tensorstore")


def tensor_records(state: TargetState, digests: Mapping[tuple[str, ...], str]) -> list[Any]:
    """One record per leaf, in the order of the tree; sha256 is None where it was not built."""
    return [_record(target, digests.get(target.path)) for target in leaves(state.tree)]


def _record(target: TargetTensor, digest: str | None) -> dict[str, Any]:
    return {
        "target": "/".join(target.path),
        "sources": [str(key) for key in target.sources],
        "transform": target.transform,
        "shape": list(target.shape),
        "dtype": target.dtype.name,
        "sha256": digest,
    }


def set_aside_records(entries: Sequence[SetAside]) -> list[dict[str, str]]:
    return [{"name": entry.name, "reason": entry.reason} for entry in entries]


def source_record(source: Source) -> dict[str, Any]:
    return {
        "folder": str(source.folder.absolute()),
        "format": source.format,
        "iteration": source.run.iteration,
    }


def spec_record(spec: MuonSpec | None) -> dict[str, Any] | None:
    return None if spec is None else plain(asdict(spec))


def versions() -> dict[str, str]:
    """Of this project, Python and the packages that read and write."""
    found = {"muon-toolkit": VERSION, "python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def plain(value: Any) -> Any:
    """Tuples as lists, enum members and paths as text: what JSON can hold."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(v) for v in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return str(value)


def write(file: Path, report: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(plain(report), indent=2) + "\n")
