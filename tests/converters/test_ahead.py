"""Tensors are looked at while JAX is being loaded; nothing of that shows in the result."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from converters.ahead import reading_ahead
from converters.errors import CheckpointError
from converters.source import Key, Source, SourceTensor, State
from converters.target import TargetTensor
from tests.converters.megatron_models import MODELS, source
from tests.converters.plans import planned

WAIT = 30.0


def recorded(origin: Source, read: list[Key], until: threading.Event, broken: int) -> Source:
    """The source with loads that are noted; the one after ``broken`` others fails."""

    def watched(key: Key, tensor: SourceTensor) -> SourceTensor:
        def load() -> np.ndarray:
            read.append(key)
            if len(read) > broken:
                until.set()
                raise CheckpointError(f"{key}: damaged")
            return tensor.load()

        return SourceTensor(tensor.shape, tensor.dtype, tensor.origin, load)

    tensors = {key: watched(key, tensor) for key, tensor in origin.tensors.items()}
    return Source(origin.folder, origin.format, origin.run, tensors, None, ())


def test_it_reads_in_the_order_of_the_targets_and_stops_at_damage() -> None:
    origin = source(MODELS["llama2"])
    targets = planned(origin).records
    read: list[Key] = []
    damaged = threading.Event()
    with reading_ahead(recorded(origin, read, damaged, 5), targets):
        assert damaged.wait(WAIT)
    expected = dict.fromkeys(key for target in targets for key in target.sources)
    assert read == list(expected)[:6]


def test_it_ends_with_the_block() -> None:
    key = Key("a", State.WEIGHT)
    began, goes_on = threading.Event(), threading.Event()

    def load() -> np.ndarray:
        began.set()
        assert goes_on.wait(WAIT)
        return np.zeros(1)

    one = SourceTensor((1,), np.dtype(float), (), load)
    origin = source(MODELS["llama2"])
    others = {Key(f"{n}", State.WEIGHT): one for n in range(3)}
    watched = Source(origin.folder, "", origin.run, {key: one, **others}, None, ())
    target = TargetTensor(("a",), (1,), np.dtype(float), (key, *others), "", load)
    with reading_ahead(watched, [target]):
        assert began.wait(WAIT)
        began.clear()
        threading.Timer(0.2, goes_on.set).start()
    assert not began.is_set()


@pytest.mark.parametrize("module", ["converters.conversion", "converters.commands.to_orbax"])
def test_a_plan_needs_no_jax(module: str) -> None:
    code = f"import sys, {module}; print(*({{'jax', 'orbax', 'torch'}} & set(sys.modules)))"
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr
