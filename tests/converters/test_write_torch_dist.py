"""The way back to torch_dist: bytes that do not change stay, those that do are found by torch."""

from __future__ import annotations

import hashlib
import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.distributed import checkpoint as dcp

from converters.errors import CheckpointError
from converters.megatron import numbers, pickles, zips
from converters.megatron.open import open_source
from converters.megatron.torch_dist import open_index, read_tensor
from converters.megatron.write_torch_dist import write_torch_dist
from converters.source import Key, Source, State

from .hostile import DATA, TORCH_DIST, copy, rename, saved

Values = dict[Key, Callable[[], NDArray[Any]]]


def values_of(source: Source, factor: float = 1.0) -> Values:
    """Every tensor of a checkpoint times a power of two."""

    def scaled(load: Callable[[], NDArray[Any]]) -> Callable[[], NDArray[Any]]:
        return load if factor == 1.0 else lambda: load() * np.float32(factor)

    return {key: scaled(tensor.load) for key, tensor in source.tensors.items()}


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.mark.parametrize("name", TORCH_DIST)
def test_unchanged_values_give_the_same_files(name: str, tmp_path: Path) -> None:
    source = open_source(DATA / name, iteration=20)
    folder = write_torch_dist(DATA / name, tmp_path, values_of(source), like_iteration=20)
    assert folder == tmp_path / "iter_0000020"
    assert bytes_of(folder) == bytes_of(source.folder)
    assert (tmp_path / "latest_checkpointed_iteration.txt").read_text() == "20"
    assert {p.name for p in tmp_path.iterdir()} == {
        folder.name,
        "latest_checkpointed_iteration.txt",
    }


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("name", TORCH_DIST)
def test_new_values_are_what_torch_reads(name: str, tmp_path: Path) -> None:
    source = open_source(DATA / name, iteration=20)
    write_torch_dist(
        source.folder, tmp_path, values_of(source, 2.0), iteration=123_456, adam_step=70_000
    )
    written = open_source(tmp_path)
    assert written.folder.name == "iter_0123456"
    for name_, saved_ in source.tensors.items():
        np.testing.assert_array_equal(written.tensors[name_].load(), 2 * saved_.load())
    like, entries = open_index(source.folder), open_index(written.folder).tensors
    expected = {k: torch.empty(e.shape, dtype=getattr(torch, e.dtype)) for k, e in entries.items()}
    dcp.load(expected, storage_reader=dcp.FileSystemReader(written.folder), no_dist=True)
    for key, tensor in expected.items():
        mine = 2 * read_tensor(like, key).astype(np.float64)
        np.testing.assert_array_equal(tensor.double().numpy(), mine)
    assert written.run.iteration == 123_456
    assert written.run.schedule["num_steps"] == 4 * 123_456
    assert written.run.arguments["consumed_train_samples"] == 4 * 123_456
    assert written.run.optimizers[-1].step == 70_000
    assert written.run.optimizers[:-1] == source.run.optimizers[:-1]


def test_only_counts_change_in_the_common_state(tmp_path: Path) -> None:
    source = open_source(DATA / "dense_td", iteration=20)
    write_torch_dist(source.folder, tmp_path, values_of(source), iteration=300)
    written = open_source(tmp_path)
    before, after = source.run.arguments, written.run.arguments
    changed = {name for name in before if repr(before[name]) != repr(after[name])}
    assert changed == {"consumed_train_samples"}
    schedules = source.run.schedule, written.run.schedule
    assert {k for k in schedules[0] if schedules[0][k] != schedules[1][k]} == {"num_steps"}
    assert written.run.optimizers[1].step == 300
    for name in ("__0_0.distcp", ".metadata"):
        assert (written.folder / name).read_bytes() != (source.folder / name).read_bytes()


def test_weights_are_rounded_masters_are_not(tmp_path: Path) -> None:
    source = open_source(DATA / "bf16_td")
    values = values_of(source)
    third = np.float32(1 / 3)
    for key, tensor in source.tensors.items():
        if key.state in (State.WEIGHT, State.MASTER):
            values[key] = lambda shape=tensor.shape: np.full(shape, third)  # type: ignore[misc]
    write_torch_dist(source.folder, tmp_path, values)
    written = open_source(tmp_path)
    for key, tensor in written.tensors.items():
        if key.state is State.WEIGHT:
            assert (tensor.load() == ml_dtypes.bfloat16(third)).all()
        elif key.state is State.MASTER:
            assert (tensor.load() == third).all()


def test_experts_and_halves_are_put_where_they_were(tmp_path: Path) -> None:
    """One expert and one half per key, as ``singleton_local_shards`` saves them."""
    like = _singletons(tmp_path / "like")
    source = open_source(like)
    fc1 = Key("decoder.layers.1.mlp.experts.linear_fc1.weight", State.WEIGHT)
    assert source.tensors[fc1].shape == (4, 96, 32)
    original = open_source(DATA / "moe_mixed_shared_td", iteration=20)
    np.testing.assert_array_equal(source.tensors[fc1].load(), original.tensors[fc1].load())
    (tmp_path / "out").mkdir()
    folder = write_torch_dist(like, tmp_path / "out", values_of(source, 4.0))
    written = open_source(folder)
    for key, tensor in source.tensors.items():
        np.testing.assert_array_equal(written.tensors[key].load(), 4 * tensor.load())


def _singletons(target: Path) -> Path:
    folder = copy("moe_mixed_shared_td", target)
    index = folder / ".metadata"
    metadata = pickle.loads(index.read_bytes())
    places: dict[str, dict[tuple[int, ...], Any]] = {}
    for place, info in metadata.storage_data.items():
        places.setdefault(place.fqn, {})[tuple(place.offset or ())] = (place, info)
    for key in [
        k for k in metadata.state_dict_metadata if k.endswith(".experts.experts.linear_fc1.weight")
    ]:
        entry = metadata.state_dict_metadata.pop(key)
        for chunk in entry.chunks:
            expert, row, _ = chunk.offsets
            new = key.replace("experts.linear_fc1", f"experts.{expert}.linear_fc1")
            new += "_v" if row else "_w"
            place, info = places[key][tuple(chunk.offsets)]
            data = (folder / info.relative_path).read_bytes()[info.offset :][: info.length]
            assert data
            moved = type(chunk)(torch.Size((0, 0)), torch.Size((48, 32)))
            metadata.state_dict_metadata[new] = type(entry)(
                entry.properties, torch.Size((48, 32)), [moved]
            )
            del metadata.storage_data[place]
            metadata.storage_data[type(place)(new, torch.Size((0, 0)))] = info
    index.write_bytes(pickle.dumps(metadata))
    _flatten(folder)
    return folder


def _flatten(folder: Path) -> None:
    """Saved tensors of one expert have no expert axis."""
    from .hostile import edit_tensor, rebuild

    keys = [k for k in open_index(folder).tensors if k.endswith(("_w", "_v"))]
    rebuild(folder, {key: edit_tensor(lambda t: t.reshape(48, 32)) for key in keys})


@pytest.mark.parametrize("name", ["tp2_td", "moe_ep2_td", "moe_mixed_shared_td"])
def test_each_value_is_made_once(name: str, tmp_path: Path) -> None:
    source = open_source(DATA / name, iteration=20)
    made: list[Key] = []

    def counted(key: Key) -> Callable[[], NDArray[Any]]:
        return lambda: (made.append(key), source.tensors[key].load())[1]

    values = {key: counted(key) for key in source.tensors}
    write_torch_dist(DATA / name, tmp_path, values, like_iteration=20)
    assert sorted(map(str, made)) == sorted(map(str, source.tensors))


@pytest.mark.parametrize("name", ["bf16_td", "moe_ep2_td", "v0.16.1_dense_td"])
def test_there_and_back_leaves_no_trace(name: str, tmp_path: Path) -> None:
    source = open_source(DATA / name)
    values = values_of(source)
    for place, factor in (("there", 8.0), ("back", 1.0)):
        (tmp_path / place).mkdir()
        like = source.folder if place == "there" else tmp_path / "there"
        at = 31_000 if place == "there" else 20
        write_torch_dist(like, tmp_path / place, values_of(source, factor), iteration=at)
    for key, tensor in open_source(tmp_path / "back").tensors.items():
        np.testing.assert_array_equal(tensor.load(), values[key]())
    assert open_source(tmp_path / "back").run.schedule == source.run.schedule
    assert repr(open_source(tmp_path / "back").run.optimizers) == repr(source.run.optimizers)


def test_other_files_come_along(tmp_path: Path) -> None:
    like = copy("dense_td", tmp_path)
    (like / "run_config.yaml").write_text("model: {}\n")
    values = values_of(open_source(like))
    (tmp_path / "out").mkdir()
    folder = write_torch_dist(like, tmp_path / "out", values)
    assert (folder / "run_config.yaml").read_text() == "model: {}\n"
    (like / "train_state.pt").write_bytes(b"step 20")
    with pytest.raises(CheckpointError, match=r"train_state\.pt: holds counts of iteration 20"):
        write_torch_dist(like, tmp_path / "out", values, iteration=30)


def test_a_manifest_is_written_anew(tmp_path: Path) -> None:
    like = copy("dense_td", tmp_path)
    (like / "integrity.json").write_text('{"algorithm": "sha256", "files": {}}')
    source = open_source(like)
    (tmp_path / "out").mkdir()
    folder = write_torch_dist(like, tmp_path / "out", values_of(source, 0.5))
    manifest = json.loads((folder / "integrity.json").read_text())
    assert manifest["algorithm"] == "sha256"
    assert set(manifest["files"]) == {"__0_0.distcp", ".metadata", "metadata.json"}
    for name, digest in manifest["files"].items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest


HEAD = Key("output_layer.weight", State.WEIGHT)
WRONG: dict[str, tuple[Callable[[Values], object], str]] = {
    "missing": (lambda v: v.pop(HEAD), r"output_layer\.weight \(weight\): no value for it \(1 "),
    "nothing": (lambda v: v.clear(), r"decoder\.final.*\(exp_avg\): no value for it \(37 such"),
    "unknown": (lambda v: v.update({Key("x", State.WEIGHT): v[HEAD]}), r"x \(weight\): no such"),
    "shape": (
        lambda v: v.update({HEAD: lambda: np.zeros((32, 128))}),
        r"output_layer.*\(32, 128\)",
    ),
    "nan": (
        lambda v: v.update({HEAD: lambda: np.full((128, 32), np.nan)}),
        r"output_layer\.weight \(weight\): nan at index \[0, 0\]",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_values_leave_nothing_behind(wrong: str, tmp_path: Path) -> None:
    values = values_of(open_source(DATA / "dense_td"))
    change, message = WRONG[wrong]
    change(values)
    with pytest.raises(CheckpointError, match=message):
        write_torch_dist(DATA / "dense_td", tmp_path, values)
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    values = values_of(open_source(DATA / "dense_td"))
    (tmp_path / "iter_0000021").mkdir()
    with pytest.raises(CheckpointError, match="iter_0000021: exists"):
        write_torch_dist(DATA / "dense_td", tmp_path, values)
    with pytest.raises(CheckpointError, match="cannot be written"):
        write_torch_dist(DATA / "dense_td", tmp_path / "missing", values)
    with pytest.raises(CheckpointError, match="before the beginning"):
        write_torch_dist(DATA / "dense_td", tmp_path, values, iteration=0, adam_step=-1)


def test_other_formats_are_refused(tmp_path: Path) -> None:
    like = DATA / "adam_torch_dcp_fsdp2"
    with pytest.raises(CheckpointError, match=r"torch_dcp.*--ckpt-format torch_dist"):
        write_torch_dist(like, tmp_path, values_of(open_source(like)))


def test_a_renamed_key_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    like = copy("dense_td", tmp_path)
    values = values_of(open_source(like))
    rename(like, "momentum_buffer.decoder", "momentum_buffer.dcoder")
    (tmp_path / "out").mkdir()
    with pytest.raises(CheckpointError, match=r"dcoder.*renamed"):
        write_torch_dist(like, tmp_path / "out", values)
    assert list((tmp_path / "out").iterdir()) == []


def test_archives_that_grow_are_read_by_torch(tmp_path: Path) -> None:
    data = saved({"tensor": torch.arange(5.0), "text": "abc"})
    other = zips.replaced(data, {"archive/data/0": np.arange(5, 10, dtype="f4").tobytes()})
    assert len(other) == len(data)
    (tmp_path / "file").write_bytes(other)
    assert torch.load(tmp_path / "file")["tensor"].tolist() == [5, 6, 7, 8, 9]
    assert zipfile.ZipFile(tmp_path / "file").testzip() is None
    longer = zips.replaced(data, {"archive/version": b"3\n\n"})
    (tmp_path / "file").write_bytes(longer)
    assert torch.load(tmp_path / "file")["tensor"].tolist() == [0, 1, 2, 3, 4]
    assert zipfile.ZipFile(tmp_path / "file").testzip() is None


@pytest.mark.parametrize("protocol", range(6))
def test_numbers_change_in_place(protocol: int) -> None:
    value = {"a": [1, 300, 70_000, 2**40, -5, 2.5, True, None], "b": (1, "1"), "c": {1: 1}}
    names = pickles.Names("test")
    program = numbers.without_frames(pickle.dumps(value, protocol), "test")
    read = numbers.locate(program, names)
    assert read == value
    found = read["a"]
    changes = [(found[0], 2**33), (found[3], 7), (found[5], -0.25), (read["c"][1], 0)]
    changed = pickle.loads(numbers.replaced(program, changes))
    assert changed == {
        "a": [2**33, 300, 70_000, 7, -5, -0.25, True, None],
        "b": (1, "1"),
        "c": {1: 0},
    }
