"""What the writer makes is what Orbax and MaxText themselves would have saved."""

from __future__ import annotations

import json
import threading
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import orbax.checkpoint as ocp
import pytest
import tensorstore as ts

from converters.budget import Stopped
from converters.errors import CheckpointError
from converters.orbax import arrays, runtime
from converters.orbax.reader import open_saved
from converters.orbax.verification import differences
from converters.orbax.writer import limits_for, shares, write_state
from converters.target import TargetState, leaves
from tests.converters.states import Gauge, small_state, state_of, target

runtime.start()
REAL = Path(__file__).parents[1] / "data/maxtext"
TREE_FILES = ("_METADATA", "array_metadatas/process_0")


@pytest.fixture(scope="module", params=["0.2.3", "0.2.5"])
def rewritten(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    """A checkpoint of MaxText, and the same state written by the writer."""
    real = open_saved(REAL / request.param)
    state = replace(state_of(real), records_scan_layers=request.param == "0.2.5")
    place = write_state(state, tmp_path_factory.mktemp("rewritten"))
    return real, state, place


def test_the_tree_on_disk_is_maxtexts(rewritten) -> None:
    real, _, place = rewritten
    theirs, ours = (
        json.loads((f / "_METADATA").read_text()) for f in (real.folder, place / "items")
    )
    assert ours == theirs


def test_array_metadata_are_maxtexts_but_for_the_kind_of_random_keys(rewritten) -> None:
    real, _, place = rewritten
    rows = []
    for folder in (real.folder, place / "items"):
        text = (folder / "array_metadatas/process_0").read_text()
        entries = [row["array_metadata"] for row in json.loads(text)["array_metadatas"]]
        for entry in entries:
            if entry["param_name"].startswith("nnx_aux"):
                del entry["ext_metadata"]
        rows.append(sorted(entries, key=lambda entry: entry["param_name"]))
    assert rows[0] == rows[1]


def test_step_metadata_say_what_maxtexts_say(rewritten) -> None:
    real, state, place = rewritten
    file = "_CHECKPOINT_METADATA"
    theirs, ours = (json.loads((f / file).read_text()) for f in (real.folder.parent, place))
    assert ours.keys() == theirs.keys()
    assert ours["custom_metadata"] == theirs["custom_metadata"]
    assert ours["item_handlers"].keys() == theirs["item_handlers"].keys()
    assert (place / "items" / file).is_file() == state.records_scan_layers
    assert place.name == real.folder.parent.name


def test_every_file_of_maxtexts_is_there(rewritten) -> None:
    real, _, place = rewritten
    for file in real.folder.parent.rglob("*"):
        if "d" not in file.parts[-2:]:
            assert (place / file.relative_to(real.folder.parent)).exists(), file


def test_values_are_the_same_bits(rewritten) -> None:
    real, state, place = rewritten
    written = open_saved(place)
    assert written.tensors.keys() == real.tensors.keys()
    assert not differences(state, written)


def test_the_description_of_every_array_is_maxtexts(rewritten) -> None:
    real, _, place = rewritten
    theirs, ours = (described(folder) for folder in (real.folder, place / "items"))
    assert ours == theirs
    assert any(b'"level":3' in text for text in ours.values())


def described(items: Path) -> dict[bytes, bytes]:
    """zarr.json of each array, whatever stands around it."""
    store = stored(items)
    keys = [key for key in store.list().result() if key.endswith(b"zarr.json")]
    return {key: store.read(key).result().value for key in keys}


def stored(items: Path) -> ts.KvStore:
    return ts.KvStore.open({"driver": "ocdbt", "base": f"file://{items}/"}).result()


def test_it_is_no_larger_than_orbaxs(tmp_path: Path) -> None:
    """Although it is packed in less time."""
    rng = np.random.default_rng(0)
    noise = (rng.standard_normal((512, 1024)) * 0.02).astype(np.float32)
    short = (noise.view(np.uint32) & 0xFFFF0000).view(np.float32)
    parts = {"noise": noise, "squares": noise**2, "short": short, "zeros": np.zeros_like(noise)}
    state = TargetState({n: target((n,), a) for n, a in parts.items()}, 5, True)
    ours = write_state(state, tmp_path) / "items"
    with ocp.PyTreeCheckpointer(use_ocdbt=True, use_zarr3=True) as saver:
        saver.save(tmp_path / "theirs", parts)
    sizes = [
        {name: sum(map(len, chunks(folder, name))) for name in parts}
        for folder in (ours, tmp_path / "theirs")
    ]
    for name, array in parts.items():
        assert sizes[0][name] <= 1.001 * sizes[1][name] + 16, name
        assert np.array_equal(open_saved(ours).tensors[(name,)].read(), array)


def chunks(items: Path, name: str) -> Iterator[bytes]:
    store = stored(items)
    for key in store.list().result():
        if key.startswith(f"{name}/c".encode()):
            yield store.read(key).result().value


def test_orbax_restores_it_without_being_told_how(tmp_path: Path) -> None:
    state = small_state()
    place = write_state(state, tmp_path)
    with ocp.StandardCheckpointer() as reader:
        restored = reader.restore(str(place / "items"))
        assert reader.metadata(str(place / "items")).custom_metadata == {"scan_layers": True}
    for leaf in leaves(state.tree):
        found = restored
        for key in leaf.path:
            found = found[int(key) if isinstance(found, list) else key]
        assert found.dtype == leaf.dtype
        assert np.array_equal(arrays.bits(np.asarray(found)), arrays.bits(leaf.build()))
    assert restored["opt_state"]["inner_state"][1] is None
    assert restored["opt_state"]["inner_state"][0]["mu"]["w1"] is None


def test_a_checkpoint_manager_finds_the_step(tmp_path: Path) -> None:
    write_state(small_state(), tmp_path)
    (tmp_path / "conversion.json").write_text("{}")
    with ocp.CheckpointManager(tmp_path) as manager:
        assert manager.all_steps() == [4]


def test_arrays_of_many_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "CHUNK_BYTES", 1 << 12)
    rng = np.random.default_rng(1)
    array = rng.standard_normal((30, 7, 50), dtype=np.float32)
    turned = target(("b",), array.T.copy(), build=lambda: array.T)
    state = TargetState({"a": target(("a",), array), "b": turned}, 1, True)
    digests = {}
    place = write_state(state, tmp_path, done=lambda t, d: digests.__setitem__(t.path, d))
    written = open_saved(place)
    assert np.prod(written.tensors[("a",)].chunk) * 4 <= 1 << 12
    assert not differences(state, written)
    assert digests[("b",)] == arrays.digest(np.ascontiguousarray(array.T))
    assert digests[("a",)] != digests[("b",)]


def test_no_more_is_in_memory_than_planned(tmp_path: Path) -> None:
    gauge = Gauge()
    shape = (1 << 22,)  # 16 MiB

    def build() -> np.ndarray:
        array = np.zeros(shape, np.float32)
        gauge.took(array.nbytes)
        weakref.finalize(array, gauge.took, -array.nbytes)
        return array

    empty = np.empty(shape, np.float32)
    tree = {f"w{i}": target((f"w{i}",), empty, build=build) for i in range(12)}
    state = TargetState(tree, 1, True)
    write_state(state, tmp_path, workers=8)
    assert gauge.now == 0
    assert 16 << 20 <= gauge.most <= limits_for(state, 8).bytes


def test_processes_share_by_bytes() -> None:
    state = small_state()
    share = shares(state, 3)
    loads = [0, 0, 0]
    for leaf in leaves(state.tree):
        loads[share[leaf.path]] += leaf.bytes
    largest = max(leaf.bytes for leaf in leaves(state.tree))
    assert max(loads) - min(loads) <= largest
    assert set(share.values()) == {0, 1, 2}


@pytest.mark.parametrize("made", [np.zeros((8, 3, 5), np.float32), np.zeros((8, 3, 4), np.float64)])
def test_a_leaf_built_otherwise_than_planned_is_refused(tmp_path: Path, made: np.ndarray) -> None:
    state = small_state()
    wrong = target(("w",), np.zeros((8, 3, 4), np.float32), build=lambda: made)
    with pytest.raises(CheckpointError, match=r"w: planned as float32 \[8, 3, 4\], built as"):
        write_state(TargetState({**state.tree, "w": wrong}, 5, True), tmp_path)


def test_an_error_in_a_source_comes_out_as_it_was(tmp_path: Path) -> None:
    def build() -> np.ndarray:
        raise CheckpointError("layer 3: bytes missing")

    wrong = target(("w",), np.zeros(3, np.float32), build=build)
    with pytest.raises(CheckpointError, match="layer 3: bytes missing"):
        write_state(TargetState({"w": wrong}, 5, True), tmp_path)
    assert not (tmp_path / "4").exists()


def test_what_the_disk_returns_differently_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle = arrays.Disk.settle

    def damaged(disk: arrays.Disk, rest: int) -> None:
        for n, (key, value, future) in enumerate(disk._waiting):
            if key.startswith(b"c/") and "w2" in disk._name:
                disk._waiting[n] = (key, b"other" + value[5:], future)
        settle(disk, rest)

    monkeypatch.setattr(arrays.Disk, "settle", damaged)
    with pytest.raises(
        CheckpointError, match=r"params\.params\.w2: c/.* was read back differently"
    ):
        write_state(small_state(), tmp_path)


def test_it_stops_when_told(tmp_path: Path) -> None:
    stop = threading.Event()
    seen = []

    def done(leaf, digest) -> None:
        seen.append(leaf)
        stop.set()

    tree = {f"w{i}": target((f"w{i}",), np.zeros(1 << 22, np.float32)) for i in range(8)}
    with pytest.raises(Stopped):
        write_state(TargetState(tree, 1, True), tmp_path, workers=1, done=done, stop=stop)
    assert len(seen) < 8


def test_a_leaf_without_elements_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    state = TargetState({"w": target(("w",), np.zeros((0, 4), np.float32))}, 1, True)
    with pytest.raises(CheckpointError, match="w: no elements"):
        write_state(state, tmp_path)
    assert not list(tmp_path.iterdir())
