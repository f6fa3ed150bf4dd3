"""``decay_style=factor`` is what torch's own optimizers do to a parameter."""

from __future__ import annotations

import numpy as np
import torch

from tests.fork.decaying import DECAY, RATE, STEPS, decayed, weights


def test_torch_multiplies() -> None:
    start = {n: torch.nn.Parameter(torch.from_numpy(np.array(w))) for n, w in weights().items()}
    for parameter in start.values():
        parameter.grad = torch.zeros_like(parameter)
    adam = torch.optim.AdamW([start["v"]], lr=RATE, weight_decay=DECAY)
    matrices = torch.optim.Muon([start["w"]], lr=RATE, weight_decay=DECAY)
    for _ in range(STEPS):
        adam.step()
        matrices.step()
    found = decayed({"decay_style": "factor", "adam_decay_style": "factor"})
    for name, parameter in start.items():
        difference = found[name] - parameter.detach().numpy()
        assert abs(difference).max() <= 1.2e-7
        assert abs(difference.mean()) <= 1e-8, name
