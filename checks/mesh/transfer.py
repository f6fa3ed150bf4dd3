"""A request to the simulating process, and its answer: files, so that nothing else is shared."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from checks.setting import Setting
from checks.sides.gaps import Side
from checks.sides.state import State
from muon_fork.spec import MuonSpec

from .layouts import Spread

_PARTS = ("weights", "first", "second", "updates")


def write_request(file: Path, setting: Setting) -> None:
    words = {n: getattr(setting, n) for n in ("device", "dtype", "level", "trap")}
    file.write_text(json.dumps({**words, "spec": dataclasses.asdict(setting.spec)}))


def read_request(file: Path) -> Setting:
    words: dict[str, Any] = json.loads(file.read_text())
    return Setting(MuonSpec(**words.pop("spec")), **words)


def write_answer(file: Path, spreads: Mapping[str, Spread]) -> None:
    arrays: dict[str, Any] = {}
    facts = {}
    for name, spread in spreads.items():
        state = spread.side.state
        parts = (state.weights, state.first, state.second, spread.side.updates)
        for part, by_leaf in zip(_PARTS, parts, strict=True):
            arrays |= {f"{name}|{part}|{leaf}": array for leaf, array in by_leaf.items()}
        facts[name] = [state.count, spread.cut, spread.leaves, spread.collectives]
    np.savez(file, facts=np.asarray(json.dumps(facts)), **arrays)


def read_answer(file: Path) -> dict[str, Spread]:
    with np.load(file) as held:
        facts = json.loads(str(held["facts"]))
        parts: dict[str, dict[str, dict[str, Any]]] = {n: {p: {} for p in _PARTS} for n in facts}
        for key in held.files:
            if key != "facts":
                name, part, leaf = key.split("|")
                parts[name][part][leaf] = held[key]
    found = {}
    for name, (count, cut, leaves, collectives) in facts.items():
        state = State(parts[name]["weights"], parts[name]["first"], parts[name]["second"], count)
        found[name] = Spread(Side(state, parts[name]["updates"]), cut, leaves, collectives)
    return found
