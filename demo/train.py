"""Train the MaxText on PYTHONPATH and report how its Muon was told to read every parameter.

    python train.py ROUTING.json base.yml key=value ...

Runs in MaxText's own Python. ROUTING.json receives ``{path: {shape, muon}}``, where ``muon`` holds
the fields of the parameter's dimension numbers, or None in the AdamW branch.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import jax
import optax


def main(routing_file: str, argv: list[str]) -> None:
    from maxtext.optimizers import optimizers
    from maxtext.trainers.pre_train import train

    seen: dict[str, Any] = {}
    optimizers.get_muon_weight_dimension_numbers = _noting(
        seen, optimizers.get_muon_weight_dimension_numbers
    )
    optimizers.get_optimizer = _noting_shapes(seen, optimizers.get_optimizer)
    train.main(["train", *argv])
    rows = {
        path: {"shape": shape, "muon": seen["numbers"].get(path)}
        for path, shape in seen["shapes"].items()
    }
    Path(routing_file).write_text(json.dumps(rows, indent=1))


def _noting(seen: dict[str, Any], get_numbers: Any) -> Any:
    def noted(*args: Any, **kwargs: Any) -> Any:
        numbers = get_numbers(*args, **kwargs)
        leaves = _by_path(numbers, is_leaf=lambda x: hasattr(x, "reduction_axis"))
        seen["numbers"] = {path: _fields(leaf) for path, leaf in leaves.items()}
        return numbers

    return noted


def _noting_shapes(seen: dict[str, Any], get_optimizer: Any) -> Any:
    def noted(*args: Any, **kwargs: Any) -> Any:
        tx = get_optimizer(*args, **kwargs)

        def init(params: Any) -> Any:
            seen["shapes"] = {path: list(leaf.shape) for path, leaf in _by_path(params).items()}
            return tx.init(params)

        return optax.GradientTransformationExtraArgs(init, tx.update)

    return noted


def _fields(leaf: Any) -> dict[str, Any] | None:
    fields = leaf._asdict()
    fields.pop("sharding", None)
    return None if fields.get("optimizer") == "adam" else fields


def _by_path(tree: Any, is_leaf: Any = None) -> dict[str, Any]:
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_leaf)
    return {"/".join(_segments(path)): leaf for path, leaf in leaves}


def _segments(path: Any) -> list[str]:
    return [str(k.key) for k in path if isinstance(k, jax.tree_util.DictKey) and k.key != "params"]


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
