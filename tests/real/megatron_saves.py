"""Train a real Megatron-Core GPT for two steps and save it as torch_dist, in one of many ways.

    python -m tests.real.megatron_saves FOLDER OUT.npz [OPTION ...]

With the option ``load`` FOLDER is there already and is loaded instead. The others: ``singleton``
(one key per expert and per half), ``moe`` (every layer), ``mixed`` (the second layer only, with a
shared expert), ``mtp`` (a layer that predicts one token further), ``bf16``. OUT gets every
parameter and optimizer state by the name of the model's parameter.
"""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from checks.references.megatron_cpu import importable

from .megatron_on_cpu import cpu_for_cuda
from .megatron_resumes import (
    SEQUENCES,
    batch_of,
    inner,
    llama_like,
    load_distributed,
    optimizer_of,
    prepare,
)

MIXED = [0, 1]


def main(folder: Path, out: Path, *words: str) -> None:
    options = frozenset(words)
    # The model is tiny: more threads would only wait for each other.
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", RANK="0", WORLD_SIZE="1")
    with importable(), cpu_for_cuda():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        try:
            prepare()
            model = build(options)
            optimizer = optimizer_of(model, "bf16" in options)
            for step in range(2):
                train(model, optimizer, step)
            if "load" in options:
                load_distributed(model, optimizer, folder, "singleton" in options)
            else:
                save(model, optimizer, folder, options)
            np.savez(out, **dict(arrays(model, optimizer)))
        finally:
            dist.destroy_process_group()


def build(options: frozenset[str]) -> Any:
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt import gpt_layer_specs as specs
    from megatron.core.transformer.module import Float16Module

    dtype = torch.bfloat16 if "bf16" in options else torch.float32
    experts: dict[str, Any] = {}
    if options & {"moe", "mixed"}:
        experts = {
            "num_moe_experts": 4,
            "moe_router_topk": 2,
            "moe_ffn_hidden_size": 24,
            "moe_token_dispatcher_type": "allgather",
            "moe_router_load_balancing_type": "none",
        }
    if "mixed" in options:
        experts |= {"moe_layer_freq": MIXED, "moe_shared_expert_intermediate_size": 16}
    config = llama_like(
        dtype,
        hidden_size=16,
        ffn_hidden_size=32,
        num_attention_heads=2,
        num_query_groups=1,
        bf16="bf16" in options,
        qk_layernorm=True,
        mtp_num_layers=1 if "mtp" in options else None,
        **experts,
    )
    spec: Any
    if "mixed" in options:
        spec = specs.get_gpt_decoder_block_spec(config, use_transformer_engine=False)
    else:
        count = experts.get("num_moe_experts")
        spec = specs.get_gpt_layer_local_spec(count, qk_layernorm=True, normalization="RMSNorm")
    further = {}
    if "mtp" in options:
        block = specs.get_gpt_mtp_block_spec(config, spec, use_transformer_engine=False)
        further = {"mtp_block_spec": block}
    model = GPTModel(
        config,
        spec,
        vocab_size=128,
        max_sequence_length=SEQUENCES,
        position_embedding_type="rope",
        share_embeddings_and_output_weights=False,
        **further,
    )
    wrapped = Float16Module(config, model) if "bf16" in options else model
    buckets = DistributedDataParallelConfig(grad_reduce_in_fp32=True)
    return DistributedDataParallel(config, buckets, wrapped)


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
    from megatron.core import dist_checkpointing, parallel_state

    folder.mkdir(parents=True)
    metadata = {
        "chained_optim_avoid_prefix": True,
        "singleton_local_shards": "singleton" in options,
        "dp_cp_group": parallel_state.get_data_parallel_group(with_context_parallel=True),
    }
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
