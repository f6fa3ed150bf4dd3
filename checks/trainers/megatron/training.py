"""One training run as a value, and as JSON for the processes that carry it out.

Standard library only.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from .model import Experts, Latent, Model
from .options import Layout, Optimizer, ShardedForm, Sharding

Format = Literal["torch_dist", "torch"]
Reference = Literal["core", "rfc"]
Dtype = Literal["float32", "float64", "bfloat16"]


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
      dtype: of everything; float64 is Megatron with its names of float32 meaning float64, and
        bfloat16 has masters, gradients and the optimizer's state in float32.
      sharding: of the optimizer's state among data-parallel ranks; None keeps all of it on each.
      twins: what every checkpoint is written as besides, in folders of these names: in the other
        format, or in another form of the sharding.
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
    sharding: Sharding | None = None
    twins: tuple[Format | ShardedForm, ...] = ()

    def __post_init__(self) -> None:
        """
        Raises:
          ValueError: something of this run is not sharded, or would be sharded wrongly.
        """
        if self.sharding is not None and (self.reference == "rfc" or self.start or self.nudge):
            raise ValueError("a sharded optimizer is Megatron-Core's, and starts afresh")
        if self.dtype == "bfloat16" and self.nudge:
            raise ValueError("masters are in the optimizer: a nudged weight would be forgotten")

    @property
    def settings(self) -> dict[str, Any]:
        """Fields of Megatron's OptimizerConfig; matrices are whole however the run is shared."""
        mode = "duplicated" if self.layout.tensor > 1 else "blockwise"
        settings = {**self.optimizer.settings, "muon_tp_mode": mode}
        if self.sharding is None:
            return settings
        whole = "layer_wise_" if self.is_layer_wise else ""
        return {**settings, f"use_{whole}distributed_optimizer": True}

    @property
    def is_layer_wise(self) -> bool:
        """Whether data-parallel ranks have whole matrices each."""
        return self.sharding is not None and self.optimizer.settings["optimizer"] != "adam"

    @property
    def rows(self) -> int:
        """Of a batch, on each data-parallel rank.

        Raises:
          ValueError: they cannot be shared equally.
        """
        batch, ranks = self.model.batch, self.layout.data
        if batch % ranks:
            raise ValueError(f"a batch of {batch} rows on {ranks} data-parallel ranks")
        return batch // ranks

    def twin(self, name: Format | ShardedForm) -> Training:
        """The same run as that twin's checkpoints have it."""
        if name == "torch" or name == "torch_dist":
            return self.replace(form=name, twins=())
        assert self.sharding is not None, f"{name} is a form of what is not sharded"
        sharding = dataclasses.replace(self.sharding, form=name)
        return self.replace(form="torch_dist", sharding=sharding, twins=())

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
        "sharding": Sharding(**value["sharding"]) if value["sharding"] else None,
        "twins": tuple(value["twins"]),
    }
    return Training(**{**value, **parts})
