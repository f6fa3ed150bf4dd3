"""Full disks, kills and company: the tree is as it was, or one command from it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from codemods import changes
from codemods.record import MANIFEST, STATE_DIRECTORY
from tests.codemods.trees import migrate, refused, snapshot

COMMAND = Path(sys.executable).with_name("muon-migrate")


def _fill_up(monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    """A disk with room for so many more files."""
    real, written = os.fsync, []

    def fsync(descriptor: int) -> None:
        if len(written) >= room:
            raise OSError(28, "No space left on device")
        written.append(descriptor)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)


@pytest.mark.parametrize("room", [0, 3, 9, 38])
def test_a_full_disk_is_named_with_the_file_and_changes_nothing(
    tree: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    _fill_up(monkeypatch, room)
    message = refused(tree)
    assert "No space left on device; nothing was changed" in message
    assert message.startswith("muon-migrate: maxtext/")


def test_originals_outlive_a_roll_back_that_fails(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk fills up for good between the last file and the final manifest."""
    before = snapshot(tree)
    real = changes.write_all

    def write_all(rows: list[changes.Change], undo: list[changes.Undo]) -> None:
        is_final = (tree / "maxtext" / MANIFEST).exists() and rows[-1].path.name == MANIFEST.name
        if is_final:
            _fill_up(monkeypatch, 0)
        real(rows, undo)

    monkeypatch.setattr("codemods.commit.write_all", write_all)
    result = migrate("apply", tree)
    monkeypatch.undo()
    assert result.code == 2
    assert "not everything could be put back" in result.err
    assert "the originals are kept: when the cause is gone, run muon-migrate revert" in result.err
    assert "an apply was interrupted here" in refused(tree)
    assert migrate("revert", tree).code == 0
    assert snapshot(tree) == before


def _stopped(tree: Path, number: int, renames: int, *, is_ignored: bool = False) -> int:
    """Exit status of an apply that gets a signal before one of its renames."""
    script = (
        "import os, signal, sys\n"
        "from codemods.cli import main\n"
        "number, renames, tree, is_ignored = sys.argv[1:]\n"
        "real, calls = os.replace, []\n"
        "def replace(source, target):\n"
        "    calls.append(target)\n"
        "    if len(calls) == int(renames):\n"
        "        os.kill(os.getpid(), int(number))\n"
        "    real(source, target)\n"
        "os.replace = replace\n"
        # Whatever the tests themselves were started with.
        "handler = signal.SIG_IGN if is_ignored == 'True' else signal.SIG_DFL\n"
        "if int(number) in (signal.SIGHUP, signal.SIGTERM):\n"
        "    signal.signal(int(number), handler)\n"
        "sys.argv = ['muon-migrate', 'apply', tree]\n"
        "main()\n"
    )
    command = [sys.executable, "-c", script, str(int(number)), str(renames), tree, str(is_ignored)]
    return subprocess.run(command, capture_output=True, check=False).returncode


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_rolls_back(tree: Path, number: signal.Signals) -> None:
    before = snapshot(tree)
    assert _stopped(tree, number, 12) == 128 + number
    assert snapshot(tree) == before


def test_nohup_is_respected(tree: Path) -> None:
    assert _stopped(tree, signal.SIGHUP, 12, is_ignored=True) == 0
    assert migrate("apply", tree, "--check").code == 0


@pytest.mark.parametrize("command", ["apply", "revert"])
def test_nothing_stays_of_an_apply_that_was_killed_at_once(tree: Path, command: str) -> None:
    """Before there is a manifest, nobody knows whose the new directories are."""
    before = snapshot(tree)
    assert _stopped(tree, signal.SIGKILL, 2) == -signal.SIGKILL
    assert (tree / "maxtext" / STATE_DIRECTORY).exists()
    assert migrate(command, tree).code == 0
    assert migrate("revert", tree).code == 0
    assert snapshot(tree) == before


def test_two_at_once_do_not_mix(tree: Path, tmp_path: Path) -> None:
    """One is held in its --python step; the others see it, and do not touch what it writes."""
    before = snapshot(tree)
    started, go_on = tmp_path / "started", tmp_path / "go on"
    python = tmp_path / "python"
    waiting = f'touch "{started}"\nwhile [ ! -e "{go_on}" ]; do sleep 0.05; done\n'
    python.write_text(f"#!/bin/sh\n{waiting}")
    python.chmod(0o755)
    first = subprocess.Popen([COMMAND, "apply", tree, "--python", python], stdout=subprocess.PIPE)
    try:
        while not started.exists():
            assert first.poll() is None
            time.sleep(0.05)
        for command in (["revert", tree], ["apply", tree, "--reference", "megatron"]):
            result = migrate(*command)
            assert result.code == 2
            assert "is at work here" in result.err or "interrupted" in result.err
    finally:
        go_on.touch()
        first.communicate(timeout=60)
    assert first.returncode == 0
    assert migrate("apply", tree, "--check").code == 0
    assert migrate("revert", tree).code == 0
    assert snapshot(tree) == before


@pytest.mark.parametrize(
    ("output", "complaint"), [("/dev/full", "could not be printed"), (None, "")], ids=str
)
def test_the_exit_code_is_the_commands_when_nobody_reads(
    tree: Path, output: str | None, complaint: str
) -> None:
    if output is None:
        reader, writer = os.pipe()
        os.close(reader)
    else:
        writer = os.open(output, os.O_WRONLY)
    command = [COMMAND, "apply", tree, "--check"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert done.returncode == 1
    assert complaint in done.stderr
    assert bool(done.stderr) == bool(complaint)
    assert "Traceback" not in done.stderr
