"""megatron2orbax on generated checkpoints: memory against size, time against Orbax from memory.

    python -m benchmarks.convert [GIB ...]

Each size is a torch_dist checkpoint of a llama with Muon state, written with torch, converted by
the command in a process of its own, and saved once more by Orbax from memory with the same options.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SAMPLE = ROOT / "tests/data/megatron/dense_td"
HIDDEN, FFN, HEADS, VOCABULARY = 1024, 4096, 8, 8192
FIXED, COPIES = 600 << 20, 2
# Weight and momentum of one layer, float32.
LAYER_BYTES = 8 * (4 * HIDDEN * HIDDEN + 3 * HIDDEN * FFN)
CONVERT = "from converters.cli import main; main()"


def generate(folder: Path, gib: float) -> None:
    """A torch_dist checkpoint of about ``gib`` GiB."""
    import torch
    import torch.distributed.checkpoint as dcp

    embeddings = 2 * 4 * 4 * VOCABULARY * HIDDEN
    layers = max(1, round((gib * 2**30 - embeddings) / LAYER_BYTES))
    maker = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=maker) * 0.02

    weights = {
        "embedding.word_embeddings.weight": draw(VOCABULARY, HIDDEN),
        "output_layer.weight": draw(VOCABULARY, HIDDEN),
        "decoder.final_layernorm.weight": torch.ones(HIDDEN),
    }
    matrices = {
        "self_attention.linear_qkv.weight": (3 * HIDDEN, HIDDEN),
        "self_attention.linear_proj.weight": (HIDDEN, HIDDEN),
        "mlp.linear_fc1.weight": (2 * FFN, HIDDEN),
        "mlp.linear_fc2.weight": (HIDDEN, FFN),
    }
    norms = ("self_attention.linear_qkv.layer_norm_weight", "mlp.linear_fc1.layer_norm_weight")
    state: dict[str, Any] = {}
    for number in range(layers):
        prefix = f"decoder.layers.{number}."
        for name, shape in matrices.items():
            weights[prefix + name] = draw(*shape)
            state[f"optimizer.state.momentum_buffer.{prefix}{name}"] = draw(*shape)
        weights |= {prefix + name: torch.ones(HIDDEN) for name in norms}
    for name, weight in weights.items():
        if f"optimizer.state.momentum_buffer.{name}" not in state:
            state[f"optimizer.state.exp_avg.{name}"] = draw(*weight.shape)
            state[f"optimizer.state.exp_avg_sq.{name}"] = draw(*weight.shape).square()
    iteration = folder / "iter_0000021"
    iteration.mkdir(parents=True)
    state |= weights | {"common_state/shard_0_1": [common_state(layers)]}
    warnings.simplefilter("ignore")
    planner = dcp.DefaultSavePlanner(flatten_state_dict=False)
    writer = dcp.FileSystemWriter(iteration)
    dcp.save(state, storage_writer=writer, planner=planner, no_dist=True)
    shutil.copy(SAMPLE / "iter_0000021/metadata.json", iteration)
    (folder / "latest_checkpointed_iteration.txt").write_text("21")


def common_state(layers: int) -> dict[str, Any]:
    """The sample's arguments, with the sizes of this model."""
    from converters.megatron.open import open_source

    run = open_source(SAMPLE).run
    arguments = plain(run.arguments)
    arguments |= {
        "num_layers": layers,
        "hidden_size": HIDDEN,
        "ffn_hidden_size": FFN,
        "num_attention_heads": HEADS,
        "num_query_groups": HEADS,
        "group_query_attention": False,
        "kv_channels": HIDDEN // HEADS,
        "padded_vocab_size": VOCABULARY,
        "vocab_size": VOCABULARY,
    }
    groups = [
        {"optimizer": {"param_groups": [plain(g) for g in one.groups], "state": {}}}
        for one in run.optimizers
    ]
    return {
        "args": argparse.Namespace(**arguments),
        "iteration": run.iteration,
        "checkpoint_version": 3.0,
        "optimizer": dict(enumerate(groups)),
        "opt_param_scheduler": plain(run.schedule),
    }


def plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Without objects of Megatron."""
    known = (bool, int, float, str, type(None))
    return {key: value for key, value in values.items() if isinstance(value, known)}


def measure(words: list[str]) -> tuple[float, float, int, str]:
    """Seconds, those of all cores together, peak bytes in memory, and stdout of a process."""
    begin = time.perf_counter()
    # As an installed command starts: its modules are compiled already.
    told = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, *words]
    child = subprocess.Popen(command, cwd=ROOT, env=told, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    output = child.stdout.read()
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        sys.exit(f"{words[-1]}: ended with {child.returncode}")
    cores = usage.ru_utime + usage.ru_stime
    return time.perf_counter() - begin, cores, usage.ru_maxrss << 10, output


def save_from_memory(items: Path, out: Path) -> None:
    """Time Orbax saving what ``items`` holds, already in memory; prints seconds."""
    import jax
    import orbax.checkpoint as ocp

    from converters.orbax import arrays, runtime
    from converters.orbax.reader import open_saved

    runtime.start()
    tree = {".".join(path): tensor.read() for path, tensor in open_saved(items).tensors.items()}
    options = jax.tree.map(lambda _: ocp.SaveArgs(chunk_byte_size=arrays.CHUNK_BYTES), tree)
    handler = ocp.PyTreeCheckpointHandler(use_ocdbt=True, use_zarr3=True)
    with ocp.Checkpointer(ocp.CompositeCheckpointHandler(items=handler)) as saver:
        arguments = ocp.args.Composite(items=ocp.args.PyTreeSave(tree, save_args=options))
        os.sync()
        begin = time.perf_counter(), time.process_time()
        saver.save(str(out), args=arguments)
        print(time.perf_counter() - begin[0], time.process_time() - begin[1])


def compare(gib: float, folder: Path, rounds: int) -> int:
    """One row of the table; the peak bytes in memory beside two of the largest leaf."""
    source, out, plain = folder / "ckpt", folder / "out", folder / "plain"
    measure(["-m", "benchmarks.convert", "--generate", str(source), str(gib)])
    ours, theirs, peak, report = [], [], 0, {}
    for _ in range(rounds):
        shutil.rmtree(out, ignore_errors=True)
        command = ["megatron2orbax", str(source), "--out", str(out), "--no-scan", "--json", "-"]
        os.sync()
        *seconds, memory, text = measure(["-c", CONVERT, *command])
        report, peak = json.loads(text), max(peak, memory)
        ours.append(seconds)
        words = ["-m", "benchmarks.convert", "--save", report["checkpoint"], str(plain)]
        theirs.append([float(word) for word in measure(words)[-1].split()])
        shutil.rmtree(plain)
    largest = report["estimate"]["largest"]
    allowed = FIXED + COPIES * largest
    print(
        f"{report['bytes'] / 2**30:5.2f} GiB, largest leaf {largest >> 20} MiB: "
        f"peak {peak >> 20} of {allowed >> 20} MiB"
    )
    for what, column in (("seconds", 0), ("core seconds", 1)):
        mine, plainly = (min(row[column] for row in rows) for rows in (ours, theirs))
        print(f"  {what:12} {mine:6.1f}, Orbax from memory {plainly:6.1f}: {mine / plainly:.2f}")
    sys.stdout.flush()
    return peak - COPIES * largest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("gib", nargs="*", type=float, default=[0.5, 2.0])
    parser.add_argument("--rounds", type=int, default=2, help="the best of each side counts")
    parser.add_argument("--generate", nargs=2, metavar=("FOLDER", "GIB"), help=argparse.SUPPRESS)
    parser.add_argument("--save", nargs=2, type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.generate:
        generate(Path(chosen.generate[0]), float(chosen.generate[1]))
    elif chosen.save:
        save_from_memory(*chosen.save)
    else:
        beside = []
        for gib in chosen.gib:
            with tempfile.TemporaryDirectory() as folder:
                beside.append(compare(gib, Path(folder), chosen.rounds))
        print(f"memory beside two of the largest leaf: {[size >> 20 for size in beside]} MiB")


if __name__ == "__main__":
    main()
