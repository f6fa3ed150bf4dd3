"""A legacy checkpoint with new values: they come back, and nothing else has changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from converters.errors import CheckpointError
from converters.megatron.legacy import write_legacy
from converters.megatron.open import open_source
from converters.source import Key, Source, State

from .hostile import DATA
from .legacy_files import FLAT, MODEL, read

SAMPLES = (
    "dense_legacy",
    "bf16_legacy",
    "v0.16.1_dense_legacy",
    "twins/adam_distopt_legacy",
    "twins/adam_tp2pp2_legacy",
    "twins/adam_ep2_legacy",
    "twins/muon_tp2pp2_bf16_legacy",
    "twins/muon_ep2_legacy",
    "twins/muon_vpp_tied_legacy",
    "twins/muon_mla_tp2_legacy",
    "twins/muon_uneven_moe_legacy",
)
Array = NDArray[Any]


def constant(values: Mapping[Key, Array]) -> dict[Key, Callable[[], Array]]:
    return {key: lambda value=value: value for key, value in values.items()}  # type: ignore[misc]


def new_values(source: Source) -> dict[Key, Array]:
    """Random ones that a run could have: finite, second moments positive, weights from masters."""
    random = np.random.default_rng(3)
    values = {}
    for key, tensor in source.tensors.items():
        value = random.standard_normal(tensor.shape).astype(np.float32)
        values[key] = np.abs(value) if key.state is State.EXP_AVG_SQ else value
    for key, value in values.items():
        if key.state is State.MASTER:
            weight = Key(key.parameter, State.WEIGHT)
            values[weight] = value.astype(source.tensors[weight].dtype)
    return values


@pytest.mark.parametrize("sample", SAMPLES)
def test_the_same_values_give_the_same_files(sample: str, tmp_path: Path) -> None:
    source = open_source(DATA / sample)
    values = {key: tensor.load for key, tensor in source.tensors.items()}
    folder = write_legacy(DATA / sample, tmp_path, values)
    old = {file.relative_to(source.folder): file for file in source.folder.rglob("*.pt")}
    new = {file.relative_to(folder): file for file in folder.rglob("*.pt")}
    assert old.keys() == new.keys()
    for name in old:
        assert old[name].read_bytes() == new[name].read_bytes(), name
    assert open_source(tmp_path).folder == folder


@pytest.mark.parametrize("sample", SAMPLES)
def test_new_values_come_back(sample: str, tmp_path: Path) -> None:
    source = open_source(DATA / sample)
    values = new_values(source)
    write_legacy(DATA / sample, tmp_path, constant(values))
    back = open_source(tmp_path)
    assert back.tensors.keys() == source.tensors.keys()
    for key, tensor in back.tensors.items():
        assert np.array_equal(tensor.load(), values[key].astype(tensor.dtype)), key


@pytest.mark.parametrize("sample", ["dense_legacy", "twins/muon_tp2pp2_bf16_legacy"])
def test_a_run_that_has_gone_on(sample: str, tmp_path: Path) -> None:
    """To an iteration whose number takes more bytes, so that every entry moves."""
    source = open_source(DATA / sample)
    values = new_values(source)
    folder = write_legacy(DATA / sample, tmp_path, constant(values), iteration=70_000)
    assert folder.name == "iter_0070000"
    back = open_source(tmp_path)
    ahead = 70_000 - source.run.iteration
    batch = source.run.arguments["global_batch_size"]
    assert back.run.iteration == 70_000
    assert [o.step for o in back.run.optimizers] == [None, 70_000]
    assert back.run.schedule["num_steps"] == source.run.schedule["num_steps"] + ahead * batch
    for key, tensor in back.tensors.items():
        assert np.array_equal(tensor.load(), values[key].astype(tensor.dtype)), key
    for rank in folder.iterdir():
        state = read(rank / MODEL)
        assert (state["iteration"], state["args"].consumed_train_samples) == (
            70_000,
            back.run.schedule["num_steps"],
        )


def test_torch_reads_what_was_written(tmp_path: Path) -> None:
    sample = "twins/adam_tp2pp2_legacy"
    values = new_values(open_source(DATA / sample))
    folder = write_legacy(DATA / sample, tmp_path, constant(values))
    name = "decoder.layers.0.mlp.linear_fc2.weight"
    halves = []
    for tensor_rank in range(2):
        rank = folder / f"mp_rank_{tensor_rank:02d}_000"
        halves.append(read(rank / MODEL)["model"][name])
        flat = torch.load(rank / FLAT, weights_only=True)[0][torch.float32, torch.float32]
        # fc2 of the only layer here is the last of the stage, so the first in its buffer.
        start = flat["exp_avg"][: halves[-1].numel()].reshape(halves[-1].shape)
        width = halves[-1].shape[1]
        expected = values[Key(name, State.EXP_AVG)][:, tensor_rank * width :][:, :width]
        assert np.array_equal(start.numpy(), expected)
    assert np.array_equal(torch.cat(halves, 1).numpy(), values[Key(name, State.WEIGHT)])


def test_refusals_leave_nothing(tmp_path: Path) -> None:
    sample = DATA / "dense_legacy"
    source = open_source(sample)
    good = {key: tensor.load for key, tensor in source.tensors.items()}
    key = Key("output_layer.weight", State.WEIGHT)
    bad: dict[str, dict[Key, Any]] = {
        "no value": {k: v for k, v in good.items() if k != key},
        "no such tensor": good | {Key("x", State.WEIGHT): good[key]},
        "shape": good | {key: lambda: np.zeros((2, 2), np.float32)},
        "nan": good | {key: lambda: np.full(source.tensors[key].shape, np.nan, np.float32)},
    }
    for message, values in bad.items():
        with pytest.raises(CheckpointError, match=message):
            write_legacy(sample, tmp_path, values)
    assert list(tmp_path.iterdir()) == []
    write_legacy(sample, tmp_path, good)
    with pytest.raises(CheckpointError, match="exists"):
        write_legacy(sample, tmp_path, good)


def test_layer_wise_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no names to write to.*torch_dist"):
        write_legacy(DATA / "twins/muon_layer_wise_legacy", tmp_path, {})
