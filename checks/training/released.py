"""How MaxText would go on with a Megatron run as it was released: weights, and matching numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from converters.maxtext.plan import Plan
from muon_fork.config_keys import CONSISTENT_RMS, TRAINER_CLIP

from .errors import RunError
from .tree import Tree

NOTE = (
    "as released: weights only, optax's Muon with the run's learning rate, momentum, decay, scale "
    "and clipping; MaxText counts its steps from 0, and its schedule with them"
)


def released_config(tree: Tree, weights: Plan, whole: Plan, path: str) -> Mapping[str, Any]:
    """MaxText's keys, as far as the release has them.

    Args:
      weights: the plan without optimizer state.
      whole: the plan with it, for the numbers of its Muon.
      path: of the converted weights.

    Raises:
      RunError: the tree is migrated, or the run has no Muon.
    """
    if tree.status != "not migrated":
        raise RunError(f"{tree.named}: is {tree.status}: --as-released takes an untouched MaxText")
    if whole.spec is None:
        raise RunError("--as-released: the checkpoint has no optimizer whose numbers to match")
    config = {key: value for key, value in whole.maxtext_config.items() if key in tree.keys}
    config |= weights.maxtext_config
    config[TRAINER_CLIP] = whole.spec.clip_grad or 0
    if whole.spec.scale_mode in ("spectral", "consistent_rms"):
        config[CONSISTENT_RMS] = whole.spec.extra_scale_factor
    config.pop(whole.load_key, None)
    return {**config, weights.load_key: path}
