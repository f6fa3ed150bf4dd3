"""Train a real Megatron-Core GPT for two steps and save it as torch_dist, in one of many ways.

    python -m tests.real.megatron_saves FOLDER OUT.npz [OPTION ...]

With the option ``load`` FOLDER is there already and is loaded instead. The others: ``singleton``
(one key per expert and per half), ``moe`` (every layer), ``mixed`` (the second layer only, with a
shared expert), ``mtp`` (a layer that predicts one token further), ``bf16``. OUT gets every
parameter and optimizer state by the name of the model's parameter.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from checks.trainers.megatron.building import gpt, inner, layer_spec, transformer_config, wrapped
from checks.trainers.megatron.groups import process_group
from checks.trainers.megatron.model import Experts, Model
from checks.trainers.megatron.options import Layout
from checks.trainers.megatron.saving import metadata_of

from .megatron_resumes import SEQUENCES, batch_of, load_distributed, optimizer_of


def main(folder: Path, out: Path, *words: str) -> None:
    options = frozenset(words)
    with process_group(Layout(), 0, None, seed=7):
        model = build(options)
        optimizer = optimizer_of(model, dtype_of(options))
        for step in range(2):
            train(model, optimizer, step)
        if "load" in options:
            load_distributed(model, optimizer, folder, "singleton" in options)
        else:
            save(model, optimizer, folder, options)
        np.savez(out, **dict(arrays(model, optimizer)))


def dtype_of(options: frozenset[str]) -> torch.dtype:
    return torch.bfloat16 if "bf16" in options else torch.float32


def build(options: frozenset[str]) -> Any:
    from megatron.core.models.gpt import gpt_layer_specs as specs

    mixed = "mixed" in options
    experts = Experts(ffn=24, shared_ffn=16 if mixed else 0, dense_layers=1 if mixed else 0)
    model = Model(
        "saved",
        hidden=16,
        heads=2,
        groups=1,
        head_size=8,
        ffn=32,
        qk_norm=True,
        experts=experts if options & {"moe", "mixed"} else None,
        padded_vocabulary=128,
        sequence=SEQUENCES,
    )
    config = transformer_config(
        model, dtype=dtype_of(options), mtp_num_layers=1 if "mtp" in options else None
    )
    further = {}
    if "mtp" in options:
        block = specs.get_gpt_mtp_block_spec(
            config, layer_spec(config), use_transformer_engine=False
        )
        further = {"mtp_block_spec": block}
    return wrapped(config, gpt(model, config, **further))


def train(model: Any, optimizer: Any, step: int) -> None:
    from megatron.core.distributed import finalize_model_grads

    batch = batch_of(step)
    model.zero_grad_buffer()
    optimizer.zero_grad()
    positions = torch.arange(SEQUENCES).expand(len(batch), SEQUENCES)
    model(batch[:, :-1], positions, None, labels=batch[:, 1:]).float().mean().backward()
    finalize_model_grads([model])
    assert optimizer.step()[0]


def save(model: Any, optimizer: Any, folder: Path, options: frozenset[str]) -> None:
    from megatron.core import dist_checkpointing

    folder.mkdir(parents=True)
    metadata = metadata_of(singleton_local_shards="singleton" in options)
    tensors = inner(model).sharded_state_dict(metadata=metadata)
    states = optimizer.sharded_state_dict(tensors, metadata=metadata)
    arguments = Namespace(num_layers=2, global_batch_size=4)
    if options & {"moe", "mixed"}:
        arguments.num_experts = 4
    common = {"args": arguments, "iteration": 2, "checkpoint_version": 3.0}
    dist_checkpointing.save({**tensors, "optimizer": states, **common}, str(folder))


def arrays(model: Any, optimizer: Any) -> Iterator[tuple[str, Any]]:
    """``parameter|state`` and values."""
    names = {id(p): name for name, p in inner(model).named_parameters()}
    for name, parameter in inner(model).named_parameters():
        yield f"{name}|weight", parameter.detach().float().numpy()
    for chained in optimizer.chained_optimizers:
        mains = {id(p): p for group in chained.optimizer.param_groups for p in group["params"]}
        owners = dict(names)
        if hasattr(chained, "float16_groups"):
            pairs = zip(chained.float16_groups, chained.fp32_from_float16_groups, strict=True)
            for low, high in ((a, b) for pair in pairs for a, b in zip(*pair, strict=True)):
                owners[id(high)] = names[id(low)]
                yield f"{names[id(low)]}|fp32_param", high.detach().numpy()
        for number, parameter in mains.items():
            for state, value in chained.optimizer.state[parameter].items():
                if state != "step":
                    yield f"{owners[number]}|{state}", value.detach().float().numpy()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
