"""A result appears whole, or not at all, and nothing else is touched."""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from converters import commit, estimate
from converters.errors import CheckpointError


def fill(folder: Path, text: str = "new") -> None:
    (folder / "4/items").mkdir(parents=True)
    (folder / "4/items/data").write_text(text)
    (folder / commit.REPORT).write_text("{}")


def write_and_fail(out: Path, error: BaseException) -> None:
    with commit.growing(out) as folder:
        fill(folder)
        raise error


def test_the_result_appears_when_it_is_whole(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with commit.growing(out) as folder:
        assert folder.parent == tmp_path
        assert folder.name.startswith(".")
        fill(folder)
        assert not out.exists()
    assert (out / "4/items/data").read_text() == "new"
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError, CheckpointError])
def test_an_error_leaves_nothing(tmp_path: Path, error: type[BaseException]) -> None:
    with pytest.raises(error):
        write_and_fail(tmp_path / "out", error())
    assert not list(tmp_path.iterdir())


def test_writes_that_still_arrive_leave_nothing(tmp_path: Path) -> None:
    end = time.monotonic() + 0.5

    def write(folder: Path) -> None:
        while time.monotonic() < end:
            with contextlib.suppress(OSError):
                (folder / f"{time.monotonic()}").write_text("late")

    writer = threading.Thread(target=write, args=(commit.hidden(tmp_path / "out"),))
    writer.start()
    with pytest.raises(KeyboardInterrupt):
        write_and_fail(tmp_path / "out", KeyboardInterrupt())
    writer.join()
    assert not list(tmp_path.iterdir())


def test_what_a_killed_run_left_is_removed(tmp_path: Path) -> None:
    out = tmp_path / "out"
    stale = commit.hidden(out)
    fill(stale)
    (stale / "file").write_text("x")
    with commit.growing(out) as folder:
        assert not list(folder.iterdir())
        fill(folder)
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_an_empty_folder_of_that_name_is_taken(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    commit.check_output(tmp_path / "out", (), force=False)
    with commit.growing(tmp_path / "out") as folder:
        fill(folder)
    assert (tmp_path / "out/4").is_dir()


def test_an_earlier_result_is_replaced_by_force(tmp_path: Path) -> None:
    out = tmp_path / "out"
    fill(out, "old")
    commit.check_output(out, (), force=True)
    with commit.growing(out) as folder:
        fill(folder)
        assert (out / "4/items/data").read_text() == "old"
    assert (out / "4/items/data").read_text() == "new"
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_an_earlier_result_survives_an_error(tmp_path: Path) -> None:
    out = tmp_path / "out"
    fill(out, "old")
    with pytest.raises(OSError, match="full"):
        write_and_fail(out, OSError("full"))
    assert (out / "4/items/data").read_text() == "old"


def test_a_kill_between_the_renames_is_mended(tmp_path: Path) -> None:
    out = tmp_path / "out"
    fill(tmp_path / ".out.replaced", "old")
    with pytest.raises(OSError, match="full"):
        write_and_fail(out, OSError("full"))
    assert (out / "4/items/data").read_text() == "old"


def test_a_kill_after_the_renames_is_mended(tmp_path: Path) -> None:
    out = tmp_path / "out"
    fill(out, "new")
    fill(tmp_path / ".out.replaced", "old")
    with pytest.raises(OSError, match="full"):
        write_and_fail(out, OSError("full"))
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    assert (out / "4/items/data").read_text() == "new"


def test_two_at_once_are_refused(tmp_path: Path) -> None:
    out = tmp_path / "out"
    busy = commit.hidden(out)
    fill(busy)
    handle = os.open(busy, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        with pytest.raises(CheckpointError, match="another muon-convert is writing it"):
            commit.growing(out).__enter__()
        assert (busy / "4/items/data").is_file(), "the other one's work was removed"
    finally:
        os.close(handle)


def test_the_lock_dies_with_its_process(tmp_path: Path) -> None:
    out = tmp_path / "out"
    code = f"""
from pathlib import Path
from converters import commit
with commit.growing(Path({str(out)!r})) as folder:
    (folder / "part").write_text("x")
    import os; os._exit(9)
"""
    subprocess.run([sys.executable, "-c", code], check=False, cwd=Path(__file__).parents[2])
    assert (commit.hidden(out) / "part").is_file()
    with commit.growing(out) as folder:
        fill(folder)
    assert (out / "4").is_dir()


def occupied(tmp_path: Path) -> dict[str, tuple[Path, str]]:
    source = tmp_path / "ckpt"
    (source / "iter_0000020").mkdir(parents=True)
    (tmp_path / "file").write_text("x")
    (tmp_path / "full").mkdir()
    (tmp_path / "full/precious").write_text("x")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    fill(tmp_path / "earlier")
    return {
        "inside the source": (source / "out", "inside the source"),
        "inside the iteration": (source / "iter_0000020/out", "inside the source"),
        "the source itself": (source, "inside the source"),
        "around the source": (tmp_path, "contains the source"),
        "a file": (tmp_path / "file", "a file of that name is in the way"),
        "a folder with other things": (tmp_path / "full", "not a result of muon-convert"),
        "a dangling link": (tmp_path / "dangling", "which does not exist"),
        "in no folder": (tmp_path / "no/such/out", "create it first"),
        "the root": (Path("/"), "not a name"),
        "through dots": (source / "../ckpt/iter_0000020/../x", "inside the source"),
    }


OCCUPIED = (
    "inside the source",
    "inside the iteration",
    "the source itself",
    "around the source",
    "a file",
    "a folder with other things",
    "a dangling link",
    "in no folder",
    "the root",
    "through dots",
)


@pytest.mark.parametrize("case", OCCUPIED)
def test_places_that_are_refused_even_with_force(tmp_path: Path, case: str) -> None:
    places = occupied(tmp_path)
    assert tuple(places) == OCCUPIED
    out, message = places[case]
    before = sorted(p.name for p in tmp_path.rglob("*"))
    with pytest.raises(CheckpointError, match=message):
        commit.check_output(out, (tmp_path / "ckpt",), force=True)
    assert sorted(p.name for p in tmp_path.rglob("*")) == before


def test_an_earlier_result_needs_force(tmp_path: Path) -> None:
    fill(tmp_path / "out")
    with pytest.raises(CheckpointError, match="exists: give --out another folder, or --force"):
        commit.check_output(tmp_path / "out", (), force=False)


def test_a_full_disk_is_refused_with_the_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need = estimate.estimate([3 << 30, 1 << 30])
    monkeypatch.setattr(estimate, "free_disk", lambda place: 1 << 30)
    with pytest.raises(CheckpointError, match=r"4\.03 GiB needed on disk, 1\.00 GiB free"):
        estimate.require(need, tmp_path)


def test_too_little_memory_is_refused_with_the_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need = estimate.estimate([3 << 30, 1 << 30])
    monkeypatch.setattr(estimate, "free_disk", lambda place: 1 << 40)
    monkeypatch.setattr(estimate, "free_memory", lambda: 2 << 30)
    with pytest.raises(CheckpointError, match=r"6\.59 GiB of memory needed.*2\.00 GiB available"):
        estimate.require(need, tmp_path)


def test_memory_does_not_grow_with_the_number_of_leaves() -> None:
    few, many = estimate.estimate([1 << 20] * 2), estimate.estimate([1 << 20] * 2000)
    assert few.memory == many.memory
    assert many.disk > 2000 << 20


def test_a_cgroup_limit_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in (
        ("memory.max", f"{3 << 30}"),
        ("memory.current", f"{2 << 30}"),
        ("memory.stat", f"anon 5\ninactive_file {1 << 29}"),
    ):
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(estimate, "_CGROUP", tmp_path)
    assert estimate._cgroup() == (1 << 30) + (1 << 29)
