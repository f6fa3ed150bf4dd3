"""Every MaxText key that decides whether a run can equal Megatron's, and Megatron's arguments.

What a key must be is the conversion's to say (``converters.maxtext``). Where the conversion leaves
a key alone, because MaxText's default computes what Megatron does, ``neutral`` is that value.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from muon_fork.config_keys import CONFIG_KEYS, CONSISTENT_RMS, TRAINER_CLIP
from muon_fork.megatron_args import CORE, MOONSHOT, OPTIONAL


class _Open:
    """Type of ``OPEN``."""


# The conversion alone knows the value, or there is none to hold a run to.
OPEN: Final = _Open()
# Fields of MuonSpec whose choices are one formula, computed in another way.
_ROUNDING = ("decay_style", "adam_decay_style")


@dataclass(frozen=True)
class Key:
    """
    Attributes:
      topic: what of the computation it belongs to.
      name: MaxText's.
      arguments: Megatron's that decide it; the first that a run has is shown.
      neutral: its value where the conversion sets none; OPEN leaves it to the user.
      rounding: another value changes rounding only, so it is a note and no difference.
    """

    topic: str
    name: str
    arguments: tuple[str, ...] = ()
    neutral: Any = OPEN
    rounding: bool = False


def _of(topic: str, *rows: tuple[str, str] | tuple[str, str, Any]) -> tuple[Key, ...]:
    return tuple(Key(topic, row[0], tuple(row[1].split()), *row[2:]) for row in rows)


_MODEL = (
    *_of(
        "model",
        ("model_name", ""),
        ("override_model_config", ""),
        ("decoder_block", ""),
        ("base_num_decoder_layers", "num_layers"),
        ("base_emb_dim", "hidden_size"),
        ("base_num_query_heads", "num_attention_heads"),
        ("base_num_kv_heads", "num_query_groups num_attention_heads"),
        ("head_dim", "kv_channels"),
        ("base_mlp_dim", "ffn_hidden_size"),
        ("max_target_length", "seq_length"),
        ("inhomogeneous_layer_cycle_interval", "", 1),
        ("use_post_attn_norm", "", False),
        ("use_post_ffw_norm", "", False),
        ("mtp_num_layers", "mtp_num_layers", 0),
        ("mtp_loss_scaling_factor", "mtp_loss_scaling_factor"),
    ),
    *_of(
        "vocabulary padding in the softmax",
        ("vocab_size", "padded_vocab_size vocab_size"),
    ),
    *_of("norm eps", ("normalization_layer_epsilon", "norm_epsilon layernorm_epsilon")),
    *_of(
        "rotary embedding",
        ("rope_type", "rope_type position_embedding_type"),
        ("rope_max_timescale", "rotary_base"),
        ("rope_min_timescale", "", 1),
        ("local_rope_max_timescale", "", -1),
        ("partial_rotary_factor", "rotary_percent", 1.0),
        ("rope_linear_scaling_factor", "rotary_seq_len_interpolation_factor", 1.0),
        ("rope_use_scale", "use_rope_scaling", True),
        ("rope_factor", "rotary_scaling_factor yarn_rotary_scaling_factor"),
        ("rope_interleave", "rotary_interleaved"),
        ("rope_truncate", "yarn_correction_range_round_to_int"),
        ("rope_attention_scaling", "mscale"),
        ("beta_fast", "beta_fast yarn_beta_fast"),
        ("beta_slow", "beta_slow yarn_beta_slow"),
        ("max_position_embeddings", "max_position_embeddings"),
        (
            "original_max_position_embeddings",
            "original_max_position_embeddings yarn_original_max_position_embeddings",
        ),
    ),
)
_LAYERS = (
    *_of("qk-norm", ("use_qk_norm", "qk_layernorm", False), ("qk_norm_with_scale", "", True)),
    *_of(
        "attention softmax",
        ("mscale", "mscale_all_dim"),
        ("attn_logits_soft_cap", "", 0.0),
        ("attention_sink", "softmax_type", False),
        ("chunk_attn_window_size", "", 0),
        ("use_qk_clip", "qk_clip", False),
    ),
    Key("attention softmax", "attention", (), "dot_product", rounding=True),
    *_of(
        "multi-latent attention",
        ("attention_type", "multi_latent_attention", "global"),
        ("q_lora_rank", "q_lora_rank"),
        ("kv_lora_rank", "kv_lora_rank"),
        ("qk_nope_head_dim", "qk_head_dim"),
        ("qk_rope_head_dim", "qk_pos_emb_head_dim"),
        ("v_head_dim", "v_head_dim"),
    ),
    *_of(
        "activations",
        ("mlp_activations", "swiglu", ("silu", "linear")),
        ("mlp_activations_limit", "activation_func_clamp_value", -1.0),
        ("mlp_bias", "add_bias_linear", False),
        ("attention_bias", "add_qkv_bias add_bias_linear", False),
    ),
    *_of(
        "tied head",
        ("logits_via_embedding", "untie_embeddings_and_output_weights"),
        ("normalize_embedding_logits", ""),
        ("final_logits_soft_cap", "", 0.0),
    ),
    *_of(
        "experts",
        ("num_experts", "num_experts", 1),
        ("num_experts_per_tok", "moe_router_topk"),
        ("base_moe_mlp_dim", "moe_ffn_hidden_size"),
        ("first_num_dense_layers", "moe_layer_freq"),
        ("shared_experts", "moe_shared_expert_intermediate_size"),
        ("norm_topk_prob", "moe_router_pre_softmax", False),
        ("routed_score_func", "moe_router_score_function"),
        ("routed_scaling_factor", "moe_router_topk_scaling_factor"),
        ("routed_bias", "moe_router_enable_expert_bias", False),
        ("routed_bias_update_rate", "moe_router_bias_update_rate"),
        ("n_routing_groups", "moe_router_num_groups", -1),
        ("topk_routing_group", "moe_router_group_topk", -1),
        ("capacity_factor", "moe_expert_capacity_factor", -1.0),
        ("use_random_routing", "", False),
    ),
)
_LOSS = (
    *_of("z-loss", ("z_loss_multiplier", "", 0.0)),
    *_of("aux loss", ("load_balance_loss_weight", "moe_aux_loss_coeff", 0.0)),
    *_of("dropout", ("dropout_rate", "hidden_dropout", 0.0)),
    *_of("clipping formula", (TRAINER_CLIP, "clip_grad"), ("muon_clip_grad", "clip_grad")),
    *_of(
        "learning rate schedule",
        ("learning_rate", "lr"),
        ("lr_schedule_type", "lr_decay_style"),
        ("steps", "train_iters"),
        ("learning_rate_schedule_steps", "lr_decay_iters train_iters"),
        ("warmup_steps_fraction", "lr_warmup_fraction lr_warmup_iters"),
        ("learning_rate_final_fraction", "min_lr"),
        ("wsd_decay_style", "lr_wsd_decay_style"),
        ("wsd_decay_steps_fraction", "lr_wsd_decay_iters"),
    ),
    *_of(
        "dtypes",
        ("dtype", "params_dtype"),
        ("weight_dtype", "params_dtype"),
        ("grad_dtype", "accumulate_allreduce_grads_in_fp32", "float32"),
        ("mu_dtype", "exp_avg_dtype", "float32"),
        ("cast_logits_to_fp32", "", True),
        ("quantization", "fp8", ""),
        ("use_qwix_quantization", "fp8", False),
    ),
    Key("dtypes", "matmul_precision", (), OPEN, rounding=True),
    *_of("data", ("packing", "reset_attention_mask", False)),
)
_STATE = _of(
    "train state",
    ("scan_layers", ""),
    ("pure_nnx", ""),
    ("enable_nnx", ""),
    ("pure_nnx_decoder", ""),
)


def _optimizer() -> Iterator[Key]:
    """The keys of MuonSpec, with the arguments that ``muon_fork`` reads for each."""
    names: dict[str, tuple[str, ...]] = {}
    for argument in (*CORE, *OPTIONAL, *MOONSHOT):
        names.setdefault(argument.field, argument.names)
    yield Key("optimizer", "opt_type", ("optimizer",))
    for row in CONFIG_KEYS:
        if row.key != "muon_clip_grad":
            rounds = row.field in _ROUNDING
            yield Key("optimizer", row.key, names.get(row.field, ()), rounding=rounds)
    yield Key("optimizer", CONSISTENT_RMS, ("muon_matched_adamw_rms",))
    yield Key("optimizer", "trainable_parameters_mask", (), ())
    yield Key("optimizer", "skip_step_on_spikes", (), False)


KEYS: tuple[Key, ...] = (*_MODEL, *_LAYERS, *_LOSS, *_optimizer(), *_STATE)
# Keys of the conversion that change no number.
IRRELEVANT = frozenset({"enable_checkpointing"})
