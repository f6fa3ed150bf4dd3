"""S1: the momentum is a sum, without bias correction."""

from __future__ import annotations

import numpy as np

from muon_fork.spec import MuonSpec
from tests.fork.rfc.steps import (
    DECAY,
    LEARNING_RATE,
    MATRIX,
    RFC,
    flat,
    matrix_update,
    muon_state,
    random_tree,
    relative,
    run,
)


def reference_run(steps: int) -> tuple[np.ndarray, np.ndarray]:
    (path,) = MATRIX
    w, buffer = random_tree(MATRIX, 0)[path], np.zeros((8, 12))
    for step in range(steps):
        g = random_tree(MATRIX, step + 1)[path]
        buffer = 0.95 * buffer + g
        w = w - LEARNING_RATE * (matrix_update(g + 0.95 * buffer) + DECAY * w)
    return w, buffer


def run_matrix(spec: MuonSpec, steps: int) -> tuple[np.ndarray, np.ndarray]:
    params, state = run(
        "qwen3", spec, random_tree(MATRIX, 0), lambda s: random_tree(MATRIX, s + 1), steps
    )
    (w,), (buffer,) = params.values(), flat(muon_state(state).mu).values()
    return w, buffer


def test_s1_momentum_is_a_sum_without_bias_correction() -> None:
    w, buffer = reference_run(30)
    got, got_buffer = run_matrix(RFC, 30)
    assert relative(got, w) < 1e-12
    assert relative(got_buffer, buffer) < 1e-12


def test_s1_the_running_average_is_another_buffer_and_its_correction_another_run() -> None:
    w, buffer = reference_run(30)
    average = RFC.replace(nesterov_style="ema", ns_eps=1e-30)
    got, got_buffer = run_matrix(average, 30)
    assert relative(got_buffer * average.replace(nesterov_style="sgd").buffer_scale, buffer) < 1e-12
    assert relative(got, w) < 1e-6  # the guard of the norm is all that differs
    corrected, _ = run_matrix(average.replace(bias_correction=True), 30)
    assert relative(corrected, w) > 1e-3
