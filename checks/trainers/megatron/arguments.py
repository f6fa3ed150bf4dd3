"""The arguments that Megatron-LM's training script would have had for a run."""

from __future__ import annotations

import dataclasses
from argparse import Namespace
from collections.abc import Iterator
from typing import Any

from .options import Sharding
from .training import Training

_PLAIN = (bool, int, float, str, type(None))
# Of the configuration classes, what the script has under another name or not at all.
_RENAMED = {"num_moe_experts": "num_experts"}
# What RFC-0023's Megatron has instead of Megatron-Core's choices.
_CORE_ONLY = (
    "muon_scale_mode",
    "muon_coefficient_type",
    "muon_extra_scale_factor",
    "muon_fp32_matmul_prec",
    "muon_split_qkv",
    "muon_tp_mode",
    "muon_scalar_optimizer",
)


def arguments_of(training: Training, config: Any, optimizer_config: Any) -> Namespace:
    """``args`` of the checkpoints: fields of both configurations, and the script's own."""
    words = {**dict(_fields(config)), **dict(_fields(optimizer_config)), **_script(training)}
    words |= _sharding(training.sharding)
    if training.reference == "rfc":
        words = {name: value for name, value in words.items() if name not in _CORE_ONLY}
        words |= training.optimizer.rfc
    return Namespace(**words)


def _fields(config: Any) -> Iterator[tuple[str, Any]]:
    """Plain values by the script's names."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        plain = isinstance(value, list) and all(type(entry) in _PLAIN for entry in value)
        if plain or type(value) in _PLAIN:
            yield _RENAMED.get(field.name, field.name), value


def _script(training: Training) -> dict[str, Any]:
    model, optimizer, layout = training.model, training.optimizer, training.layout
    decay = optimizer.settings["weight_decay"]
    return {
        "swiglu": True,
        "position_embedding_type": "rope",
        "rotary_base": 10000,
        "rotary_percent": 1.0,
        "max_position_embeddings": model.sequence,
        "group_query_attention": model.groups != model.heads,
        "multi_latent_attention": model.latent is not None,
        "untie_embeddings_and_output_weights": not model.tied,
        "vocab_size": model.vocabulary,
        "padded_vocab_size": model.padded_vocabulary,
        "make_vocab_size_divisible_by": 128,
        "seq_length": model.sequence,
        "micro_batch_size": training.rows,
        "global_batch_size": model.batch,
        "train_iters": max(training.steps, 1),
        "lr_decay_style": optimizer.decay_style,
        "lr_decay_iters": optimizer.decay,
        "lr_warmup_iters": optimizer.warmup,
        "lr_warmup_fraction": None,
        "lr_warmup_init": 0.0,
        "start_weight_decay": decay,
        "end_weight_decay": decay,
        "weight_decay_incr_style": "constant",
        "data_parallel_size": layout.data,
        "world_size": layout.processes,
        "ckpt_format": training.form,
        "transformer_impl": "local",
        "distributed_backend": "gloo",
        "seed": training.seed,
    }


def of_twin(arguments: Namespace, twin: Training) -> Namespace:
    """The same where they do not say how the checkpoint is written."""
    return Namespace(**{**vars(arguments), "ckpt_format": twin.form, **_sharding(twin.sharding)})


def _sharding(sharding: Sharding | None) -> dict[str, Any]:
    if sharding is None:
        return {}
    return {
        "dist_ckpt_optim_fully_reshardable": sharding.form == "fully_reshardable",
        "use_layer_wise_param_layout": sharding.layout,
        "overlap_grad_reduce": False,
    }
