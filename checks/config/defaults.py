"""MaxText's defaults of the keys that matter, release by release.

For a user who names a release and not a checkout; a test compares them with every release. A
migrated checkout has further keys, whose defaults are those of the reference that it was migrated
to: only the checkout itself can tell.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final


class _Absent:
    """Type of ``ABSENT``."""


# The release has no such key.
ABSENT: Final = _Absent()

NEWEST = "0.2.5"
LATEST: dict[str, Any] = {
    "model_name": "default",
    "override_model_config": False,
    "decoder_block": "llama2",
    "base_num_decoder_layers": 16,
    "base_emb_dim": 2048,
    "base_num_query_heads": 16,
    "base_num_kv_heads": 16,
    "head_dim": 128,
    "base_mlp_dim": 7168,
    "max_target_length": 2048,
    "inhomogeneous_layer_cycle_interval": 1,
    "use_post_attn_norm": False,
    "use_post_ffw_norm": False,
    "mtp_num_layers": 0,
    "mtp_loss_scaling_factor": 0.1,
    "vocab_size": 32000,
    "normalization_layer_epsilon": 1e-05,
    "rope_type": "default",
    "rope_max_timescale": 10000,
    "rope_min_timescale": 1,
    "local_rope_max_timescale": -1,
    "partial_rotary_factor": 1.0,
    "rope_linear_scaling_factor": 1.0,
    "rope_use_scale": True,
    "rope_factor": 40,
    "rope_interleave": True,
    "rope_truncate": True,
    "rope_attention_scaling": False,
    "beta_fast": 32,
    "beta_slow": 1,
    "max_position_embeddings": 163840,
    "original_max_position_embeddings": 4096,
    "use_qk_norm": False,
    "qk_norm_with_scale": True,
    "mscale": 1.0,
    "attn_logits_soft_cap": 0.0,
    "attention_sink": False,
    "chunk_attn_window_size": 0,
    "use_qk_clip": False,
    "attention": "autoselected",
    "attention_type": "global",
    "q_lora_rank": 0,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "mlp_activations": ("silu", "linear"),
    "mlp_activations_limit": -1.0,
    "mlp_bias": False,
    "attention_bias": False,
    "logits_via_embedding": False,
    "normalize_embedding_logits": True,
    "final_logits_soft_cap": 0.0,
    "num_experts": 1,
    "num_experts_per_tok": 1,
    "base_moe_mlp_dim": -1,
    "first_num_dense_layers": 0,
    "shared_experts": 0,
    "norm_topk_prob": False,
    "routed_score_func": "",
    "routed_scaling_factor": 1.0,
    "routed_bias": False,
    "routed_bias_update_rate": 0.0,
    "n_routing_groups": -1,
    "topk_routing_group": -1,
    "capacity_factor": -1.0,
    "use_random_routing": False,
    "z_loss_multiplier": 0.0,
    "load_balance_loss_weight": 0.0,
    "dropout_rate": 0.0,
    "gradient_clipping_threshold": 1.0,
    "learning_rate": 3e-05,
    "lr_schedule_type": "cosine",
    "steps": 150001,
    "learning_rate_schedule_steps": -1,
    "warmup_steps_fraction": 0.1,
    "learning_rate_final_fraction": 0.1,
    "wsd_decay_style": "linear",
    "wsd_decay_steps_fraction": 0.1,
    "dtype": "bfloat16",
    "weight_dtype": "float32",
    "grad_dtype": "float32",
    "mu_dtype": "",
    "cast_logits_to_fp32": True,
    "quantization": "",
    "use_qwix_quantization": False,
    "matmul_precision": "default",
    "packing": True,
    "opt_type": "adamw",
    "muon_beta": 0.95,
    "muon_weight_decay": 0,
    "muon_include_routers": True,
    "adam_b1": 0.9,
    "adam_b2": 0.95,
    "adam_eps": 1e-08,
    "adam_eps_root": 0.0,
    "adam_weight_decay": 0.1,
    "muon_consistent_rms": "None",
    "trainable_parameters_mask": (),
    "skip_step_on_spikes": False,
    "scan_layers": True,
}

EARLIER: dict[str, dict[str, Any]] = {
    "0.2.0": {
        "qk_norm_with_scale": ABSENT,
        "base_moe_mlp_dim": 7168,
        "shared_experts": 1,
        "muon_include_routers": ABSENT,
        "trainable_parameters_mask": ABSENT,
        "skip_step_on_spikes": ABSENT,
        "enable_nnx": False,
    },
    "0.2.1": {
        "qk_norm_with_scale": ABSENT,
        "base_moe_mlp_dim": 7168,
        "shared_experts": 1,
        "muon_include_routers": ABSENT,
        "skip_step_on_spikes": ABSENT,
        "enable_nnx": False,
        "pure_nnx_decoder": False,
    },
    "0.2.2": {
        "muon_include_routers": ABSENT,
        "pure_nnx": False,
        "enable_nnx": False,
        "pure_nnx_decoder": False,
    },
    "0.2.3": {
        "muon_include_routers": ABSENT,
        "pure_nnx": False,
        "enable_nnx": False,
        "pure_nnx_decoder": False,
    },
    "0.2.4": {
        "muon_include_routers": ABSENT,
        "pure_nnx": True,
        "enable_nnx": True,
        "pure_nnx_decoder": True,
    },
}


RELEASES: tuple[str, ...] = (*EARLIER, NEWEST)


def defaults_of(release: str) -> Mapping[str, Any]:
    """Value of every key of ``keys.KEYS`` that the release has.

    Raises:
      KeyError: an unknown release.
    """
    if release == NEWEST:
        return LATEST
    values = LATEST | EARLIER[release]
    return {key: value for key, value in values.items() if value is not ABSENT}
