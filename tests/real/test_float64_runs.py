"""Both trainers in float64: nothing of their difference is left but the last digits.

A recording of 40 steps, where ``make proof`` has 1320. MaxText goes on with it as it is, with what
its code fixes taken away, and with one rounding to float32 put back, which must show.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from checks.proof.row import Row
from checks.proof.running import Place, recorded, run
from checks.proof.table import row
from checks.replay.report import compare
from checks.result import Outcome, Rung
from checks.tolerances import limit
from converters.megatron.open import open_source
from tests.real.maxtext.trainer import built

pytestmark = pytest.mark.real

FIRST, STEPS = 20, 20


def cut(name: str) -> Row:
    full = row(name)
    training = full.training.replace(steps=FIRST + STEPS, saves=(FIRST, FIRST + 1))
    return dataclasses.replace(full, training=training)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    folder = tmp_path_factory.mktemp("float64")
    return Place(folder, built("releases"), built("maxtext"), lambda _line: None)


def test_megatron_keeps_nothing_in_float32(place: Place) -> None:
    source = open_source(recorded(cut("qwen3_f64"), place) / f"iter_{FIRST:07d}")
    for key, tensor in source.tensors.items():
        array = tensor.load()
        assert array.dtype == np.float64, key
        assert (array != array.astype(np.float32)).mean() > 0.9, key


def test_one_step_is_megatrons_to_the_last_digit(place: Place) -> None:
    folder = recorded(cut("qwen3_f64"), place)
    before, after = (folder / f"iter_{step:07d}" for step in (FIRST, FIRST + 1))
    found = compare(before, after, limit("replay_f64"), {"ns_dtype": "float64"})
    print(f"replay in float64: {found.worst:.1e}")
    assert found.passed


@pytest.mark.parametrize("name", ["qwen3_f64", "qwen3_f64_exact"])
def test_maxtext_goes_on(name: str, place: Place) -> None:
    rung = run(cut(name), place)
    assert rung.outcome is Outcome.PASSED, rung.reason or rung.divergence
    assert rung.details["steps"] == STEPS
    print(f"{name}: max {rung.details['max']:.1e}, mean {rung.details['mean']:.1e}")
    # What MaxText's own float32 is worth, so that neither row can stand for the other.
    assert (worst(rung) > limit("training_f64_exact")) == (name == "qwen3_f64")


def test_a_rounding_to_float32_shows(place: Place) -> None:
    """Newton-Schulz alone in float32."""
    single = dataclasses.replace(cut("qwen3_f64_exact"), spec_overrides={"ns_dtype": "float32"})
    rung = run(single, place)
    assert rung.outcome is Outcome.FAILED
    assert rung.divergence is not None
    assert rung.divergence.step == FIRST + 1  # The first loss is of equal weights.
    assert worst(rung) > 1000 * limit("training_f64_exact")


def worst(rung: Rung) -> float:
    return float(rung.details["max"])
