"""The synthetic tree with two layers, as MaxText keeps them apart and as it scans them."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable

import numpy as np

from checks.parameters import Leaves, Parameter
from checks.references.matrices import Array

from .state import Arrays

COUNT = 2
# MaxText's param_scan_axis.
AXIS = 1
_NUMBERED = re.compile(r"/((?:moe_|dense_)?layers)_\d+/")
_MODELS = ("llama2", "qwen3", "deepseek")


def in_layers(parameter: Parameter) -> bool:
    leaves = parameter.leaves(np.zeros(parameter.shape, np.float32))
    return parameter.model in _MODELS and all(_NUMBERED.search(leaf) for leaf in leaves)


def apart(tree: tuple[Parameter, ...]) -> tuple[Parameter, ...]:
    """Every parameter that lies in layers, once per layer."""
    return tuple(_layer(p, number) for p in tree if in_layers(p) for number in range(COUNT))


def scanned(tree: tuple[Parameter, ...]) -> tuple[Parameter, ...]:
    """Every parameter that lies in layers, once, with a leading axis of layers."""
    return tuple(_stacked(p) for p in tree if in_layers(p))


def name_of(parameter: Parameter, layer: int) -> str:
    return f"{parameter.name} of layer {layer}"


def stacked(arrays: Arrays, tree: tuple[Parameter, ...]) -> dict[str, Array]:
    """Arrays of ``apart(tree)`` as arrays of ``scanned(tree)``."""
    return {
        p.name: np.stack([arrays[name_of(p, n)] for n in range(COUNT)])
        for p in tree
        if name_of(p, 0) in arrays
    }


def unscanned(arrays: Arrays) -> dict[str, Array]:
    """Leaves of ``scanned()`` as leaves of ``apart()``."""
    return {
        numbered(leaf, layer): np.take(array, layer, AXIS)
        for leaf, array in arrays.items()
        for layer in range(COUNT)
    }


def numbered(leaf: str, layer: int) -> str:
    """The path of one layer's leaf, from the path of the scanned one."""
    return re.sub(r"/((?:moe_|dense_)?layers)/", rf"/\1_{layer}/", leaf)


def _layer(parameter: Parameter, layer: int) -> Parameter:
    def rename(leaf: str) -> str:
        return _NUMBERED.sub(rf"/\1_{layer}/", leaf)

    return _renamed(parameter, name_of(parameter, layer), parameter.leaves, rename)


def _stacked(parameter: Parameter) -> Parameter:
    def leaves(array: Array) -> Leaves:
        parts = [parameter.leaves(layer) for layer in array]
        return {leaf: np.stack([part[leaf] for part in parts], AXIS) for leaf in parts[0]}

    whole = _renamed(parameter, parameter.name, leaves, lambda leaf: _NUMBERED.sub(r"/\1/", leaf))
    return dataclasses.replace(whole, shape=(COUNT, *parameter.shape))


def _renamed(
    parameter: Parameter,
    name: str,
    leaves: Callable[[Array], Leaves],
    rename: Callable[[str], str],
) -> Parameter:
    return dataclasses.replace(
        parameter,
        name=name,
        leaves=lambda w: {rename(leaf): array for leaf, array in leaves(w).items()},
        folds={rename(leaf): fold for leaf, fold in parameter.folds.items()},
    )
