"""A real GPT of Megatron-Core from a ``Model``, wrapped as for training."""

from __future__ import annotations

from typing import Any
from unittest import mock

import torch

from .model import Experts, Latent, Model
from .options import Layout, Sharding

# Nothing that needs a fused kernel, and nothing random.
_PLAIN: dict[str, Any] = {
    "normalization": "RMSNorm",
    "layernorm_epsilon": 1e-6,
    "gated_linear_unit": True,
    "activation_func": torch.nn.functional.silu,
    "add_bias_linear": False,
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
    "use_cpu_initialization": True,
    "masked_softmax_fusion": False,
    "bias_activation_fusion": False,
    "apply_rope_fusion": False,
    "persist_layer_norm": False,
    "gradient_accumulation_fusion": False,
}


def transformer_config(
    model: Model, layout: Layout | None = None, dtype: torch.dtype = torch.float32, **further: Any
) -> Any:
    """Megatron's configuration of the model; ``further`` are fields of it."""
    from megatron.core.transformer import TransformerConfig
    from megatron.core.transformer.transformer_config import MLATransformerConfig

    layout = layout or Layout()
    fields = {
        **_PLAIN,
        "num_layers": model.layers,
        "hidden_size": model.hidden,
        "num_attention_heads": model.heads,
        "num_query_groups": model.groups,
        "kv_channels": model.head_size,
        "ffn_hidden_size": model.ffn,
        "qk_layernorm": model.qk_norm or model.latent is not None,
        "params_dtype": dtype,
        "pipeline_dtype": dtype,
        "bf16": dtype == torch.bfloat16,
        "tensor_model_parallel_size": layout.tensor,
        "pipeline_model_parallel_size": layout.pipeline,
        **(_experts(model.experts, model.layers) if model.experts else {}),
        **(_latent(model.latent) if model.latent else {}),
        **further,
    }
    make: Any = MLATransformerConfig if model.latent else TransformerConfig
    return make(**fields)


def _experts(experts: Experts, layers: int) -> dict[str, Any]:
    dense = experts.dense_layers
    return {
        "num_moe_experts": experts.count,
        "moe_router_topk": experts.chosen,
        "moe_ffn_hidden_size": experts.ffn,
        "moe_shared_expert_intermediate_size": experts.shared_ffn or None,
        "moe_layer_freq": [0] * dense + [1] * (layers - dense) if dense else 1,
        "moe_router_score_function": experts.score,
        "moe_token_dispatcher_type": "allgather",
        "moe_router_load_balancing_type": "none",
        "moe_aux_loss_coeff": 0.0,
    }


def _latent(latent: Latent) -> dict[str, Any]:
    factor = latent.yarn_factor
    return {
        "q_lora_rank": latent.query_rank,
        "kv_lora_rank": latent.key_value_rank,
        "qk_head_dim": latent.plain,
        "qk_pos_emb_head_dim": latent.rotary,
        "v_head_dim": latent.value,
        "rope_type": "rope" if factor is None else "yarn",
        "rotary_scaling_factor": 1.0 if factor is None else factor,
        "mscale": 1.0,
        "mscale_all_dim": 0.0 if factor is None else 1.0,
    }


def layer_spec(config: Any) -> Any:
    """What the decoder's layers are made of, without Transformer Engine."""
    from megatron.core.models.gpt import gpt_layer_specs as specs

    if config.num_moe_experts and config.moe_layer_freq != 1:
        return specs.get_gpt_decoder_block_spec(config, use_transformer_engine=False)
    return specs.get_gpt_layer_local_spec(
        config.num_moe_experts,
        qk_layernorm=config.qk_layernorm,
        multi_latent_attention=config.multi_latent_attention,
        normalization="RMSNorm",
    )


def gpt(model: Model, config: Any, **further: Any) -> Any:
    """The GPT of this process; ``further`` are arguments of GPTModel."""
    from megatron.core import parallel_state
    from megatron.core.models.backends import LocalSpecProvider
    from megatron.core.models.gpt import GPTModel

    own = LocalSpecProvider.core_attention
    stand_in = (lambda _: _latent_core_attention()) if model.latent else own
    with mock.patch.object(LocalSpecProvider, "core_attention", stand_in):
        return GPTModel(
            config,
            layer_spec(config),
            vocab_size=model.padded_vocabulary,
            max_sequence_length=model.sequence,
            pre_process=parallel_state.is_pipeline_first_stage(),
            post_process=parallel_state.is_pipeline_last_stage(),
            position_embedding_type="rope",
            share_embeddings_and_output_weights=model.tied,
            **further,
        )


def _latent_core_attention() -> type:
    """Megatron's own attention, told how wide the values are.

    Without Transformer Engine it does not take the sizes that MLA hands it.
    """
    from megatron.core.transformer.dot_product_attention import DotProductAttention

    class LatentDotProductAttention(DotProductAttention):  # type: ignore[misc]
        def __init__(
            self,
            *arguments: Any,
            k_channels: int | None = None,
            v_channels: int | None = None,
            **keywords: Any,
        ) -> None:
            super().__init__(*arguments, **keywords)
            if v_channels is not None:
                self.hidden_size_per_partition = v_channels * self.num_attention_heads_per_partition

    return LatentDotProductAttention


def wrapped(
    config: Any, model: Any, sharding: Sharding | None = None, *, layer_wise: bool = False
) -> Any:
    """In distributed data parallel, gradients in float32.

    Args:
      sharding, layer_wise: as a ``Training`` has them.
    """
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.transformer.module import Float16Module

    inside = Float16Module(config, model) if config.bf16 else model
    # Whole matrices without a layout are dealt out of gradients that every rank has.
    ranges = sharding is not None and (sharding.layout or not layer_wise)
    buckets = DistributedDataParallelConfig(
        grad_reduce_in_fp32=True, use_distributed_optimizer=ranges
    )
    further = {}
    if ranges and layer_wise:  # older releases know no layout
        further["full_param_layout"] = _layer_wise_layout(inside, buckets)
    return DistributedDataParallel(config, buckets, inside, **further)


def _layer_wise_layout(model: Any, buckets: Any) -> Any:
    """Buffers in which no matrix is on two ranks, as the training script asks for them."""
    from megatron.core import parallel_state
    from megatron.core.optimizer import layer_wise_optimizer

    layer_wise_optimizer.tag_params_for_buffer_routing([model])
    return layer_wise_optimizer.LayerWiseDistributedOptimizer.compute_full_param_layout(
        list(model.parameters()),
        buckets.bucket_size,
        parallel_state.get_data_parallel_world_size(with_context_parallel=True),
        buckets,
    )


def inner(model: Any) -> Any:
    """The GPT inside the wrappers."""
    while hasattr(model, "module"):
        model = model.module
    return model
