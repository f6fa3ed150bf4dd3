"""Parameter trees of real models (MaxText 0.2.5, tiny sizes), recorded with their axis names."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from muon_fork.config_keys import config_values
from muon_fork.model_dimensions import ModelDimensions
from muon_fork.spec import MuonSpec

DATA = Path(__file__).parents[1] / "data" / "param_trees"
FAMILIES = tuple(sorted(path.stem for path in DATA.glob("*.json")))
LAYOUTS = ("scan", "unscan")
LAYER_AXES = frozenset({"layers", "dense_layers", "moe_layers", "scanned_blocks", "local_layers"})


@dataclass(frozen=True)
class Leaf:
    """One parameter: path, shape, and MaxText's logical name of each axis (None: unnamed)."""

    path: tuple[str, ...]
    shape: tuple[int, ...]
    axes: tuple[str | None, ...] | None

    @property
    def name(self) -> str:
        return "/".join(self.path)


@cache
def _content(family: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((DATA / f"{family}.json").read_text(encoding="utf-8"))
    return content


def leaves(family: str, layout: str) -> tuple[Leaf, ...]:
    rows = _content(family)[layout].items()
    return tuple(
        Leaf(
            tuple(path.split("/")),
            tuple(shape),
            tuple(axes) if axes is not None and len(axes) == len(shape) else None,
        )
        for path, (shape, axes) in rows
    )


def config(family: str, spec: MuonSpec | None = None, **keys: Any) -> Any:
    """The model's configuration, with the keys of a spec if one is given."""
    values = dict(_content(family)["config"])
    if spec is not None:
        values |= config_values(spec)
    return SimpleNamespace(**{**values, "gradient_clipping_threshold": 0.0, **keys})


def dimensions(family: str) -> ModelDimensions:
    return ModelDimensions.from_config(config(family))
