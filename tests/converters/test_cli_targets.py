"""megatron2orbax against targets that are occupied, full, forbidden or interrupted."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from converters import commit, conversion, estimate
from converters.maxtext.plan import Options, plan_target
from converters.megatron.open import open_source
from converters.orbax.reader import open_saved
from tests.converters.commands import DENSE, ROOT, assert_refused, run


def test_an_existing_result_is_kept_without_force(copied: Path) -> None:
    marker = copied / "20/items/_METADATA"
    before = marker.read_bytes(), marker.stat().st_mtime_ns
    assert_refused(run("megatron2orbax", DENSE, "--out", copied), "exists", "--force")
    assert (marker.read_bytes(), marker.stat().st_mtime_ns) == before


def test_force_replaces_a_result(copied: Path) -> None:
    result = run("megatron2orbax", DENSE, "--out", copied, "--force", "--iteration", 20)
    assert result.exit_code == 0, result.output
    assert open_saved(copied).directory == 19
    assert not (copied / "20").exists()


def test_force_spares_other_folders(tmp_path: Path) -> None:
    (tmp_path / "precious.txt").write_text("x")
    words = ("megatron2orbax", DENSE, "--out", tmp_path, "--force")
    assert_refused(run(*words), "is not a result of muon-convert")
    assert (tmp_path / "precious.txt").read_text() == "x"


@pytest.mark.parametrize("force", [(), ("--force",)])
def test_never_into_the_source(tmp_path: Path, force: tuple[str, ...]) -> None:
    checkpoint = shutil.copytree(DENSE, tmp_path / "ckpt")
    for out in (checkpoint, checkpoint / "iter_0000021", checkpoint / "new", tmp_path):
        assert_refused(run("megatron2orbax", checkpoint, "--out", out, *force), "source")
    assert not (checkpoint / "new").exists()


def test_a_folder_that_may_not_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, *args: Any, **kwargs: Any) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "mkdir", refuse)
    result = run("megatron2orbax", DENSE, "--out", tmp_path / "out")
    assert_refused(result, "out: cannot be written: Permission denied")


def test_a_full_disk_is_refused_before_it_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(estimate, "free_disk", lambda place: 1 << 20)
    result = run("megatron2orbax", DENSE, "--out", tmp_path / "out")
    assert_refused(result, "needed on disk", "0.00 GiB free")
    assert not list(tmp_path.iterdir())


def test_a_small_machine_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimate, "free_memory", lambda: 1 << 28)
    result = run("megatron2orbax", DENSE, "--out", tmp_path / "out")
    assert_refused(result, "of memory needed", "0.25 GiB available")
    assert not list(tmp_path.iterdir())


def test_a_disk_that_fills_while_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError(28, "No space left on device", "items/d/x")

    monkeypatch.setattr("converters.orbax.writer.write_state", full)
    result = run("megatron2orbax", DENSE, "--out", tmp_path / "out")
    assert_refused(result, "items/d/x: No space left on device")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--maxtext-version", "9.9"), "unknown MaxText version '9.9'"),
        (("--layout", "linen"), "does not run Muon with layout 'linen'"),
        (("--family", "no-such"), "no-such"),
        (("--iteration", 7), "7"),
        (("--vocab-size", 5000), "5000"),
        (("--spec", "no_such_field=1"), "no_such_field"),
    ],
)
def test_options_that_do_not_fit(tmp_path: Path, words: tuple[Any, ...], message: str) -> None:
    assert_refused(run("megatron2orbax", DENSE, "--out", tmp_path / "out", *words), message)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--process-index", 1), "--process-index 1 is not below --process-count 1"),
        (("--coordinator", "localhost:1"), "give --process-count too"),
        (("--process-count", 2), "--coordinator"),
    ],
)
def test_numbers_of_processes_that_do_not_fit(
    tmp_path: Path, words: tuple[Any, ...], message: str
) -> None:
    assert_refused(run("megatron2orbax", DENSE, "--out", tmp_path / "out", *words), message)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("file", [".", "missing/report.json"])
def test_a_report_that_cannot_be_written_is_seen_first(tmp_path: Path, file: str) -> None:
    for command in ("megatron2orbax", "megatron2safetensors"):
        words = (command, DENSE, "--out", tmp_path / "out", "--json", tmp_path / file)
        assert_refused(run(*words), "cannot be written")
    assert not list(tmp_path.iterdir())


def test_a_link_to_itself_is_no_target(tmp_path: Path) -> None:
    (tmp_path / "out").symlink_to("out")
    assert_refused(run("megatron2orbax", DENSE, "--out", tmp_path / "out"), "out: cannot be")


@pytest.mark.parametrize("size", ["nan", "inf", "-1", "0"])
def test_sizes_that_are_none(tmp_path: Path, size: str) -> None:
    words = ("megatron2safetensors", DENSE, "--out", tmp_path / "out", "--shard-size", size)
    assert_refused(run(*words), "--shard-size")


@pytest.mark.parametrize("words", [("--spec", "ns_eps"), ("--workers", 0), ("--vocab-size", 0)])
def test_options_that_mean_nothing(tmp_path: Path, words: tuple[Any, ...]) -> None:
    result = run("megatron2orbax", DENSE, "--out", tmp_path / "out", *words)
    assert result.exit_code == 2
    assert "Traceback" not in result.output
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["nothing", "empty", "file"])
def test_sources_that_are_none(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    assert_refused(run("megatron2orbax", tmp_path / name, "--out", tmp_path / "out"), name)
    assert not (tmp_path / "out").exists()


def test_another_run_on_the_same_result_is_left_alone(tmp_path: Path) -> None:
    with commit.growing(tmp_path / "out") as folder:
        (folder / "part").write_text("x")
        result = run("megatron2orbax", DENSE, "--out", tmp_path / "out")
        assert_refused(result, "another muon-convert is writing it")
        assert (folder / "part").is_file()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_cleans_up(tmp_path: Path, number: signal.Signals) -> None:
    out = tmp_path / "out"
    code = f"""
import time
from converters.orbax import streaming
build = streaming._build
def slow(target):
    time.sleep(0.2)
    return build(target)
streaming._build = slow
from converters.cli import main
main(["megatron2orbax", {str(DENSE)!r}, "--out", {str(out)!r}])
"""
    child = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=os.environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while not any(commit.hidden(out).rglob("ocdbt.process_0")):
        assert child.poll() is None, child.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    child.send_signal(number)
    stdout, stderr = child.communicate(timeout=60)
    assert child.returncode == 130, stderr
    assert "interrupted, nothing was written" in stderr
    assert "Traceback" not in stderr
    assert not stdout
    assert not list(tmp_path.iterdir())


def test_conversion_and_plan_agree_on_the_place(tmp_path: Path) -> None:
    plan = plan_target(open_source(DENSE), Options())
    request = conversion.Request(DENSE, tmp_path / "out", Options())
    report = conversion.describe(request, *conversion.prepare(request))
    assert report["checkpoint"].endswith(f"/out/{plan.state.step - 1}/items")
    assert all(row["sha256"] is None for row in report["tensors"])
