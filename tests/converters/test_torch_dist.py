"""The reader against torch's own reader on real checkpoints, and on what is not a whole one."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.distributed import checkpoint as dcp

from converters.errors import CheckpointError
from converters.megatron.folders import resolve
from converters.megatron.run import read_run
from converters.megatron.torch_dist import open_checkpoint, open_index, read_tensor

from .hostile import DATA, DISTRIBUTED, copy


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("name", DISTRIBUTED)
def test_every_tensor_is_what_torch_reads(name: str) -> None:
    checkpoint = open_index(resolve(DATA / name))
    assert len(checkpoint.tensors) > 20
    expected = {
        key: torch.empty(entry.shape, dtype=getattr(torch, entry.dtype))
        for key, entry in checkpoint.tensors.items()
    }
    dcp.load(expected, storage_reader=dcp.FileSystemReader(checkpoint.folder), no_dist=True)
    for key, tensor in expected.items():
        # torch gives NumPy no bfloat16; float64 holds it exactly.
        found = read_tensor(checkpoint, key).astype(np.float64)
        np.testing.assert_array_equal(found, tensor.double().numpy())


@pytest.mark.parametrize("name", DISTRIBUTED)
def test_the_run_is_read(name: str) -> None:
    checkpoint = open_index(resolve(DATA / name))
    run = read_run(checkpoint)
    assert run.iteration == int(checkpoint.folder.name.removeprefix("iter_"))
    hidden = 64 if name == "mla_run" else 32
    assert (run.arguments["hidden_size"], run.arguments["num_layers"]) == (hidden, 2)
    *muons, adam = run.optimizers
    assert len(muons) == (run.arguments["optimizer"] == "muon") * (1 + ("ep2" in name))
    for muon in muons:
        assert muon.groups[0].get("momentum", muon.groups[0].get("momentum_beta")) == 0.95
        assert muon.step is None
    assert adam.step == run.iteration
    assert {group["weight_decay"] for group in adam.groups} == {0.1, 0.0}
    assert run.schedule["num_steps"] == 4 * run.iteration


def test_the_tracker_names_the_latest_iteration() -> None:
    folder = DATA / "dense_td"
    tracked = (folder / "latest_checkpointed_iteration.txt").read_text()
    assert open_checkpoint(folder).folder == folder / f"iter_{int(tracked):07d}"
    assert open_checkpoint(folder / "iter_0000020").folder.name == "iter_0000020"


def _cut_short(folder: Path) -> None:
    file = folder / "__0_0.distcp"
    file.write_bytes(file.read_bytes()[:-1000])


def _cut_index(folder: Path) -> None:
    file = folder / ".metadata"
    file.write_bytes(file.read_bytes()[:-100])


def _pointer(folder: Path) -> None:
    text = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
    (folder / "__0_0.distcp").write_text(text)


def _pointer_index(folder: Path) -> None:
    (folder / ".metadata").write_text("/annex/objects/MD5E-s1--0")


def _legacy(folder: Path) -> None:
    shutil.rmtree(folder)
    (folder / "mp_rank_00").mkdir(parents=True)


def _damaged(folder: Path) -> None:
    file = folder / "__0_0.distcp"
    file.write_bytes(b"\0" * file.stat().st_size)


DAMAGES: dict[Callable[[Path], object], str] = {
    _cut_short: "cut short.*copy it again",
    _cut_index: "damaged or cut short",
    _pointer: "pointer to its content: run `git lfs pull`",
    _pointer_index: "pointer to its content: run `git annex get`",
    _legacy: "legacy 'torch' format.*--ckpt-format torch_dist",
    _damaged: "not an archive of torch.save",
    lambda f: (f / "__0_0.distcp").unlink(): "__0_0.distcp: missing",
    lambda f: (f / ".metadata").unlink(): ".metadata is missing",
    lambda f: (f / "metadata.json").unlink(): "fsdp_dtensor",
    lambda f: (f / "metadata.json").write_text("{}"): "not the description",
    lambda f: (f / "metadata.json").write_text('{"sharded_backend": "zarr"}'): "'zarr'",
    shutil.rmtree: "no such folder",
}


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda d: DAMAGES[d])
def test_damage_is_a_clear_error(damage: Callable[[Path], object], tmp_path: Path) -> None:
    folder = copy("dense_td", tmp_path)
    damage(folder)
    with pytest.raises(CheckpointError, match=DAMAGES[damage]):
        read_everything(folder)


def read_everything(folder: Path) -> None:
    checkpoint = open_checkpoint(folder)
    read_run(checkpoint)
    for key in checkpoint.tensors:
        read_tensor(checkpoint, key)


@pytest.mark.parametrize("text", ["21x", "", "99"])
def test_a_wrong_tracker_is_named(text: str, tmp_path: Path) -> None:
    root = copy("dense_td", tmp_path).parent
    (root / "latest_checkpointed_iteration.txt").write_text(text)
    with pytest.raises(CheckpointError, match="latest_checkpointed_iteration"):
        open_checkpoint(root)


def test_older_common_file_must_be_there(tmp_path: Path) -> None:
    folder = copy("v0.18.2_dense_td", tmp_path)
    (folder / "common.pt").unlink()
    with pytest.raises(CheckpointError, match=r"common\.pt: missing"):
        read_run(open_checkpoint(folder))
