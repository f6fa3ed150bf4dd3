"""What a Megatron process knows of its optimizer that its arguments do not say. No dependencies."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any


def unrecorded(optimizer: Any) -> dict[str, Any]:
    """MuonSpec fields of Megatron's optimizer, as its training loop has it.

    Megatron's AdamW is FusedAdam where Apex or Transformer Engine is installed, which a checkpoint
    does not say; otherwise it is torch's, which rounds another number (``adam_decay_style``).
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return {}
    kinds = (torch.optim.Adam, torch.optim.AdamW)
    if any(isinstance(one, kinds) and not _is_fused(one) for one in _wrapped(optimizer)):
        return {"adam_decay_style": "factor"}
    return {}


def _is_fused(adam: Any) -> bool:
    """In one kernel on a GPU: torch's subtracts there, alone among its AdamWs."""
    groups = [group for group in adam.param_groups if group.get("fused")]
    return any(parameter.is_cuda for group in groups for parameter in group["params"])


def _wrapped(optimizer: Any) -> Iterator[Any]:
    """The optimizer and those inside it, which Megatron chains and wraps."""
    yield optimizer
    inside = getattr(optimizer, "chained_optimizers", None)
    if inside is None:  # A chain of several refuses to be asked for the one that it wraps.
        inside = [getattr(optimizer, "optimizer", None)]
    for one in inside:
        if one is not None and one is not optimizer:
            yield from _wrapped(one)
