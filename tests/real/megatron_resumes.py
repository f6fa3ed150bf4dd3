"""Load a torch_dist or legacy checkpoint into a real Megatron-Core GPT, and take one step.

    python -m tests.real.megatron_resumes ITERATION_FOLDER OUT.npz

The model is what the samples' README says; OUT gets the iteration, the loss of the next step, the
weights after it and the loss of the step after.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from checks.trainers.megatron.building import gpt, inner, transformer_config, wrapped
from checks.trainers.megatron.groups import process_group
from checks.trainers.megatron.model import Model
from checks.trainers.megatron.optimizing import core_optimizer, optimizer_config
from checks.trainers.megatron.options import SETTINGS, Layout
from checks.trainers.megatron.saving import metadata_of

SEQUENCES, SAMPLES, BATCH = 16, 16, 4
SAMPLES_OPTIONS = {
    "lr": 1e-2,
    "min_lr": 1e-3,
    "muon_nesterov": False,
    "muon_fp32_matmul_prec": "high",
    "muon_tp_mode": "duplicated",
}


def main(folder: Path, out: Path, *options: str) -> None:
    with process_group(Layout(), 0, None, seed=7):
        arrays = resume(folder, frozenset(options))
    np.savez(out, **arrays)


def resume(folder: Path, options: frozenset[str]) -> dict[str, Any]:
    from megatron.core.distributed import finalize_model_grads

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


def build(options: frozenset[str]) -> Any:
    """A GPT of random weights, wrapped as for training."""
    model = Model(
        "sample",
        hidden=32,
        head_size=8,
        ffn=64,
        qk_norm="qknorm" in options,
        padded_vocabulary=128,
        sequence=SEQUENCES,
    )
    config = transformer_config(model, layernorm_epsilon=1e-5)
    return wrapped(config, gpt(model, config))


def optimizer_of(model: Any, dtype: torch.dtype = torch.float32) -> Any:
    """Muon as the samples were trained; learning rates and decay come with the checkpoint."""
    return core_optimizer(optimizer_config(SETTINGS | SAMPLES_OPTIONS, dtype), model)


def load_legacy(model: Any, optimizer: Any, folder: Path) -> int:
    """Fill both as Megatron's training script does from its one rank's file."""
    state = torch.load(folder / "mp_rank_00" / "model_optim_rng.pt", weights_only=False)
    model.module.load_state_dict(state["model"], strict=True)
    optimizer.load_state_dict(state["optimizer"])
    return int(state["iteration"])


def load_distributed(model: Any, optimizer: Any, folder: Path, singleton: bool = False) -> int:
    """Fill both from the checkpoint, by Megatron's own strict loader."""
    from megatron.core import dist_checkpointing
    from megatron.core.dist_checkpointing.validation import StrictHandling

    metadata = metadata_of(singleton_local_shards=singleton)
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
