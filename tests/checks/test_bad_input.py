"""muon-check where things go wrong: what it says, how it ends, what it leaves behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from checks.cases import sharding
from checks.cli import main
from checks.replay.report import Report, Row
from checks.result import Outcome
from checks.setting import Setting
from checks.training.last_words import ended, last_words
from muon_fork.presets import preset

DATA = Path(__file__).parents[1] / "data"
QWEN3 = DATA / "runs" / "qwen3"
DENSE = DATA / "megatron" / "dense_td"
GOLDEN = Path(__file__).parents[1] / "codemods" / "golden" / "release-0.2.5" / "before"
# A Python as far as it is asked: it has every package, JAX finds what DEVICES says, and a script
# is answered by what TRAINER does.
PYTHON = """#!/bin/sh
if [ "$1" != -c ]; then {trainer}; fi
case "$3" in gpu) echo "python {devices}" ;; *) echo "python True" ;; esac
"""
FAILS = "echo 'Traceback (most recent call last):' >&2; echo 'ValueError: on purpose' >&2; exit 3"


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


def refused(done: Result) -> str:
    assert done.exit_code == 2, done.output
    assert "Traceback" not in done.output
    return done.stderr


@pytest.fixture
def maxtext(tmp_path: Path) -> Path:
    tree = tmp_path / "maxtext_tree"
    shutil.copytree(GOLDEN, tree)
    trainer = tree / "maxtext" / "trainers" / "pre_train" / "train.py"
    trainer.parent.mkdir(parents=True)
    trainer.write_text("")
    return tree


def python(folder: Path, trainer: str = FAILS, devices: str = "True") -> Path:
    file = folder / "python"
    file.write_text(PYTHON.format(trainer=trainer, devices=devices))
    file.chmod(0o755)
    return file


def training(maxtext: Path, executable: Path | str) -> list[str]:
    words = ["parity", "--run", QWEN3, "--maxtext", maxtext, "--as-released", "--steps", "2"]
    return [*map(str, words), "--python", str(executable)]


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("/bin/ls", "/bin/ls: is no Python"),
        ("/bin/echo", "/bin/echo: is no Python that can be used: it says nothing"),
        ("/bin/true", "/bin/true: is no Python that can be used: it says nothing"),
        ("/tmp", "/tmp: cannot be run: Permission denied"),
        ("nowhere/python", "nowhere/python: cannot be run: No such file"),
    ],
)
def test_a_python_that_is_none(maxtext: Path, program: str, message: str) -> None:
    said = refused(run(*training(maxtext, program)))
    assert message in said
    assert len(said.splitlines()) == 1


def test_a_device_that_maxtext_does_not_find(maxtext: Path, tmp_path: Path) -> None:
    executable = python(tmp_path, devices="False 0.12.0 cpu")
    said = refused(run(*training(maxtext, executable), "--device", "gpu"))
    assert f"no gpu for MaxText: JAX 0.12.0 of {executable} finds cpu" in said


def test_only_maxtext_needs_the_device_and_its_failure_is_told_in_short(
    maxtext: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python(tmp_path)
    monkeypatch.chdir(tmp_path)
    words = training(maxtext, "./python")  # MaxText runs in a folder of its own
    said = refused(run(*words, "--device", "gpu"))
    assert said.endswith(f"MaxText in {maxtext} ended with 3:\n  ValueError: on purpose\n")


def test_a_trainer_that_does_nothing_is_no_run(maxtext: Path, tmp_path: Path) -> None:
    said = refused(run(*training(maxtext, python(tmp_path, trainer="exit 0"))))
    assert said.endswith(f"MaxText in {maxtext} ended with 0:\n  it said nothing\n")


def test_damage_that_shows_late_is_told_in_one_line(tmp_path: Path) -> None:
    """The writer's own threads stumble over it."""
    folder = tmp_path / "iter_0000020"
    shutil.copytree(QWEN3 / "iter_0000020", folder)
    file = folder / "__0_0.distcp"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0x40
    file.write_bytes(content)
    code = (
        "import sys; from pathlib import Path\n"
        "from checks.training.converted import converted\n"
        "from checks.training.errors import RunError\n"
        "from converters.maxtext.plan import Options\n"
        "try: converted(Path(sys.argv[1]), Path(sys.argv[2]), Options())\n"
        "except RunError as error: print(error)"
    )
    command = [sys.executable, "-c", code, str(folder), str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "__0_0.distcp are damaged" in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize("command", ["config", "routing", "replay"])
def test_what_is_not_recorded_may_be_said(command: str, maxtext: Path) -> None:
    words: dict[str, list[str | Path]] = {
        "config": [DENSE, "--maxtext-config", "steps=3"],
        "routing": [DENSE, "--maxtext", maxtext],
        "replay": [DENSE / "iter_0000020", DENSE / "iter_0000021"],
    }
    for more, message in (
        (["--spec", "nonsense=1"], "nonsense"),
        (["--spec", "ns_dtype"], "--spec ns_dtype: expected FIELD=VALUE"),
    ):
        assert message in refused(run(command, *words[command], *more))


def test_a_blockwise_run_is_compared_on_request() -> None:
    """It is another optimizer; who knows that may go on."""
    words = ["config", DATA / "megatron" / "tp2_td", "--maxtext-config", "steps=3"]
    assert "muon_tp_mode='blockwise'" in refused(run(*words))
    done = run(*words, "--spec", "allow_blockwise_tp=true")
    assert done.exit_code == 1, done.output
    assert "agree" in done.stdout


def test_a_damaged_checkout_is_named(maxtext: Path, tmp_path: Path) -> None:
    base = maxtext / "maxtext" / "configs" / "base.yml"
    base.write_bytes(b"\xff\xfe")
    executable = python(tmp_path)
    for command in (
        ["config", DENSE, "--maxtext-config", "steps=3"],
        ["routing", DENSE, "--python", executable],
    ):
        said = refused(run(*command, "--maxtext", maxtext))
        assert f"{base.name}" in said


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_leaves_nothing(
    maxtext: Path, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    started, scratch = tmp_path / "started", tmp_path / "scratch"
    scratch.mkdir()
    executable = python(tmp_path, trainer=f"echo $$ > {started}; exec sleep 600")
    page = tmp_path / "page.html"
    page.write_text("of yesterday")
    command = [sys.executable, "-c", "from checks.cli import main; main()"]
    process = subprocess.Popen(
        [*command, *training(maxtext, executable), "--html", str(page)],
        env=os.environ | {"TMPDIR": str(scratch)},
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 120
    while not (started.exists() and started.read_text().strip()) and time.monotonic() < deadline:
        time.sleep(0.1)
    trainer = int(started.read_text())
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == code, said
    assert "Traceback" not in said
    with pytest.raises(ProcessLookupError):
        os.kill(trainer, 0)
    assert not list(scratch.iterdir())
    assert page.read_text() == "of yesterday"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--json", "nowhere/a.json"], "no folder"),
        (["--json", "."], "it is a folder"),
        (["--json", ""], "an empty name"),
        (["--html", "-"], "--html -: a page needs a file of its own"),
        (["--html", "a", "--json", "./a"], "two results in one file"),
        (["--run", QWEN3, "--maxtext", "m", "--level", "full"], "leave --level out"),
        (["--run", QWEN3, "--maxtext", "m", "--reference", "optax"], "leave --reference out"),
    ],
)
def test_words_are_looked_at_first(words: list[str | Path], message: str) -> None:
    said = refused(run("parity", *words))
    assert message in said
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize("command", ["replay", "config", "upstream", "routing", "record"])
def test_every_command_looks_whether_it_can_write(command: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    words: dict[str, list[str | Path]] = {
        "replay": [DENSE / "iter_0000020", DENSE / "iter_0000021"],
        "config": [DENSE, "--maxtext-config", "steps=3"],
        "upstream": [],
        "routing": [DENSE, "--maxtext", tmp_path],
        "record": [
            *("--log", QWEN3 / "losses.txt", "--tokens", QWEN3.parent / "tokens.npy"),
            *("--checkpoint", QWEN3, "--out", out),
        ],
    }
    said = refused(run(command, *words[command], "--json", tmp_path / "no" / "a.json"))
    assert "a.json: cannot be written: no folder" in said
    assert not out.exists()


def test_a_result_replaces_the_target_of_a_link(tmp_path: Path) -> None:
    target, link = tmp_path / "with space.json", tmp_path / "link"
    target.write_text("{")
    target.chmod(0o640)
    link.symlink_to(target)
    done = run("parity", "--case", "routing", "--json", link)
    assert done.exit_code == 0, done.output
    assert json.loads(target.read_text())["passed"]
    assert link.is_symlink()
    assert target.stat().st_mode & 0o777 == 0o640
    assert sorted(tmp_path.iterdir()) == [link, target]


def test_a_full_disk_is_no_difference(tmp_path: Path) -> None:
    said = refused(run("parity", "--case", "routing", "--json", "/dev/full"))
    assert "/dev/full: cannot be written: No space left on device" in said


def test_devices_that_could_not_be_simulated_are_no_finding(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    dead = python(tmp_path, trainer=FAILS)
    monkeypatch.setattr(sharding.sys, "executable", str(dead))
    rung = sharding.run(Setting(preset("megatron")))
    assert rung.outcome is Outcome.NOT_RUN
    assert rung.reason.startswith("nothing was compared: the process with 8 simulated devices")
    assert rung.reason.endswith("ended with 3:\n  ValueError: on purpose")


def test_last_words() -> None:
    text = "warning: w\nTraceback (most recent call last):\n  File x\nKeyError: 'a'\n\nmore\n"
    assert last_words(text) == "  KeyError: 'a'\n  more"
    assert last_words("one\n\ntwo\n") == "  one\n  two"
    assert last_words("") == "  it said nothing"
    assert ended(1) == "ended with 1"
    assert ended(-9) == "was ended by SIGKILL (out of memory?)"


def test_a_replay_that_is_not_a_number_says_so() -> None:
    rows = [Row("a", (), "muon", (1,), size, 0.0, None) for size in (1e-9, float("nan"), 1e-8)]
    report = Report("a", "b", tuple(rows), {}, (), 0.1, 0.1, 1e-7)
    assert str(report.worst) == "nan"
    assert not report.passed
    assert "--limit nan" in refused(run("replay", "a", "b", "--limit", "nan"))


def test_a_checkout_of_the_older_layout_is_named(tmp_path: Path) -> None:
    (tmp_path / "src" / "MaxText").mkdir(parents=True)
    (tmp_path / "src" / "MaxText" / "train.py").write_text("")
    said = refused(run("routing", DENSE, "--maxtext", tmp_path))
    assert "from before release 0.2.0 (MaxText/train.py)" in said
