"""Compile a MaxText's train step for a TPU topology, with MaxText's own ``train_compile``."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from checks.training.errors import RunError
from checks.training.last_words import ended, last_words
from checks.training.tree import Tree
from converters.maxtext.config import command_line

from .hlo import Loop, newton_schulz_loops

TOPOLOGY = "v5e-16"
_DRIVER = Path(__file__).resolve().parents[1] / "trainers" / "tpu_compile" / "__main__.py"
_PROBE = "import importlib.util, sys; sys.exit(importlib.util.find_spec('libtpu') is None)"

# Small enough to compile in a minute, wide enough that sixteen chips share every matrix.
MODEL: Mapping[str, Any] = {
    "compile_topology": TOPOLOGY,
    "compile_topology_num_slices": 1,
    "model_name": "default",
    "decoder_block": "qwen3",
    "use_qk_norm": True,
    "base_emb_dim": 512,
    "base_num_decoder_layers": 4,
    "base_num_query_heads": 8,
    "base_num_kv_heads": 4,
    "head_dim": 64,
    "base_mlp_dim": 1024,
    "vocab_size": 4096,
    "max_target_length": 256,
    "per_device_batch_size": 1,
    "opt_type": "muon",
    "attention": "dot_product",
    "dataset_type": "synthetic",
    "packing": False,
    "enable_dropout": False,
    "enable_checkpointing": False,
    "enable_goodput_recording": False,
    "enable_tensorboard": False,
    "skip_jax_distributed_system": True,
    "run_name": "tpu_compile",
}


@dataclass(frozen=True)
class Compiled:
    """
    Attributes:
      memory: bytes a chip, by the names of XLA's ``CompiledMemoryStats`` without ``_in_bytes``.
      loops: of Newton-Schulz.
      versions: of the packages that took part.
    """

    memory: Mapping[str, int]
    loops: tuple[Loop, ...]
    versions: Mapping[str, str]

    @property
    def collectives(self) -> dict[str, int]:
        """Inside Newton-Schulz loops, by kind."""
        kinds = sorted({kind for loop in self.loops for kind in loop.collectives})
        return {kind: sum(loop.collectives.get(kind, 0) for loop in self.loops) for kind in kinds}


def has_libtpu(python: Path) -> bool:
    """Whether that Python has the TPU's compiler."""
    command = [str(python), "-c", _PROBE]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def compile_step(tree: Tree, python: Path, folder: Path, config: Mapping[str, Any]) -> Compiled:
    """Compile with ``config`` on top of ``MODEL``; ``folder`` receives program and output.

    Raises:
      RunError: it does not compile; the message ends with the compiler's last lines.
    """
    folder.mkdir(parents=True)
    words = command_line({**MODEL, **config, "base_output_directory": str(folder)})
    environment = os.environ | {
        "PYTHONPATH": str(tree.base),
        "PYTHONDONTWRITEBYTECODE": "1",
        "DECOUPLE_GCLOUD": "TRUE",
        # The CPU runs, the TPU is only compiled for: nobody is asked for one.
        "JAX_PLATFORMS": "cpu",
        "TPU_SKIP_MDS_QUERY": "1",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    }
    output = folder / "output.txt"
    with output.open("wb") as log:
        done = subprocess.run(
            [str(python), str(_DRIVER), str(folder), str(tree.base_yml), *words],
            cwd=folder,
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if done.returncode or not (folder / "facts.json").exists():
        said = last_words(output.read_text(errors="replace"))
        raise RunError(f"train_compile of {tree.named} {ended(done.returncode)}:\n{said}")
    facts = json.loads((folder / "facts.json").read_text())
    if Path(facts["package"]).resolve() != tree.base.resolve():
        raise RunError(f"{python}: compiled the MaxText in {facts['package']}, not {tree.base}")
    loops = newton_schulz_loops((folder / "step.hlo").read_text())
    return Compiled(facts["memory"], loops, facts["versions"])
