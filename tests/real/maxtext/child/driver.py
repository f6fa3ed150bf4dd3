"""Train the MaxText on PYTHONPATH on given tokens and record what its optimizer sees and does.

    python driver.py PLAN.json

Runs in MaxText's own Python. The plan holds ``argv`` (base.yml and overrides), ``tokens`` (an .npy
of int32 [steps, batch, length + 1]; step s reads batch s), ``capture`` (whether to record) and
``out`` (an existing folder). Written there: ``facts.json`` and, when capturing, ``record.npz``
with ``<step>/{grad,param,update,before,state}/<path>``; ``before`` and ``state`` are the
optimizer's state before and after the step.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax


def main(plan_file: str) -> None:
    plan = json.loads(Path(plan_file).read_text())
    from maxtext.optimizers import optimizers

    from checks.trainers.maxtext.session import train

    recorder = Recorder(capture=plan["capture"])
    optimizers.get_optimizer = recorder.around(optimizers.get_optimizer)
    train(plan["argv"], np.load(plan["tokens"]))
    jax.effects_barrier()
    recorder.facts["package"] = str(Path(optimizers.__file__).parents[1])
    recorder.facts["modules"] = sorted(name for name in sys.modules if "muon" in name)
    recorder.save(Path(plan["out"]))


class Recorder:
    """Wraps MaxText's optimizer; values leave the compiled step through a callback."""

    def __init__(self, *, capture: bool) -> None:
        self.capture = capture
        self.facts: dict[str, Any] = {}
        self.arrays: dict[str, np.ndarray] = {}

    def around(self, get_optimizer: Any) -> Any:
        def recorded(config: Any, *args: Any, **kwargs: Any) -> Any:
            self.facts["config"] = _plain_config(config)
            return self._recording(get_optimizer(config, *args, **kwargs))

        return recorded

    def _recording(self, tx: Any) -> Any:
        def init(params: Any) -> Any:
            state = tx.init(params)
            self.facts["state_types"] = sorted(set(_type_names(state)))
            return state

        def update(grads: Any, state: Any, params: Any = None, **extra: Any) -> Any:
            updates, after = tx.update(grads, state, params, **extra)
            if self.capture:
                seen = {"grad": grads, "param": params, "update": updates}
                seen |= {"before": state, "state": after}
                flat = {kind: _by_path(tree) for kind, tree in seen.items()}
                jax.debug.callback(self._keep, flat)
            return updates, after

        return optax.GradientTransformationExtraArgs(init, update)

    def _keep(self, flat: dict[str, dict[str, Any]]) -> None:
        counts = [int(v) for path, v in flat["state"].items() if path.endswith("/count")]
        step = max(counts) - 1
        for kind, leaves in flat.items():
            self.arrays |= {f"{step}/{kind}/{p}": np.array(v) for p, v in leaves.items()}

    def save(self, folder: Path) -> None:
        (folder / "facts.json").write_text(json.dumps(self.facts, indent=1))
        if self.capture:
            np.savez(folder / "record.npz", **self.arrays)


def _plain_config(config: Any) -> dict[str, Any]:
    keys = config.get_keys() if hasattr(config, "get_keys") else vars(config)
    plain = (bool, int, float, str, type(None))
    return {key: value for key, value in keys.items() if type(value) in plain}


def _by_path(tree: Any) -> dict[str, Any]:
    """Array leaves under their path, without the ``params`` that Linen puts in front."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {"/".join(_segments(path)): leaf for path, leaf in leaves}


def _segments(path: Any) -> list[str]:
    names = [getattr(k, "key", getattr(k, "name", getattr(k, "idx", k))) for k in path]
    return [str(name) for name in names if name != "params"]


def _type_names(state: Any) -> list[str]:
    """Module and name of every named tuple in an optimizer state."""
    if not isinstance(state, (tuple, dict)):
        return []
    own = [f"{type(state).__module__}.{type(state).__qualname__}"]
    inner = state.values() if isinstance(state, dict) else state
    return (own if hasattr(state, "_fields") else []) + [n for s in inner for n in _type_names(s)]


if __name__ == "__main__":
    main(sys.argv[1])
