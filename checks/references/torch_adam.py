"""``torch.optim.AdamW``: what Megatron's AdamW branch runs on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from muon_fork.spec import MuonSpec, SpecError


def maker(spec: MuonSpec, decays: bool) -> Callable[[list[Any], float], Any]:
    """The real optimizer, as a function of its parameters and learning rate.

    Raises:
      SpecError: AdamW cannot compute what the spec asks for.
      ModuleNotFoundError: torch is not installed.
    """
    if spec.adam_nesterov or spec.adam_eps_root:
        raise SpecError("torch.optim.AdamW has no look-ahead and no eps inside the root")
    import torch

    def make(parameters: list[Any], rate: float) -> Any:
        return torch.optim.AdamW(
            parameters,
            lr=rate,
            betas=(spec.adam_b1, spec.adam_b2),
            eps=spec.adam_eps,
            weight_decay=spec.adam_weight_decay if decays else 0.0,
        )

    return make
