"""What Megatron may compute that MaxText's decoder blocks do not: refused, or told.

Refused is what makes another model of the same weights; told is what the user may accept.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from converters.errors import CheckpointError
from converters.families.family import Family


class Unmatched(NamedTuple):
    """An argument, the values under which the two agree, and why the others do not.

    ``of`` are the decoder blocks that it is about, none for all; ``but`` those that it is not.
    """

    name: str
    matched: tuple[Any, ...]
    why: str
    of: tuple[str, ...] = ()
    but: tuple[str, ...] = ()

    def met(self, family: Family, arguments: Mapping[str, Any]) -> bool:
        block = family.decoder_block
        about = block in self.of if self.of else block not in self.but
        return about and arguments.get(self.name) not in self.matched


_OFF = (None, False)
_CHOSEN = ("mixtral", "qwen3_moe", "gpt_oss")
_GELU = ("gemma2", "gemma3")
_NO_SCORES = "MaxText normalises the logits of the chosen experts with a softmax, and no more"

REFUSED: tuple[Unmatched, ...] = (
    Unmatched("use_mup", _OFF, "MaxText has no MuP"),
    Unmatched("fp32_residual_connection", _OFF, "MaxText's residual stream has the dtype of all"),
    Unmatched("apply_residual_connection_post_layernorm", _OFF, "the residual is taken before"),
    Unmatched("apply_query_key_layer_scaling", _OFF, "MaxText's logits do not depend on the layer"),
    Unmatched("mlp_glu_interleave_size", (None,), "gate and up are halves"),
    Unmatched("moe_mlp_glu_interleave_size", (None,), "gate and up are halves"),
    Unmatched("moe_shared_expert_glu_interleave_size", (None,), "gate and up are halves"),
    Unmatched("moe_latent_size", (None,), "MaxText's experts work on the hidden size"),
    Unmatched("qk_l2_norm", _OFF, "the family has no L2 norm of q and k"),
    Unmatched("softmax_type", (None, "vanilla", "learnable"), "MaxText's softmax has no constant"),
    Unmatched("activation_func_clamp_value", (None,), "MaxText does not clamp", but=("gpt_oss",)),
    Unmatched("activation_func_clamp_value", (None, 7.0), "MaxText clamps at 7", of=("gpt_oss",)),
    Unmatched("glu_linear_offset", (None, 0.0), "MaxText adds nothing to up", but=("gpt_oss",)),
    Unmatched("glu_linear_offset", (None, 1.0), "MaxText adds 1 to up", of=("gpt_oss",)),
    Unmatched("quick_geglu", _OFF, "the family has another activation", but=("gpt_oss",)),
    Unmatched("quick_geglu", (None, True), "the family has a quick GELU", of=("gpt_oss",)),
    Unmatched("squared_relu", _OFF, "the family has another activation"),
    Unmatched("swiglu", _OFF, "the family has a quick GELU", of=("gpt_oss",)),
    Unmatched("moe_router_score_function", (None, "softmax"), _NO_SCORES, of=_CHOSEN),
    Unmatched("moe_router_topk_scaling_factor", (None, 1.0), _NO_SCORES, of=_CHOSEN),
    Unmatched("moe_router_num_groups", (None,), "MaxText chooses from all experts", of=_CHOSEN),
    Unmatched("moe_router_topk_limited_devices", (None,), "MaxText chooses from all experts"),
    Unmatched("moe_apply_probs_on_input", _OFF, "MaxText weighs what experts give"),
    Unmatched("moe_router_force_load_balancing", _OFF, "experts were drawn by chance"),
    Unmatched("moe_router_force_biased", (None,), "experts were drawn by chance"),
    Unmatched("heterogeneous_block_specs", _OFF, "all layers of a family are alike"),
    Unmatched("heterogeneous_layers_config_path", (None, ""), "all layers of a family are alike"),
)

TOLD: tuple[Unmatched, ...] = (
    Unmatched("moe_z_loss_coeff", (None, 0.0), "MaxText has no router z-loss"),
    Unmatched("moe_input_jitter_eps", (None, 0.0), "MaxText has no input jitter"),
    Unmatched(
        "moe_expert_capacity_factor", (None,), "set capacity_factor; what is dropped may differ"
    ),
    Unmatched("hidden_dropout", (None, 0.0), "random numbers are not reproduced"),
    Unmatched("attention_dropout", (None, 0.0), "random numbers are not reproduced"),
    Unmatched("window_size", (None,), "set sliding_window_size for a family that has it"),
    Unmatched("fp8", _OFF, "set quantization; MaxText scales and rounds in its own way"),
    Unmatched("fp4", _OFF, "MaxText scales and rounds in its own way"),
    Unmatched("swiglu", _OFF, "the family has a gated GELU, which no argument says", of=_GELU),
    Unmatched(
        "moe_router_pre_softmax",
        _OFF,
        "MaxText normalises the weights of the chosen experts",
        of=("mixtral", "qwen3_moe"),
    ),
)


def refuse(family: Family, arguments: Mapping[str, Any]) -> None:
    """Raise CheckpointError if the run computes something that the family's block does not."""
    norm = arguments.get("normalization", "LayerNorm")
    if norm != "RMSNorm":
        raise CheckpointError(f"normalization={norm!r}: {family.decoder_block} has RMSNorm")
    if "mlp_activations" not in family.config and not arguments.get("swiglu"):
        raise CheckpointError(f"swiglu is off: {family.decoder_block} has a gated SiLU")
    for row in REFUSED:
        if row.met(family, arguments):
            raise CheckpointError(
                f"{row.name}={arguments.get(row.name)!r}: {family.decoder_block} does not compute "
                f"that: {row.why}"
            )
    kinds = arguments.get("moe_router_load_balancing_type")
    if "sinkhorn" in (kinds if isinstance(kinds, list) else [kinds]):
        raise CheckpointError(
            f"moe_router_load_balancing_type={kinds!r}: MaxText chooses the experts with the "
            "largest logits, Sinkhorn's algorithm others"
        )


def notes_of(family: Family, arguments: Mapping[str, Any]) -> tuple[str, ...]:
    """What is not reproduced, one line each."""
    found = [
        f"{row.name}={arguments[row.name]!r} is not reproduced: {row.why}"
        for row in TOLD
        if row.met(family, arguments)
    ]
    moe = family.decoder_block == "deepseek" and arguments.get("num_experts")
    softmax = arguments.get("moe_router_score_function", "softmax") == "softmax"
    if moe and softmax and not arguments.get("moe_router_pre_softmax"):
        found.append(
            "moe_router_pre_softmax is off and is not reproduced: MaxText takes the softmax over "
            "all experts before it chooses"
        )
    return tuple(found)
