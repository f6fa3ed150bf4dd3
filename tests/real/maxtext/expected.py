"""The updates a spec asks for, in float64, from the gradients and parameters of a recorded run.

Everything happens on the source's weights: a leaf stored as ``c * W`` is divided by c, stepped as
W, and the step is multiplied by c.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from checks.references import numpy_muon
from checks.references.matrices import Trajectory
from muon_fork.spec import MuonSpec
from tests.real.maxtext.matrices import Matrix, matrices, muon_leaves

Tree = dict[str, np.ndarray]


@dataclass
class Reference:
    """Muon and AdamW over named leaves, advanced one step at a time.

    Attributes:
      spec: what to compute.
      learning_rate: constant.
      query_scale: c of W_stored = c * W_source for query kernels.
    """

    spec: MuonSpec
    learning_rate: float
    query_scale: float
    count: int = 0
    buffers: dict[int, np.ndarray] = field(default_factory=dict)
    moments: dict[str, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)

    def step(self, grads: Mapping[str, np.ndarray], params: Mapping[str, np.ndarray]) -> Tree:
        """float64 updates of the stored leaves, learning rate and decay included."""
        paths = sorted(grads)
        exact = [self._fold(p) * grads[p].astype(np.float64) for p in paths]
        source_grads = dict(zip(paths, numpy_muon.clip(self.spec, exact), strict=True))
        weights = {p: params[p].astype(np.float64) / self._fold(p) for p in paths}
        shapes = {p: w.shape for p, w in weights.items()}
        after = {p: w.ravel().copy() for p, w in weights.items()}
        for number, matrix in enumerate(matrices(shapes, self.spec)):
            self._muon(number, matrix, source_grads, weights, after)
        for path in set(paths) - set(muon_leaves(shapes, self.spec)):
            after[path] = self._adam(path, source_grads[path], weights[path])
        self.count += 1
        return {p: self._fold(p) * (after[p].reshape(shapes[p]) - weights[p]) for p in paths}

    def state(self, shapes: Mapping[str, tuple[int, ...]]) -> Tree:
        """Momentum and moments after the last step, under the paths of optax's state tree."""
        muon = {p: np.empty(np.prod(shapes[p])) for p in muon_leaves(shapes, self.spec)}
        for number, matrix in enumerate(matrices(shapes, self.spec)):
            _scatter(self.buffers[number], matrix, muon)
        found = {f"muon/inner_state/0/mu/{p}": v.reshape(shapes[p]) for p, v in muon.items()}
        for path, (first, second) in self.moments.items():
            found[f"adam/inner_state/0/mu/{path}"] = first
            found[f"adam/inner_state/0/nu/{path}"] = second
        return {f"inner_states/{path}": value for path, value in found.items()}

    def _fold(self, path: str) -> float:
        is_folded = self.spec.unfold_scaled_weights and "query" in path.split("/")
        return self.query_scale if is_folded else 1.0

    def _muon(self, number: int, matrix: Matrix, grads: Tree, weights: Tree, after: Tree) -> None:
        weight, gradient = _gather(weights, matrix), _gather(grads, matrix)
        buffer = self.buffers.get(number, np.zeros_like(weight))
        state = Trajectory(weight, buffer)
        state = numpy_muon.step(self.spec, state, gradient, self.learning_rate, self.count)
        self.buffers[number] = state.buffer
        _scatter(state.weight, matrix, after)

    def _adam(self, path: str, gradient: np.ndarray, weight: np.ndarray) -> np.ndarray:
        zeros = np.zeros_like(weight)
        state = numpy_muon.AdamState(weight, *self.moments.get(path, (zeros, zeros)))
        decays = _adam_decays(path, self.spec)
        rate, count = self.learning_rate, self.count
        state = numpy_muon.adam_step(self.spec, state, gradient, rate, count, decays)
        self.moments[path] = (state.first, state.second)
        return state.weight


def _gather(leaves: Tree, matrix: Matrix) -> np.ndarray:
    """The matrix as Megatron holds it, [out, in]; parts stacked along out."""
    return np.concatenate([leaves[path].ravel()[index].T for path, index in matrix])


def _scatter(values: np.ndarray, matrix: Matrix, flat: Tree) -> None:
    """Write a matrix [out, in] back into flat leaves."""
    start = 0
    for path, index in matrix:
        flat[path][index] = values[start : start + index.shape[1]].T
        start += index.shape[1]


def _adam_decays(path: str, spec: MuonSpec) -> bool:
    """Embedding and head decay, biases never, norms when the spec says so; optax decays all."""
    kind = path.rsplit("/", 1)[1]
    if spec.decay_all_adam_params or kind not in ("bias", "scale"):
        return True
    return kind == "scale" and spec.weight_decay_norm_params
