"""Describe a checkpoint from its names and common state, for ``muon-convert inspect``."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from converters.errors import CheckpointError
from converters.families.detect import detect
from converters.source import Source, State
from muon_fork.spec import MuonSpec, SpecError

from . import pickles
from .open import open_source
from .run import COMMON_ENTRY, COMMON_FILE, Run
from .settled import settled
from .torch_dist import open_index

# Arguments that say how the run was spread over devices, by the name they get here.
_LAYOUT = {
    "tensor": "tensor_model_parallel_size",
    "pipeline": "pipeline_model_parallel_size",
    "virtual_pipeline": "virtual_pipeline_model_parallel_size",
    "expert": "expert_model_parallel_size",
    "expert_tensor": "expert_tensor_parallel_size",
    "context": "context_parallel_size",
    "data": "data_parallel_size",
    "world": "world_size",
}
_DIMENSIONS = (
    "num_layers",
    "hidden_size",
    "num_attention_heads",
    "num_query_groups",
    "kv_channels",
    "ffn_hidden_size",
    "padded_vocab_size",
    "vocab_size",
    "seq_length",
    "num_experts",
    "moe_ffn_hidden_size",
    "moe_shared_expert_intermediate_size",
    "mtp_num_layers",
)
_LATENT = (
    "q_lora_rank",
    "kv_lora_rank",
    "qk_head_dim",
    "qk_pos_emb_head_dim",
    "v_head_dim",
)


def inspect_checkpoint(
    path: Path, opaque: tuple[str, ...] = (), iteration: int | None = None
) -> dict[str, Any]:
    """A report of JSON values: format, layout, model, tensors, optimizer, MuonSpec, oddities.

    ``muon_spec`` is None where the arguments do not settle one; the reason is among the notes.
    ``problems`` keep the checkpoint from being converted as it is; its weights may still be.

    Raises:
      CheckpointError: not even names and shapes of the weights can be read.
    """
    source, problems = _open(path, opaque, iteration)
    run = source.run
    spec, notes = _spec(run)
    return {
        "folder": str(source.folder),
        "format": source.format,
        "megatron": _release(source),
        "iteration": run.iteration,
        "layout": {name: run.arguments.get(key) for name, key in _LAYOUT.items()},
        "model": _model(source),
        "tensors": [
            {
                "key": key.parameter,
                "state": key.state.value,
                "shape": list(tensor.shape),
                "dtype": tensor.dtype.name,
                "origin": list(tensor.origin),
            }
            for key, tensor in source.tensors.items()
        ],
        "bytes": sum(math.prod(t.shape) * t.dtype.itemsize for t in source.tensors.values()),
        "optimizer": _optimizer(source, spec),
        "muon_spec": None if spec is None else dataclasses.asdict(spec),
        "notes": notes,
        "problems": problems,
        "set_aside": [aside._asdict() for aside in source.set_aside],
        "optimizers": [
            {"step": o.step, "groups": [plain(group) for group in o.groups]} for o in run.optimizers
        ],
        "schedule": plain(run.schedule),
        "args": plain(run.arguments),
    }


def plain(value: Any) -> Any:
    """The value in JSON's types; dtypes by torch's name, other objects as their description."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(v) for v in value]
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, pickles.DType):
        return f"torch.{value.name}"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, (bool, int, float, str, type(None))) else str(value)


def _open(path: Path, opaque: tuple[str, ...], iteration: int | None) -> tuple[Source, list[str]]:
    try:
        return open_source(path, iteration=iteration, opaque=opaque), []
    except CheckpointError as error:
        problem = str(error)
    # What is wrong with the optimizer's state need not hide the model.
    return open_source(path, iteration=iteration, opaque=opaque, optimizer=False), [problem]


def _spec(run: Run) -> tuple[MuonSpec | None, list[str]]:
    try:
        spec, notes = settled(run, {})
    except SpecError as error:
        return None, [f"no MuonSpec: {error}"]
    return spec, list(notes)


def _release(source: Source) -> str | None:
    """Which Megatron-Core wrote it, as far as the files tell."""
    if source.format.startswith("torch_dist"):
        blobs = open_index(source.folder).blobs
        if COMMON_ENTRY in blobs:
            return "0.19 or later"
        if (source.folder / COMMON_FILE).is_file():
            watched = any(key.startswith("rerun_state_machine_state/") for key in blobs)
            return "0.18" if watched else "0.17 or earlier"
    return None


def _model(source: Source) -> dict[str, Any]:
    arguments = source.run.arguments
    named = _DIMENSIONS + (_LATENT if arguments.get("multi_latent_attention") else ())
    sizes = {name: arguments[name] for name in named if arguments.get(name)}
    try:
        family = detect(arguments, {key.parameter for key in source.tensors})
    except CheckpointError as error:
        return {"family": None, "decoder_block": None, "why": str(error), **plain(sizes)}
    found = {"family": family.name, "decoder_block": family.decoder_block}
    return {**found, **({"why": family.refusal} if family.refusal else {}), **plain(sizes)}


def _optimizer(source: Source, spec: MuonSpec | None) -> dict[str, Any]:
    """Kind, how many parameters each algorithm has, and what the momentum buffer accumulates."""
    counts = {state: sum(key.state is state for key in source.tensors) for state in State}
    style = spec.nesterov_style if spec is not None else None
    named = {"ema": "ema", "sgd": "sum"}.get(style or "")
    return {
        "kind": plain(source.run.arguments.get("optimizer")),
        "distributed": bool(source.run.arguments.get("use_distributed_optimizer")),
        "muon_parameters": counts[State.MOMENTUM],
        "adam_parameters": counts[State.EXP_AVG],
        "masters": counts[State.MASTER],
        "momentum": (source.momentum or named) if counts[State.MOMENTUM] else None,
    }
