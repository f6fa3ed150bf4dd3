"""Many steps of a torch optimizer over several arrays, from a given state."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .matrices import Array

# Names of a Muon's and of AdamW's state.
MUON = ("momentum_buffer",)
ADAM = ("exp_avg", "exp_avg_sq")


class TorchSteps:
    """One optimizer; arrays by a key of the caller's."""

    def __init__(
        self,
        make: Callable[[list[Any], float], Any],
        weights: Mapping[Any, Array],
        states: Sequence[Mapping[Any, Array]],
        names: tuple[str, ...],
        count: int,
        dtype: Any,
    ) -> None:
        """
        Args:
          make: the optimizer of parameters and a learning rate.
          weights: arrays by key.
          states: as many as ``names``, by the same keys.
          names: how the optimizer calls them.
          count: finished steps, where it keeps their number.
          dtype: NumPy's, of everything.
        """
        import torch

        self.dtype = dtype
        self.names = names
        self.parameters = {
            key: torch.nn.Parameter(torch.tensor(np.asarray(w, dtype)))
            for key, w in weights.items()
        }
        self.optimizer = make(list(self.parameters.values()), 1.0)
        for key, parameter in self.parameters.items():
            arrays = zip(names, states, strict=True)
            kept = {n: torch.tensor(np.asarray(by_key[key], dtype)) for n, by_key in arrays}
            if names == ADAM:
                kept["step"] = torch.tensor(float(count))
            self.optimizer.state[parameter] = kept

    def step(self, gradients: Mapping[Any, Array], rate: float) -> None:
        import torch

        for key, parameter in self.parameters.items():
            parameter.grad = torch.tensor(np.asarray(gradients[key], self.dtype))
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        with warnings.catch_warnings():
            # Megatron-Core asks for its rank, and says so when there is none.
            warnings.filterwarnings("ignore", category=UserWarning, module="megatron")
            self.optimizer.step()

    def weight(self, key: Any) -> Array:
        array: Array = self.parameters[key].detach().numpy().astype(np.float64)
        return array

    def state(self, key: Any, name: str) -> Array:
        array: Array = self.optimizer.state[self.parameters[key]][name].numpy()
        return array.astype(np.float64)
