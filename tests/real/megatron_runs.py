"""Train every combination with the real TensorParallelMuon and write the results to an npz file.

    python -m tests.real.megatron_runs FILE NS_DTYPE [FOLDER]

FOLDER goes to the front of ``sys.path``: it may hold another Megatron-Core. ``--up`` and ``--down``
move every weight and gradient by one unit in the last place first: what then differs is the noise
of Megatron against itself.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from checks.references import emerging

from .megatron_cases import SHAPES, Options, key, options, spec_for, values

MOVES = {"--up": np.inf, "--down": -np.inf}


def main(argv: list[str]) -> None:
    towards = next((np.float32(MOVES[word]) for word in argv if word in MOVES), None)
    file, ns_dtype, *folders = [word for word in argv if word not in MOVES]
    sys.path[:0] = folders
    arrays = {"version": np.array(_version())}
    for row in options(ns_dtype):
        arrays |= train(row, towards)
    np.savez(Path(file), **arrays)


def train(row: Options, towards: np.float32 | None) -> dict[str, np.ndarray]:
    """Weight and buffer of every shape after the last step."""
    arrays = {}
    for shape in SHAPES:
        weight, gradients = values(row, shape)
        if towards is not None:
            weight = np.nextafter(weight, towards)
            gradients = [np.nextafter(g, towards) for g in gradients]
        end = emerging.trajectory(
            spec_for(row, shape), weight, gradients, row.learning_rate, shape.qkv
        )
        arrays[key(row, shape, "weight")] = end.weight
        arrays[key(row, shape, "buffer")] = end.buffer
    return arrays


def _version() -> str:
    emerging.optimizer_class()
    import megatron.core

    return str(megatron.core.__version__)


if __name__ == "__main__":
    main(sys.argv[1:])
