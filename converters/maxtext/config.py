"""The MaxText configuration that continues a run: sizes, arithmetic, optimizer, schedule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from converters.errors import CheckpointError
from converters.families.family import Family
from converters.families.model import Model, size
from converters.mapping import Leaf
from muon_fork.config_keys import TRAINER_CLIP, config_values
from muon_fork.spec import MuonSpec

from .schedule import schedule_config
from .unmatched import notes_of, refuse
from .versions import LINEN_KEYS, Layout, Version


def config_of(
    family: Family,
    model: Model,
    arguments: Mapping[str, Any],
    vocabulary: int,
    dtype: str,
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Keys of model and arithmetic, and what they do not reproduce.

    Args:
      dtype: of the weights.

    Raises:
      CheckpointError: the run computes something that the family's MaxText block does not.
    """
    refuse(family, arguments)
    d = model.dimensions
    per_block = 2 if family.layers == "pairs" else 1
    config: dict[str, Any] = {
        "model_name": "default",
        "decoder_block": family.decoder_block,
        "base_emb_dim": d.emb_dim,
        "base_num_decoder_layers": model.layers // per_block,
        "base_num_query_heads": d.num_query_heads,
        "base_num_kv_heads": d.num_kv_heads,
        "head_dim": d.head_dim,
        "base_mlp_dim": size(arguments, "ffn_hidden_size"),
        "vocab_size": vocabulary,
        "normalization_layer_epsilon": _epsilon(arguments),
        "logits_via_embedding": "tied" in model.features,
    }
    if "tied" in model.features:
        config["normalize_embedding_logits"] = d.embedding_scale != 1.0
    config |= family.config
    config |= model.rope.config
    if d.is_mla:
        config |= _mla(arguments)
    notes = [*model.rope.notes]
    if "moe" in model.features:
        config |= _experts(family, model, arguments, notes)
    if family.layers == "dense_then_moe":
        config["first_num_dense_layers"] = model.dense
    if model.mtp:
        config["mtp_num_layers"] = model.mtp
        config["mtp_loss_scaling_factor"] = arguments.get("mtp_loss_scaling_factor", 0.1)
    config |= _named_model(family, model)
    config |= _numbers(arguments, dtype)
    return config, (*notes, *notes_of(family, arguments))


# Leaves whose last axes are sizes of the configuration.
_SIZED: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (("token_embedder", "embedding"), ("vocab_size", "base_emb_dim")),
    (("mlp", "wi_0", "kernel"), ("base_mlp_dim",)),
    (("MoeBlock_0", "wi_0"), ("base_emb_dim", "base_moe_mlp_dim")),
    (("moe_block", "wi_0"), ("base_emb_dim", "base_moe_mlp_dim")),
    (("GptOssMlp", "wi_0"), ("base_emb_dim", "base_moe_mlp_dim")),
    (("gate", "kernel"), ("num_experts",)),
)


def check_sizes(leaves: Sequence[Leaf], config: Mapping[str, Any]) -> None:
    """Raise CheckpointError where the run's arguments and its tensors are of different models."""
    for leaf in leaves:
        for tail, keys in _SIZED:
            if leaf.path[-len(tail) :] != tail:
                continue
            expected = tuple(config[key] for key in keys)
            if leaf.shape[-len(keys) :] != expected:
                raise CheckpointError(
                    f"{leaf.parts[0].link.parameter}: {'/'.join(leaf.path)} has shape "
                    f"{list(leaf.shape)}, the arguments ask for {list(expected)} at its end "
                    f"({', '.join(keys)}): arguments and tensors are of different models"
                )


def run_config(
    arguments: Mapping[str, Any],
    spec: MuonSpec | None,
    scan: bool,
    version: Version,
    layout: Layout,
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Keys of optimizer, schedule and train state, and what they do not reproduce."""
    config: dict[str, Any] = {"scan_layers": scan, "enable_checkpointing": True}
    # Megatron attends across the documents of a sequence, unless it is told to reset the mask.
    config["packing"] = bool(arguments.get("reset_attention_mask"))
    if layout == "linen" and len(version.layouts) > 1:
        config |= LINEN_KEYS
    if arguments.get("seq_length"):
        config["max_target_length"] = int(arguments["seq_length"])
    if spec is None:
        return config, ()
    # The fork clips, by Megatron's formula and on unfolded gradients.
    config |= {"opt_type": "muon", **config_values(spec), TRAINER_CLIP: 0}
    rates, notes = schedule_config(arguments)
    batch = arguments.get("global_batch_size")
    told = () if batch is None else (f"global batch {batch}: per_device_batch_size times devices",)
    return config | rates, (*notes, *told)


def command_line(config: Mapping[str, Any]) -> tuple[str, ...]:
    """``key=value`` words as MaxText's command line reads them."""
    return tuple(f"{key}={_word(value)}" for key, value in config.items())


def _word(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(_word(item) for item in value) + "]"
    text = str(value)
    # YAML 1.1 reads 1e-20 as text and 1.0e-20 as a number.
    bare = isinstance(value, float) and "e" in text and "." not in text
    return text.replace("e", ".0e") if bare else text


def _epsilon(arguments: Mapping[str, Any]) -> float:
    for name in ("norm_epsilon", "layernorm_epsilon"):
        if isinstance(arguments.get(name), float):
            return float(arguments[name])
    raise CheckpointError("the arguments do not say norm_epsilon")


def _mla(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "attention_type": "mla",
        "q_lora_rank": arguments.get("q_lora_rank") or 0,
        "kv_lora_rank": size(arguments, "kv_lora_rank"),
        "qk_nope_head_dim": size(arguments, "qk_head_dim"),
        "qk_rope_head_dim": size(arguments, "qk_pos_emb_head_dim"),
        "v_head_dim": size(arguments, "v_head_dim"),
    }


def _experts(
    family: Family, model: Model, arguments: Mapping[str, Any], notes: list[str]
) -> dict[str, Any]:
    inner = arguments.get("moe_ffn_hidden_size") or size(arguments, "ffn_hidden_size")
    coefficient = arguments.get("moe_aux_loss_coeff")
    several = isinstance(coefficient, (list, tuple))
    config: dict[str, Any] = {
        "num_experts": size(arguments, "num_experts"),
        "num_experts_per_tok": arguments.get("moe_router_topk", 2),
        "base_moe_mlp_dim": inner,
        "load_balance_loss_weight": 0.0 if several else float(coefficient or 0.0),
    }
    if several:
        notes.append(f"moe_aux_loss_coeff={coefficient!r}: MaxText has one balance loss, now off")
    if config["load_balance_loss_weight"]:
        notes.append("moe_aux_loss_coeff: MaxText defines its balance loss in its own way")
    if family.layers != "dense_then_moe":
        return config | {"base_mlp_dim": inner}
    return config | _deepseek_experts(model, arguments, inner)


def _deepseek_experts(model: Model, arguments: Mapping[str, Any], inner: int) -> dict[str, Any]:
    shared = arguments.get("moe_shared_expert_intermediate_size") or 0
    if shared % inner:
        raise CheckpointError(
            f"moe_shared_expert_intermediate_size={shared}: MaxText's shared experts are whole "
            f"multiples of moe_ffn_hidden_size={inner}"
        )
    config = {
        "shared_experts": shared // inner,
        "routed_score_func": arguments.get("moe_router_score_function", "softmax"),
        "routed_scaling_factor": float(arguments.get("moe_router_topk_scaling_factor") or 1.0),
        "routed_bias": "expert_bias" in model.features,
        "n_routing_groups": arguments.get("moe_router_num_groups") or -1,
        "topk_routing_group": arguments.get("moe_router_group_topk") or -1,
    }
    if "expert_bias" in model.features:
        config["routed_bias_update_rate"] = float(arguments.get("moe_router_bias_update_rate", 0.0))
    return config


def _named_model(family: Family, model: Model) -> dict[str, Any]:
    """Blocks that look at ``model_name`` for what no key says."""
    name = None
    if family.name == "gemma3":
        name = "gemma3-4b"  # divides by sqrt(head_dim), as every model that gets here
    elif model.dimensions.attention_scale_divisor is not None:
        name = "gemma2-27b"
    elif "expert_bias" in model.features and family.decoder_block == "deepseek":
        name = "deepseek3-671b"  # weights of the chosen experts without the bias
    return {} if name is None else {"model_name": name, "override_model_config": True}


def _numbers(arguments: Mapping[str, Any], dtype: str) -> dict[str, Any]:
    """Precision: Megatron keeps float32 masters, and activations in its own dtype."""
    if arguments.get("bf16"):
        return {"dtype": "bfloat16", "weight_dtype": dtype}
    if arguments.get("fp16"):
        return {"dtype": "float16", "weight_dtype": dtype}
    wide = {"grad_dtype": dtype, "cast_logits_to_fp32": False} if dtype == "float64" else {}
    return {"dtype": dtype, "weight_dtype": dtype, "matmul_precision": "highest", **wide}
