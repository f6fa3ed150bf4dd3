"""One training run as a value, and as JSON for the processes that carry it out.

Standard library only.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from .model import Experts, Latent, Model
from .options import Layout, Optimizer

Format = Literal["torch_dist", "torch"]
Reference = Literal["core", "rfc"]
Dtype = Literal["float32", "float64"]


@dataclass(frozen=True)
class Training:
    """
    Attributes:
      model, optimizer, layout: what runs, and how it is shared.
      steps: the step to stop before; a run that starts there only saves.
      saves: steps before which a checkpoint is written, 0 and ``steps`` allowed.
      form: of the checkpoints.
      seed: of the weights.
      start: iteration folder (torch_dist, of any layout) to start from; "" starts afresh.
      nudge: move every weight by one unit in the last place before the first step: 1 up, -1 down.
      reference: whose optimizer: Megatron-Core's, or the one that RFC-0023 describes.
      dtype: of everything; float64 is Megatron with its names of float32 meaning float64.
    """

    model: Model
    optimizer: Optimizer = field(default_factory=Optimizer)
    layout: Layout = field(default_factory=Layout)
    steps: int = 1320
    saves: tuple[int, ...] = (20,)
    form: Format = "torch_dist"
    seed: int = 7
    start: str = ""
    nudge: Literal[-1, 0, 1] = 0
    reference: Reference = "core"
    dtype: Dtype = "float32"

    @property
    def settings(self) -> dict[str, Any]:
        """Fields of Megatron's OptimizerConfig; matrices are whole however the run is shared."""
        mode = "duplicated" if self.layout.tensor > 1 else "blockwise"
        return {**self.optimizer.settings, "muon_tp_mode": mode}

    def as_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def replace(self, **changes: Any) -> Training:
        """A copy with the given fields changed."""
        return dataclasses.replace(self, **changes)


def from_json(value: Mapping[str, Any]) -> Training:
    """What ``Training.as_json`` gave, through JSON."""
    plain = dict(value["model"])
    plain["latent"] = Latent(**plain["latent"]) if plain["latent"] else None
    plain["experts"] = Experts(**plain["experts"]) if plain["experts"] else None
    parts = {
        "model": Model(**plain),
        "optimizer": Optimizer(**value["optimizer"]),
        "layout": Layout(**value["layout"]),
        "saves": tuple(value["saves"]),
    }
    return Training(**{**value, **parts})
