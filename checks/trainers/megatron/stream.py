"""Tokens that cannot be memorised: a noisy Markov chain, the same on every machine.

From a source that a model can learn by heart the loss falls to nothing, and a limit on its
difference means nothing.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# Likely followers of a token, and how often anything else follows.
FOLLOWERS, NOISE = 8, 0.15


def token_stream(
    steps: int, batch: int, sequence: int, vocabulary: int, seed: int = 20230
) -> NDArray[np.int32]:
    """int32 [steps, batch, sequence + 1]; a longer stream begins like a shorter one."""
    table = np.random.Generator(np.random.PCG64(seed)).integers(
        0, vocabulary, (vocabulary, FOLLOWERS)
    )
    draws = np.random.Generator(np.random.PCG64(seed + 1)).random((steps, 3, sequence + 1, batch))
    choice = (draws[:, 0] ** 2 * FOLLOWERS).astype(np.int64)
    anything = (draws[:, 1] * vocabulary).astype(np.int64)
    tokens = np.empty((steps, sequence + 1, batch), np.int64)
    tokens[:, 0] = anything[:, 0]
    for place in range(1, sequence + 1):
        likely = table[tokens[:, place - 1], choice[:, place]]
        tokens[:, place] = np.where(draws[:, 2, place] < NOISE, anything[:, place], likely)
    return np.ascontiguousarray(tokens.transpose(0, 2, 1)).astype(np.int32)
