"""Which entries of which leaves form one matrix, written down from what Megatron holds.

Nothing here reads the fork's rules: a matrix is a list of (leaf, flat indices [fan in, fan out])
pairs, side by side, so a fused matrix of several leaves and a head of one leaf look alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from muon_fork.spec import MuonSpec
from tests.real.maxtext import models

Part = tuple[str, np.ndarray]
Matrix = list[Part]
Shapes = Mapping[str, tuple[int, ...]]

ADAM = ("scale", "bias", "embedding", "logits_dense")
EXPERTS = ("MoeBlock_0", "moe_block")


def muon_leaves(shapes: Shapes, spec: MuonSpec) -> list[str]:
    """Leaves that Muon trains, in the order of their paths."""
    adam = {*ADAM, *([] if spec.include_routers else ["gate"])}
    return [path for path in sorted(shapes) if not adam & set(path.split("/"))]


def matrices(shapes: Shapes, spec: MuonSpec) -> list[Matrix]:
    """Every matrix of the model; each entry of each Muon leaf lies in exactly one."""
    groups: dict[str, list[str]] = {}
    for path in muon_leaves(shapes, spec):
        groups.setdefault(_group(path, spec), []).append(path)
    found = [m for paths in groups.values() for m in _group_matrices(paths, shapes, spec)]
    _check_partition(found, {path: shapes[path] for path in muon_leaves(shapes, spec)})
    return found


def _group(path: str, spec: MuonSpec) -> str:
    """Leaves with the same group share their matrices."""
    parent, name = path.removesuffix("/kernel").rsplit("/", 1)
    if name in ("wi_0", "wi_1") and not spec.split_linear_fc1:
        return f"{parent}/fc1"
    if name in ("query", "key", "value") and spec.qkv_granularity == "fused":
        return f"{parent}/qkv"
    return path


def _group_matrices(paths: list[str], shapes: Shapes, spec: MuonSpec) -> list[Matrix]:
    columns = [_leaf_matrices(path, shapes[path], spec) for path in paths]
    return [
        [(path, index) for path, index in zip(paths, row, strict=True)]
        for row in zip(*columns, strict=True)
    ]


def _leaf_matrices(path: str, shape: tuple[int, ...], spec: MuonSpec) -> list[np.ndarray]:
    index = np.arange(np.prod(shape)).reshape(shape)
    segments = path.split("/")
    if set(EXPERTS) & set(segments) and "gate" not in segments:
        return list(index.reshape(-1, *shape[-2:]))
    scanned = {"layers", "dense_layers", "moe_layers"} & set(segments)
    layers = [index.take(i, axis=1) for i in range(shape[1])] if scanned else [index]
    split = _layer_split(segments[-2], spec)
    return [matrix for layer in layers for matrix in split(layer)]


def _layer_split(name: str, spec: MuonSpec) -> Callable[[np.ndarray], list[np.ndarray]]:
    if name == "out":
        return lambda w: [w.reshape(-1, w.shape[-1])]
    if name in ("query", "key", "value") and spec.qkv_granularity == "head":
        return lambda w: [w[:, head] for head in range(w.shape[1])]
    if name in ("wq_b", "wkv_b") and spec.split_mla_up_proj:
        second = {"wq_b": models.ROPE, "wkv_b": models.VALUE}[name]
        return lambda w: [_merge(w[..., :-second]), _merge(w[..., -second:])]
    return lambda w: [_merge(w)]


def _merge(weight: np.ndarray) -> np.ndarray:
    return weight.reshape(len(weight), -1)


def _check_partition(found: list[Matrix], shapes: Shapes) -> None:
    for path, shape in shapes.items():
        seen = np.concatenate([i.ravel() for m in found for p, i in m if p == path])
        assert np.array_equal(np.sort(seen), np.arange(np.prod(shape))), path
