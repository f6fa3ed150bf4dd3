"""Migrate a released MaxText, show what changed, and continue a Megatron run with it.

Called by ``make demo``. Leaves the migrated tree in ``out/demo/maxtext``, the converted checkpoint
in ``out/demo/checkpoint``, every run beside them, and the report in ``out/demo/parity.html``.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import parity
import show
from rich.console import Console

from checks.report.wording import tally
from checks.training.errors import RunError
from muon_fork.presets import DEFAULT_REFERENCE

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "out" / "demo"
RELEASE = "0.2.5"
STEPS = 8

# A checkpoint of a real Megatron-Core run, and the tokens and losses of the 30 steps after it.
MEGATRON_RUN = ROOT / "tests" / "data" / "megatron" / "mla_run"

CONFIG: dict[str, object] = {
    "hardware": "cpu",
    "skip_jax_distributed_system": True,
    "attention": "dot_product",
    "dataset_type": "synthetic",
    "packing": False,
    "enable_dropout": False,
    "enable_goodput_recording": False,
    "enable_tensorboard": False,
    "log_period": 1,
    "model_name": "default",
    "decoder_block": "llama2",
    "base_emb_dim": 64,
    "base_num_decoder_layers": 2,
    "base_num_query_heads": 4,
    "base_num_kv_heads": 2,
    "head_dim": 16,
    "base_mlp_dim": 128,
    "vocab_size": 256,
    "max_target_length": 32,
    "per_device_batch_size": 2,
    "opt_type": "muon",
    "steps": STEPS,
    "learning_rate": 0.02,
    "warmup_steps_fraction": 0,
    "dtype": "float32",
    "matmul_precision": "highest",
    "enable_checkpointing": False,
}

console = Console()
progress = Console(stderr=True)


class DemoError(Exception):
    """The demo cannot go on; the message says why and what to look at."""


@dataclass(frozen=True)
class Trained:
    """Loss per step, and per parameter what trains it."""

    losses: list[float]
    routing: dict[str, Any]


def main() -> int:
    try:
        _demo()
    except DemoError as error:
        progress.print(f"[red]demo:[/] {error}", highlight=False)
        return 2
    return 0


def _demo() -> None:
    progress.print("environments: Python 3.12 with JAX, and the released wheels")
    python = _build("maxtext")
    release = _build("releases") / RELEASE
    tree = OUT / "maxtext"
    shutil.rmtree(OUT, ignore_errors=True)
    shutil.copytree(release, tree)
    console.rule(f"muon-migrate apply on MaxText {RELEASE}")
    _migrate(tree)
    console.rule("training")
    progress.print(f"{STEPS} steps of a tiny llama on the CPU, before and after, about 40 s")
    with ThreadPoolExecutor() as pool:
        before = pool.submit(_train, python, release, OUT / "before", CONFIG)
        after = pool.submit(_train, python, tree, OUT / "after", CONFIG)
        old, new = before.result(), after.result()
    console.print(show.losses(old.losses, new.losses, DEFAULT_REFERENCE))
    console.print(show.semantics(DEFAULT_REFERENCE))
    console.print(show.routing(old.routing, new.routing))
    console.rule("muon-convert megatron2orbax, and on with the run")
    _convert(OUT / "checkpoint")
    progress.print("30 steps of a small Megatron run, continued from its checkpoint, about 30 s")
    spec = parity.spec_of(OUT / "checkpoint" / "conversion.json")
    try:
        top = parity.training(MEGATRON_RUN, tree, python, spec, progress.print)
    except RunError as error:
        raise DemoError(str(error)) from error
    (curve,) = top.curves
    console.print(show.continued(curve.reference, curve.ours))
    console.rule("muon-check, the first rungs and this run")
    rungs = parity.climb(spec, progress.print)
    report = parity.write(OUT / "parity.html", (*rungs, top), spec)
    console.print(
        f"{tally(report)}; curves, figures and their limits are in\n  {OUT / 'parity.html'}\n",
        highlight=False,
        soft_wrap=True,
    )
    console.print(
        f"The migrated MaxText is {tree.relative_to(ROOT)}: read it, or take it back with\n"
        f"  .venv/bin/muon-migrate revert {tree.relative_to(ROOT)}\n"
        "On your own checkout, with the values of your Megatron run:\n"
        "  .venv/bin/muon-migrate apply PATH --megatron-args ARGS.json --check --diff",
        highlight=False,
    )
    if not report.passed:
        raise DemoError("the two sides differ: the page says where")


def _build(what: str) -> Path:
    command = [sys.executable, str(ROOT / "environments" / "build.py"), what]
    answer = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if answer.returncode:
        raise DemoError(f"the {what} environment could not be built; see the message above")
    return Path(answer.stdout.strip())


def _migrate(tree: Path) -> None:
    _tool("muon-migrate", "apply", str(tree.relative_to(ROOT)))


def _convert(out: Path) -> None:
    """Convert the recorded run's checkpoint, and derive it again."""
    source, target = (str(path.relative_to(ROOT)) for path in (MEGATRON_RUN, out))
    _tool("muon-convert", "megatron2orbax", source, "--out", target)
    _tool("muon-convert", "verify", source, target)


def _tool(name: str, *arguments: str) -> None:
    command = [str(Path(sys.executable).with_name(name)), *arguments]
    if subprocess.run(command, cwd=ROOT, check=False).returncode:
        raise DemoError(f"{name} {arguments[0]} failed; see its message above")


def _train(python: Path, tree: Path, folder: Path, config: dict[str, object]) -> Trained:
    """Train the MaxText in ``tree``; its output goes to ``folder/output.txt``."""
    folder.mkdir(parents=True)
    metrics, routing = folder / "metrics.jsonl", folder / "routing.json"
    paths = {"run_name": folder.name, "base_output_directory": folder, "metrics_file": metrics}
    options = [f"{key}={value}" for key, value in (config | paths).items()]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join((str(tree), str(ROOT))),
        "PYTHONDONTWRITEBYTECODE": "1",
        "JAX_PLATFORMS": "cpu",
        "DECOUPLE_GCLOUD": "TRUE",
    }
    base_yml = tree / "maxtext" / "configs" / "base.yml"
    driver = ROOT / "demo" / "train.py"
    command = [str(python), str(driver), str(routing), str(base_yml), *options]
    with open(folder / "output.txt", "w") as log:
        answer = subprocess.run(
            command, cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT, check=False
        )
    if answer.returncode:
        raise DemoError(f"training {tree} failed; see {folder / 'output.txt'}")
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    return Trained([row["learning/loss"] for row in rows], json.loads(routing.read_text()))


if __name__ == "__main__":
    sys.exit(main())
