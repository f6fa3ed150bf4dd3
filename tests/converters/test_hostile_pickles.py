"""No pickle of a checkpoint is executed, wherever it is planted."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from converters.errors import CheckpointError
from converters.megatron.run import read_run
from converters.megatron.torch_dist import open_checkpoint, read_tensor

from . import hostile

NAMES = tuple(hostile.payloads(Path("marker")))


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    return tmp_path / "executed"


@pytest.mark.parametrize("name", [n for n in NAMES if "getattr" not in n])
def test_the_payloads_are_real(name: str, marker: Path) -> None:
    assert hostile.is_effective(hostile.payloads(marker)[name], marker)


@pytest.mark.parametrize("name", NAMES)
def test_metadata_is_refused_unexecuted(name: str, marker: Path, tmp_path: Path) -> None:
    folder = hostile.copy("dense_td", tmp_path)
    (folder / ".metadata").write_bytes(hostile.payloads(marker)[name])
    with pytest.raises(CheckpointError, match=r"\.metadata"):
        open_checkpoint(folder)
    assert not marker.exists()


@pytest.mark.parametrize("name", NAMES)
def test_common_state_is_refused_unexecuted(name: str, marker: Path, tmp_path: Path) -> None:
    folder = hostile.copy("dense_td", tmp_path)
    content = hostile.archive(hostile.payloads(marker)[name])
    hostile.replace_entry(folder, "common_state/shard_0_1", content)
    checkpoint = open_checkpoint(folder)
    with pytest.raises(CheckpointError, match="common_state"):
        read_run(checkpoint)
    assert not marker.exists()


@pytest.mark.parametrize("name", NAMES)
def test_tensor_is_refused_unexecuted(name: str, marker: Path, tmp_path: Path) -> None:
    folder = hostile.copy("dense_td", tmp_path)
    content = hostile.archive(hostile.payloads(marker)[name])
    hostile.replace_entry(folder, "output_layer.weight", content)
    checkpoint = open_checkpoint(folder)
    with pytest.raises(CheckpointError, match=r"output_layer\.weight"):
        read_tensor(checkpoint, "output_layer.weight")
    assert not marker.exists()


@pytest.mark.parametrize("name", NAMES)
def test_common_file_is_refused_unexecuted(name: str, marker: Path, tmp_path: Path) -> None:
    folder = hostile.copy("v0.18.2_dense_td", tmp_path)
    (folder / "common.pt").write_bytes(hostile.archive(hostile.payloads(marker)[name]))
    checkpoint = open_checkpoint(folder)
    with pytest.raises(CheckpointError, match=r"common\.pt"):
        read_run(checkpoint)
    assert not marker.exists()


def test_the_message_names_what_was_refused(marker: Path, tmp_path: Path) -> None:
    folder = hostile.copy("dense_td", tmp_path)
    (folder / ".metadata").write_bytes(hostile.payloads(marker)["reduce"])
    with pytest.raises(CheckpointError, match=r"mentions posix\.system.*nothing was executed"):
        open_checkpoint(folder)


def test_names_of_known_packages_stay_inert(marker: Path, tmp_path: Path) -> None:
    code = f"open({str(marker)!r}, 'w').close()"
    program = b"cnumpy.testing\nrunstring\n" + pickle.dumps((code, {}), 2)[2:-1] + b"R."
    assert hostile.is_effective(program, marker)
    folder = hostile.copy("dense_td", tmp_path)
    hostile.replace_entry(folder, "common_state/shard_0_1", hostile.archive(program))
    with pytest.raises(CheckpointError, match="no dictionary"):
        read_run(open_checkpoint(folder))
    assert not marker.exists()


def test_own_classes_are_read_inert_on_request(tmp_path: Path) -> None:
    folder = hostile.copy("dense_td", tmp_path)
    program = b"c__main__\nMine\n)R."
    hostile.replace_entry(folder, "common_state/shard_0_1", hostile.archive(program))
    with pytest.raises(CheckpointError, match=r"--opaque __main__\.Mine"):
        read_run(open_checkpoint(folder))
    with pytest.raises(CheckpointError, match="no dictionary"):
        read_run(open_checkpoint(folder, opaque=("__main__.Mine",)))


def test_files_outside_the_folder_are_refused(tmp_path: Path) -> None:
    folder = hostile.copy("dense_td", tmp_path)
    index = folder / ".metadata"
    metadata = pickle.loads(index.read_bytes())
    for info in metadata.storage_data.values():
        info.relative_path = "../" + info.relative_path
    index.write_bytes(pickle.dumps(metadata))
    with pytest.raises(CheckpointError, match="outside its folder"):
        open_checkpoint(folder)
