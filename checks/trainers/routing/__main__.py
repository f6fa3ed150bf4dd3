"""Say how the MaxText on PYTHONPATH would route every parameter; nothing is trained.

    python -P checks/trainers/routing/__main__.py OUT.json base.yml key=value ...

Runs in MaxText's own Python. OUT.json receives

    config   plain configuration values by key
    params   {path: shape}
    muon     module of the ``muon`` that is called, and its keyword arguments
    numbers  {path: fields of its dimension numbers, or null in the AdamW branch}
    decays   {path: whether it decays in the AdamW branch}
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("DECOUPLE_GCLOUD", "TRUE")

import jax
import numpy as np

# Under these names MaxText's releases import the optimizer.
_NAMES = ("muon", "optax_muon", "maxtext_muon")
_MASK = "adam_weight_decay_mask"


def main(out: str, argv: list[str]) -> None:
    from maxtext.configs import pyconfig
    from maxtext.optimizers import optimizers

    config = pyconfig.initialize(["", *argv])
    model, params = _model(config)
    called: dict[str, Any] = {}
    for name in _NAMES:
        if hasattr(optimizers, name):
            setattr(optimizers, name, _noting(called, getattr(optimizers, name)))
    optimizers.get_optimizer(config, lambda count: 1.0, model)
    if not called:
        kind = _values(config).get("opt_type")
        raise LookupError(f"opt_type={kind} builds no Muon, so nothing is routed")
    numbers = called["arguments"].pop("muon_weight_dimension_numbers")
    leaves = _by_path(numbers, is_leaf=lambda node: hasattr(node, "reduction_axis"))
    mask = called["arguments"].pop(_MASK, None)
    answer = {
        "config": _plain(_values(config)),
        "params": {path: list(shape) for path, shape in params.items()},
        "muon": {"module": called["module"], "arguments": _plain(called["arguments"])},
        "numbers": {path: _fields(leaves.get(path)) for path in params},
        "decays": _decays(mask, params),
    }
    Path(out).write_text(json.dumps(answer, default=str))


def _model(config: Any) -> tuple[Any, dict[str, tuple[int, ...]]]:
    """The abstract model, and the shapes of its parameters."""
    from maxtext.utils import maxtext_utils, model_creation_utils

    mesh = jax.sharding.Mesh(maxtext_utils.create_device_mesh(config), config.mesh_axes)
    values = _values(config)
    abstract = getattr(model_creation_utils, "create_nnx_abstract_model", None)
    if abstract is not None and values.get("pure_nnx", True):
        from flax import nnx

        _, model = abstract(config, mesh)
        parts: Any = nnx.split(model, nnx.Param, ...)
        return model, _shapes(nnx.to_pure_dict(parts[1]))
    model = model_creation_utils.from_config(config, mesh=mesh)
    return model, _shapes(maxtext_utils.get_abstract_param(model, config))


def _shapes(tree: Any) -> dict[str, tuple[int, ...]]:
    return {path: tuple(leaf.shape) for path, leaf in _by_path(tree).items()}


def _noting(called: dict[str, Any], muon: Callable[..., Any]) -> Callable[..., Any]:
    def noted(**arguments: Any) -> Any:
        called["module"], called["arguments"] = muon.__module__, dict(arguments)
        return muon(**arguments)

    return noted


def _decays(mask: Any, params: dict[str, tuple[int, ...]]) -> dict[str, bool]:
    """Of the AdamW branch: without a mask everything decays."""
    if mask is None:
        return dict.fromkeys(params, True)
    tree: dict[str, Any] = {}
    for path, shape in params.items():
        *parents, name = path.split("/")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        # A view of one number: no memory, whatever the shape.
        node[name] = np.broadcast_to(np.float32(0), shape)
    found = mask(tree) if callable(mask) else mask
    return {path: bool(leaf) for path, leaf in _by_path(found).items()}


def _fields(leaf: Any) -> dict[str, Any] | None:
    if leaf is None or not hasattr(leaf, "reduction_axis"):
        return None
    fields: dict[str, Any] = leaf._asdict()
    fields.pop("sharding", None)
    return fields


def _values(config: Any) -> dict[str, Any]:
    keys = config.get_keys() if hasattr(config, "get_keys") else vars(config)
    return {key: getattr(value, "value", value) for key, value in keys.items()}


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    plain = (bool, int, float, str, type(None), list, tuple)
    return {key: value for key, value in values.items() if isinstance(value, plain)}


def _by_path(tree: Any, is_leaf: Any = None) -> dict[str, Any]:
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_leaf)
    return {"/".join(_segments(path)): leaf for path, leaf in leaves}


def _segments(path: Any) -> list[str]:
    return [str(k.key) for k in path if isinstance(k, jax.tree_util.DictKey) and k.key != "params"]


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
