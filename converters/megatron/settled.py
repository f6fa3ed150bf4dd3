"""The MuonSpec of a checkpoint: its arguments, and what only its optimizer's groups tell."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from muon_fork.megatron_args import settle
from muon_fork.spec import MuonSpec

from .run import Run

_FIELD = "adam_decay_style"


def settled(run: Run, overrides: Mapping[str, Any]) -> tuple[MuonSpec, tuple[str, ...]]:
    """As ``muon_fork.megatron_args.settle``; overrides take precedence over the groups, too.

    Raises:
      SpecError: as ``settle``.
    """
    found = None if _FIELD in overrides else adam_decay_style(run)
    if found is None:
        return settle(run.arguments, overrides)
    style, whose = found
    spec, notes = settle(run.arguments, {_FIELD: style, **overrides})
    return spec, (*notes, f"{_FIELD}={style}: the optimizer's groups are those of {whose}")


def adam_decay_style(run: Run) -> tuple[str, str] | None:
    """The style, and whose AdamW it is, by the options that each keeps in its parameter groups.

    None where no group tells, or two differ (torch's on a CPU beside another on a GPU). FusedAdam
    of Apex and of Transformer Engine keeps ``bias_correction``; torch's keeps ``amsgrad``, and
    subtracts only if ``fused`` on a GPU, which nothing says.
    """
    groups = [group for one in run.optimizers for group in one.groups if "betas" in group]
    found = {_style(group) for group in groups}
    return found.pop() if len(found) == 1 else None


def _style(group: Mapping[str, Any]) -> tuple[str, str] | None:
    if "amsgrad" in group:
        return None if group.get("fused") else ("factor", "torch's AdamW")
    return ("subtract", "FusedAdam") if "bias_correction" in group else None
