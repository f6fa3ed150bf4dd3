"""The model behind a checkpoint: its sizes, and the MaxText decoder block that can hold it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from converters.errors import CheckpointError
from muon_fork.model_dimensions import ModelDimensions


@dataclass(frozen=True)
class Model:
    """Sizes by Megatron's argument names, and MaxText's names for the blocks.

    Attributes:
      dimensions: as the rules of the optimizer want them.
      decoder_block: MaxText's.
      experts: path of the expert block inside a MoE layer, empty for dense models.
      shared: path of the shared experts inside a MoE layer.
      apart: MaxText keeps dense and MoE layers under two names.
    """

    dimensions: ModelDimensions
    decoder_block: str
    experts: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()
    apart: bool = False


def model_of(arguments: Mapping[str, Any]) -> Model:
    """The model that the run's arguments describe.

    Raises:
      CheckpointError: an argument is missing, or no MaxText model holds the same parameters.
    """
    for name in ("attention_output_gate", "add_bias_linear", "mtp_num_layers"):
        if arguments.get(name):
            raise CheckpointError(f"{name}={arguments[name]!r}: no MaxText shapes known for it")
    block = _decoder_block(arguments)
    dimensions = _dimensions(arguments, block)
    if block == "deepseek":
        inner = "DeepSeekMoeBlock_0"
        return Model(dimensions, block, (inner, "MoeBlock_0"), (inner, "shared_experts"), True)
    experts = {"qwen3_moe": ("moe_block",), "mixtral": ("MoeBlock_0",)}
    return Model(dimensions, block, experts.get(block, ()))


def _decoder_block(arguments: Mapping[str, Any]) -> str:
    experts = bool(arguments.get("num_experts"))
    mixed = arguments.get("moe_layer_freq", 1) not in (1, None)
    shared = bool(arguments.get("moe_shared_expert_intermediate_size"))
    if arguments.get("multi_latent_attention") or (experts and (mixed or shared)):
        return "deepseek"
    if experts:
        return "qwen3_moe" if arguments.get("qk_layernorm") else "mixtral"
    if arguments.get("add_qkv_bias"):
        return "qwen2"
    return "qwen3" if arguments.get("qk_layernorm") else "llama2"


def _dimensions(arguments: Mapping[str, Any], block: str) -> ModelDimensions:
    heads = _size(arguments, "num_attention_heads")
    grouped = arguments.get("group_query_attention")
    groups = _size(arguments, "num_query_groups") if grouped else heads
    mla = bool(arguments.get("multi_latent_attention"))
    return ModelDimensions(
        decoder_block=block,
        emb_dim=_size(arguments, "hidden_size"),
        num_query_heads=heads,
        num_kv_heads=groups,
        head_dim=_size(arguments, "kv_channels"),
        attention_type="mla" if mla else "global",
        qk_nope_head_dim=_size(arguments, "qk_head_dim") if mla else 0,
        qk_rope_head_dim=_size(arguments, "qk_pos_emb_head_dim") if mla else 0,
        v_head_dim=_size(arguments, "v_head_dim") if mla else 0,
    )


def _size(arguments: Mapping[str, Any], name: str) -> int:
    value = arguments.get(name)
    if not isinstance(value, int) or value < 1:
        raise CheckpointError(f"the arguments say {name}={value!r}, expected a positive number")
    return value
