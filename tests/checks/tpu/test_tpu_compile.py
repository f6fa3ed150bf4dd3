"""The rung around the TPU's compiler: what it refuses, and what it says of a program.

The compiler itself takes a minute a program; ``make proof`` runs it.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from checks.cases.tpu_compile import CASE, MIGRATED, RELEASED, judge, run
from checks.result import Outcome, Report
from checks.setting import Setting
from checks.tpu.compiled import Compiled
from checks.tpu.hlo import Loop
from muon_fork.presets import preset

BUILD = Path(__file__).parents[3] / "environments" / "build.py"
MEMORY = {
    "argument_size": 2**20,
    "temp_size": 2**19,
    "alias_size": 2**20,
    "output_size": 2**20,
    "peak_memory": 3 * 2**20,
}
QUIET = Loop("body.1", 3, {}, ())
LOUD = Loop("body.2", 3, {"all-reduce": 1, "all-gather": 2}, ("jit(train_step)/while/dot",))


def compiled(*loops: Loop) -> Compiled:
    return Compiled(MEMORY, loops, {"libtpu": "0.0.52"})


def built(what: str) -> Path:
    command = [sys.executable, str(BUILD), what]
    return Path(
        subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    )


def test_it_needs_a_maxtext(tmp_path: Path) -> None:
    rung = run(Setting(preset("megatron")))
    assert rung.outcome is Outcome.NOT_RUN
    assert "--maxtext PATH" in rung.reason
    rung = run(Setting(preset("megatron"), maxtext=tmp_path))
    assert rung.outcome is Outcome.NOT_RUN
    assert str(tmp_path) in rung.reason
    assert CASE.run is run
    assert not Report((rung,), {}).passed


def test_it_needs_the_compiler() -> None:
    setting = Setting(
        preset("megatron"), maxtext=built("releases") / "0.2.5", python=built("maxtext")
    )
    rung = run(setting)
    assert rung.outcome is Outcome.NOT_RUN
    assert "has no libtpu: install the toolkit's extra [tpu] there" in rung.reason


def test_memory_and_collectives_stand_side_by_side() -> None:
    results = {
        (MIGRATED, "scanned"): compiled(QUIET, QUIET),
        (RELEASED, "scanned"): compiled(QUIET, LOUD, LOUD),
    }
    rung = judge(results, {}, ("a note",))
    assert rung.outcome is Outcome.PASSED
    table = rung.details["compiled"]
    steps = [row["train step"] for row in table]
    assert steps == [f"scanned, {MIGRATED}", f"scanned, {RELEASED}"]
    assert [row["peak, MiB a chip"] for row in table] == [3.0, 3.0]
    assert [row["collectives in them"] for row in table] == ["none", "4 all-gather, 2 all-reduce"]
    assert rung.notes == ("a note",)


def test_collectives_in_a_migrated_loop_are_told_with_their_origin() -> None:
    rung = judge({(MIGRATED, "unscanned"): compiled(QUIET, LOUD)}, {}, ())
    (note,) = rung.notes
    assert note == (
        "unscanned: 1 all-reduce, 2 all-gather in each turn of body.2, "
        "from jit(train_step)/while/dot"
    )


def test_a_program_without_the_loop_is_told() -> None:
    (note,) = judge({(MIGRATED, "scanned"): compiled()}, {}, ()).notes
    assert "no Newton-Schulz loop was found" in note


@pytest.mark.parametrize("who", [MIGRATED, RELEASED])
def test_only_the_migrated_step_must_compile(who: str) -> None:
    others = {(MIGRATED, "unscanned"): compiled(QUIET)}
    rung = judge(others, {(who, "scanned"): "RESOURCE_EXHAUSTED"}, ())
    assert rung.outcome is (Outcome.FAILED if who == MIGRATED else Outcome.PASSED)
    assert "RESOURCE_EXHAUSTED" in (rung.reason if who == MIGRATED else " ".join(rung.notes))
