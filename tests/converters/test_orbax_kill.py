"""kill -9 at any moment leaves nothing that is taken for a checkpoint; the next run succeeds."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import orbax.checkpoint as ocp
import pytest

from converters import commit
from converters.errors import CheckpointError
from converters.orbax import runtime
from converters.orbax.reader import open_saved
from converters.orbax.verification import differences
from converters.orbax.writer import write_state
from tests.converters.states import small_state

runtime.start()
ROOT = Path(__file__).parents[2]
KILLS = 6
# A run begins to write right after it says so and then takes about this long.
SECONDS = 0.8
CHILD = """
import sys
from pathlib import Path
from converters import commit
from converters.orbax import runtime
from converters.orbax.writer import write_state
from tests.converters.states import small_state
runtime.start()
out = Path(sys.argv[1])
state = small_state(seconds=0.05)
for _ in range(1000):
    print("begun", flush=True)
    with commit.growing(out) as folder:
        write_state(state, folder, workers=2)
        (folder / commit.REPORT).write_text("{}")
"""


def start(out: Path) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(out)],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=ROOT,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "begun\n"
    return child


def assert_nothing_or_all(out: Path) -> bool:
    """Whether the whole result is there; anything between is an error."""
    hidden = commit.hidden(out)
    assert {p.name for p in out.parent.iterdir()} <= {"out", hidden.name, ".out.replaced"}
    with ocp.CheckpointManager(out.parent) as manager:
        assert manager.all_steps() == []
    for folder in (hidden, *hidden.rglob("*")):
        if folder.is_dir():
            with pytest.raises(CheckpointError):
                open_saved(folder)
    if not out.exists():
        return False
    assert (out / commit.REPORT).is_file()
    assert not differences(small_state(), open_saved(out))
    return True


@pytest.mark.parametrize("kill", range(KILLS))
def test_kill_at_a_random_moment(tmp_path: Path, kill: int) -> None:
    out = tmp_path / "out"
    child = start(out)
    time.sleep(SECONDS * (kill + random.random()) / KILLS)
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert_nothing_or_all(out)
    with commit.growing(out) as folder:
        write_state(small_state(), folder)
        (folder / commit.REPORT).write_text("{}")
    assert assert_nothing_or_all(out)
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
