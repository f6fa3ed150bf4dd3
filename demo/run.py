"""Migrate a released MaxText, train it before and after, and show what changed.

Called by ``make demo``. Leaves the migrated tree in ``out/demo/maxtext`` and both runs beside it.
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

import show
from rich.console import Console

from muon_fork.presets import DEFAULT_REFERENCE

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "out" / "demo"
RELEASE = "0.2.5"
STEPS = 8

CONFIG = {
    "hardware": "cpu",
    "skip_jax_distributed_system": True,
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
    "dataset_type": "synthetic",
    "packing": False,
    "opt_type": "muon",
    "steps": STEPS,
    "learning_rate": 0.02,
    "warmup_steps_fraction": 0,
    "attention": "dot_product",
    "dtype": "float32",
    "matmul_precision": "highest",
    "enable_dropout": False,
    "enable_checkpointing": False,
    "enable_goodput_recording": False,
    "enable_tensorboard": False,
    "log_period": 1,
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
        before = pool.submit(_train, python, release, OUT / "before")
        after = pool.submit(_train, python, tree, OUT / "after")
        old, new = before.result(), after.result()
    console.print(show.losses(old.losses, new.losses, DEFAULT_REFERENCE))
    console.print(show.semantics(DEFAULT_REFERENCE))
    console.print(show.routing(old.routing, new.routing))
    console.print(
        f"The migrated MaxText is {tree.relative_to(ROOT)}: read it, or take it back with\n"
        f"  .venv/bin/muon-migrate revert {tree.relative_to(ROOT)}\n"
        "On your own checkout, with the values of your Megatron run:\n"
        "  .venv/bin/muon-migrate apply PATH --megatron-args ARGS.json --check --diff",
        highlight=False,
    )


def _build(what: str) -> Path:
    command = [sys.executable, str(ROOT / "environments" / "build.py"), what]
    answer = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if answer.returncode:
        raise DemoError(f"the {what} environment could not be built; see the message above")
    return Path(answer.stdout.strip())


def _migrate(tree: Path) -> None:
    program = Path(sys.executable).with_name("muon-migrate")
    command = [str(program), "apply", str(tree.relative_to(ROOT))]
    if subprocess.run(command, cwd=ROOT, check=False).returncode:
        raise DemoError("muon-migrate apply failed; see its message above")


def _train(python: Path, tree: Path, folder: Path) -> Trained:
    """Train the MaxText in ``tree``; its output goes to ``folder/output.txt``."""
    folder.mkdir(parents=True)
    metrics, routing = folder / "metrics.jsonl", folder / "routing.json"
    paths = {"run_name": folder.name, "base_output_directory": folder, "metrics_file": metrics}
    options = [f"{key}={value}" for key, value in (CONFIG | paths).items()]
    environment = os.environ | {
        "PYTHONPATH": str(tree),
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
