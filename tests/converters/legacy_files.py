"""Change what is inside a rank's file, as Megatron might have written it."""

from __future__ import annotations

import argparse
import pickle
import shutil
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from .hostile import DATA

MODEL = "model_optim_rng.pt"
FLAT = "distrib_optim.pt"
Edit = Callable[[Any], object]


class _Inert:
    """Stands for objects of classes that are not installed."""

    def __new__(cls, *_arguments: Any, **_keywords: Any) -> _Inert:
        return object.__new__(cls)

    def __init__(self, *_arguments: Any, **_keywords: Any) -> None:
        """Nothing is kept."""

    def __setstate__(self, _state: Any) -> None:
        """Nothing is kept."""


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str, /) -> Any:
        if module.partition(".")[0] in ("torch", "collections", "argparse", "builtins", "_codecs"):
            return super().find_class(module, name)
        return _Inert


_PICKLE = types.ModuleType("inert_pickle")
_PICKLE.__dict__.update(Unpickler=_Unpickler, load=pickle.load, loads=pickle.loads)


def copy(name: str, target: Path) -> Path:
    """A writable copy of a sample's only iteration."""
    iteration = next((DATA / name).glob("iter_*"))
    return Path(shutil.copytree(iteration, target / iteration.name))


def read(file: Path) -> Any:
    """A rank's file without what belongs to the trainer."""
    state = torch.load(file, weights_only=False, pickle_module=_PICKLE)
    if not isinstance(state, dict):
        return state
    if isinstance(state.get("args"), argparse.Namespace):
        attributes = vars(state["args"])
        plain = (int, float, str, type(None), torch.dtype)
        state["args"] = argparse.Namespace(
            **{k: v for k, v in attributes.items() if isinstance(v, plain)}
        )
    for key in ("rng_state", "rerun_state_machine"):
        state.pop(key, None)
    return state


def edit(file: Path, change: Edit) -> None:
    """Load, change in place, save."""
    state = read(file)
    change(state)
    torch.save(state, file)


def flip(file: Path, place: int, bit: int = 0) -> None:
    """Flip one bit; negative places count from the end."""
    data = bytearray(file.read_bytes())
    data[place] ^= 1 << bit
    file.write_bytes(data)


def place_of(file: Path, tensor: torch.Tensor) -> int:
    """First byte of a tensor's values in a file."""
    values = tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()
    start = file.read_bytes().find(values)
    assert start > 0
    return start
