"""Load a torch_dist or legacy checkpoint into a real Megatron-Core GPT, and take one step.

    python -m tests.real.megatron_resumes ITERATION_FOLDER OUT.npz

The model is what the samples' README says; OUT gets the iteration, the loss of the next step, the
weights after it and the loss of the step after.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from checks.references.megatron_cpu import importable

from .megatron_on_cpu import cpu_for_cuda

SEQUENCES, SAMPLES, BATCH = 16, 16, 4


def main(folder: Path, out: Path, *options: str) -> None:
    # The model is tiny: more threads would only wait for each other.
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", RANK="0", WORLD_SIZE="1")
    with importable(), cpu_for_cuda():
        store = dist.HashStore()
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        try:
            arrays = resume(folder, frozenset(options))
        finally:
            dist.destroy_process_group()
    np.savez(out, **arrays)


def resume(folder: Path, options: frozenset[str]) -> dict[str, Any]:
    from megatron.core.distributed import finalize_model_grads

    prepare()
    model = build(options)
    optimizer = optimizer_of(model)
    ranks = list(folder.glob("mp_rank_*"))
    load = load_legacy if ranks else load_distributed
    iteration = load(model, optimizer, folder)
    loss = loss_of(model, iteration)
    arrays = {"loss": np.array(loss.item()), "iteration": np.array(iteration)}
    loss.backward()
    finalize_model_grads([model])
    assert optimizer.step()[0]
    for name, weight in model.module.named_parameters():
        arrays[name] = weight.detach().float().numpy()
    arrays["next_loss"] = np.array(loss_of(model, iteration + 1).item())
    return arrays


def prepare() -> None:
    """One rank in every group, random numbers from the CPU."""
    from megatron.core import parallel_state, tensor_parallel
    from megatron.core.tensor_parallel import random as megatron_random

    parallel_state.initialize_model_parallel()
    megatron_random._get_cuda_rng_state = lambda *_, **__: torch.get_rng_state()
    megatron_random._set_cuda_rng_state = lambda state, *_, **__: torch.set_rng_state(state)
    tensor_parallel.model_parallel_cuda_manual_seed(7)


def llama_like(dtype: torch.dtype, **sizes: Any) -> Any:
    """Two layers of RMSNorm and SwiGLU without biases, and nothing that needs a fused kernel."""
    from megatron.core.transformer import TransformerConfig

    return TransformerConfig(
        num_layers=2,
        kv_channels=8,
        normalization="RMSNorm",
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        add_bias_linear=False,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        use_cpu_initialization=True,
        params_dtype=dtype,
        pipeline_dtype=dtype,
        masked_softmax_fusion=False,
        bias_activation_fusion=False,
        apply_rope_fusion=False,
        persist_layer_norm=False,
        gradient_accumulation_fusion=False,
        **sizes,
    )


def build(options: frozenset[str]) -> Any:
    """A GPT of random weights, wrapped as for training."""
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec

    qk_norm = "qknorm" in options
    config = llama_like(
        torch.float32,
        hidden_size=32,
        ffn_hidden_size=64,
        num_attention_heads=4,
        num_query_groups=2,
        qk_layernorm=qk_norm,
    )
    spec = get_gpt_layer_local_spec(qk_layernorm=qk_norm, normalization="RMSNorm")
    model = GPTModel(
        config,
        spec,
        vocab_size=128,
        max_sequence_length=SEQUENCES,
        position_embedding_type="rope",
        share_embeddings_and_output_weights=False,
    )
    buckets = DistributedDataParallelConfig(grad_reduce_in_fp32=True)
    return DistributedDataParallel(config, buckets, model)


def optimizer_of(model: Any, bf16: bool = False) -> Any:
    """Muon as the samples were trained; learning rates and decay come with the checkpoint."""
    from megatron.core import optimizer as optimizers

    known = {field.name for field in dataclasses.fields(optimizers.OptimizerConfig)}
    config = optimizers.OptimizerConfig(
        optimizer="muon",
        lr=1e-2,
        min_lr=1e-3,
        weight_decay=0.1,
        clip_grad=1.0,
        muon_momentum=0.95,
        muon_scale_mode="spectral",
        muon_extra_scale_factor=0.2,
        muon_fp32_matmul_prec="high",
        muon_num_ns_steps=5,
        muon_split_qkv=True,
        muon_tp_mode="duplicated",
        bf16=bf16,
        params_dtype=torch.bfloat16 if bf16 else torch.float32,
        # Its name up to 0.17.
        **{"muon_nesterov" if "muon_nesterov" in known else "muon_use_nesterov": False},
    )
    if "muon_nesterov" in known:
        return optimizers.get_megatron_optimizer(config, [model])
    older = importlib.import_module("megatron.core.optimizer.muon")
    return older.get_megatron_muon_optimizer(config, [model])


def load_legacy(model: Any, optimizer: Any, folder: Path) -> int:
    """Fill both as Megatron's training script does from its one rank's file."""
    state = torch.load(folder / "mp_rank_00" / "model_optim_rng.pt", weights_only=False)
    model.module.load_state_dict(state["model"], strict=True)
    optimizer.load_state_dict(state["optimizer"])
    return int(state["iteration"])


def inner(model: Any) -> Any:
    """The GPT inside the wrappers."""
    while hasattr(model, "module"):
        model = model.module
    return model


def load_distributed(model: Any, optimizer: Any, folder: Path, singleton: bool = False) -> int:
    """Fill both from the checkpoint, by Megatron's own strict loader."""
    from megatron.core import dist_checkpointing, parallel_state
    from megatron.core.dist_checkpointing.validation import StrictHandling

    group = parallel_state.get_data_parallel_group(with_context_parallel=True)
    metadata = {
        "chained_optim_avoid_prefix": True,
        "singleton_local_shards": singleton,
        "dp_cp_group": group,
    }
    tensors = inner(model).sharded_state_dict(metadata=metadata)
    states = optimizer.sharded_state_dict(tensors, is_loading=True, metadata=metadata)
    # Random numbers and the watch for faults belong to the trainer.
    loaded = dist_checkpointing.load(
        {**tensors, "optimizer": states}, str(folder), strict=StrictHandling.RAISE_UNEXPECTED
    )
    optimizer.load_state_dict(loaded["optimizer"])
    inner(model).load_state_dict({key: loaded[key] for key in tensors}, strict=False)
    return int(loaded["iteration"])


def loss_of(model: Any, iteration: int) -> Any:
    """Of the batch that the samples' runs had at this step."""
    batch = batch_of(iteration)
    model.zero_grad_buffer()
    positions = torch.arange(SEQUENCES).expand(BATCH, SEQUENCES)
    return model(batch[:, :-1], positions, None, labels=batch[:, 1:]).mean()


def batch_of(iteration: int) -> torch.Tensor:
    """Tokens [BATCH, SEQUENCES + 1] of a step."""
    generator = torch.Generator().manual_seed(1234)
    tokens = torch.randint(0, 99, (SAMPLES, SEQUENCES + 1), generator=generator)
    return tokens[[(iteration * BATCH + i) % SAMPLES for i in range(BATCH)]]


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
