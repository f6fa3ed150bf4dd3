"""The model behind a checkpoint: sizes, features, rotary layout; from its arguments and names."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from converters.errors import CheckpointError
from muon_fork.model_dimensions import ModelDimensions

from .family import Family
from .rope import Rope, rope_of


@dataclass(frozen=True)
class Model:
    """A model of one family.

    Attributes:
      dimensions: as the rules of the optimizer want them.
      layers: transformer layers, prediction layers not counted.
      dense: dense layers before the first MoE layer; all of them in a dense model.
      mtp: prediction layers.
      features: words that rows and families ask for.
      rope: how q and k rotate on both sides.
      zero_centered: norms are stored as W - 1.
      kv_lora_rank: of MLA, else 0.
      vocabulary: rows that the target keeps; None keeps what the source has.
    """

    dimensions: ModelDimensions
    layers: int
    dense: int
    mtp: int
    features: frozenset[str]
    rope: Rope
    zero_centered: bool
    kv_lora_rank: int = 0
    vocabulary: int | None = None

    def layer_features(self, layer: int, cycle: int) -> frozenset[str]:
        """The model's, and whether the layer is dense, and ends a cycle (or the model)."""
        kind = "dense_layer" if layer < self.dense else "moe_layer"
        ends = (layer + 1) % cycle == 0 or layer == self.layers - 1
        return self.features | {kind, "cycle_end" if ends else "cycle_inner"}


def model_of(
    family: Family,
    arguments: Mapping[str, Any],
    features: frozenset[str],
    vocabulary: int | None = None,
) -> Model:
    """The model that the arguments describe, as a member of ``family``.

    Raises:
      CheckpointError: an argument is missing or asks for what MaxText does not compute.
    """
    mla = "mla" in features
    heads = size(arguments, "num_attention_heads")
    grouped = bool(arguments.get("group_query_attention")) and not mla
    dimensions = ModelDimensions(
        decoder_block=family.decoder_block,
        emb_dim=size(arguments, "hidden_size"),
        num_query_heads=heads,
        num_kv_heads=size(arguments, "num_query_groups") if grouped else heads,
        head_dim=size(arguments, "kv_channels"),
        attention_type="mla" if mla else "global",
        qk_nope_head_dim=size(arguments, "qk_head_dim") if mla else 0,
        qk_rope_head_dim=size(arguments, "qk_pos_emb_head_dim") if mla else 0,
        v_head_dim=size(arguments, "v_head_dim") if mla else 0,
        attention_scale_divisor=_scale_divisor(family, arguments),
    )
    layers = size(arguments, "num_layers")
    return Model(
        dimensions=dimensions,
        layers=layers,
        dense=dense_layers(arguments),
        mtp=int(arguments.get("mtp_num_layers") or 0),
        features=features,
        rope=rope_of(family.decoder_block, arguments),
        zero_centered="zero_centered" in features,
        kv_lora_rank=size(arguments, "kv_lora_rank") if mla else 0,
        vocabulary=vocabulary,
    )


def _scale_divisor(family: Family, arguments: Mapping[str, Any]) -> float | None:
    """The square of what the logits are divided by, where the run chose it itself."""
    chosen = arguments.get("softmax_scale")
    size_of_head = size(arguments, "kv_channels")
    if chosen is None or abs(chosen * chosen * size_of_head - 1) < 1e-9:
        return None
    divisor = 1.0 / (chosen * chosen)
    if family.name == "gemma2" and abs(divisor - 144.0) < 1e-6:
        return 144.0  # gemma2-27b, which MaxText knows by its model_name
    raise CheckpointError(
        f"softmax_scale={chosen!r} with kv_channels={size_of_head}: MaxText divides attention "
        f"logits by sqrt({size_of_head}) in {family.decoder_block}"
    )


def dense_layers(arguments: Mapping[str, Any]) -> int:
    """How many dense layers come first.

    Raises:
      CheckpointError: dense and MoE layers alternate, which MaxText does not arrange.
    """
    layers = size(arguments, "num_layers")
    if not arguments.get("num_experts"):
        return layers
    frequency = arguments.get("moe_layer_freq", 1)
    if isinstance(frequency, int):
        pattern = [int(layer % frequency == 0) for layer in range(layers)]
    else:
        pattern = [int(bool(entry)) for entry in frequency]
    if len(pattern) != layers:
        raise CheckpointError(
            f"moe_layer_freq={frequency!r} has {len(pattern)} entries for {layers} layers"
        )
    dense = pattern.index(1) if 1 in pattern else layers
    if 0 in pattern[dense:]:
        raise CheckpointError(
            f"moe_layer_freq={frequency!r}: MaxText keeps dense layers before all MoE layers"
        )
    return dense


def features_of(arguments: Mapping[str, Any], names: Collection[str]) -> frozenset[str]:
    """What the run's arguments say about its parameters; names decide where no argument does."""
    suffixes = {name.rpartition("layers.")[2].partition(".")[2] for name in names}
    get = arguments.get
    mla, moe = bool(get("multi_latent_attention")), bool(get("num_experts"))
    bias = bool(get("add_bias_linear"))
    found = {
        "mla": mla,
        "q_lora": mla and get("q_lora_rank") is not None,
        "moe": moe,
        "dense_layers": moe and get("moe_layer_freq", 1) not in (1, None),
        "shared_experts": bool(get("moe_shared_expert_intermediate_size")),
        "shared_expert_gate": bool(get("moe_shared_expert_gate")),
        "expert_bias": bool(get("moe_router_enable_expert_bias")),
        "qk_norm": bool(get("qk_layernorm")) and not mla,
        "qkv_bias": bias or bool(get("add_qkv_bias")),
        "out_bias": bias,
        "mlp_bias": bias,
        "gated_attention": bool(get("attention_output_gate")),
        "sinks": get("softmax_type", "vanilla") == "learnable",
        "post_norms": "post_self_attn_layernorm.weight" in suffixes,
        "zero_centered": bool(get("apply_layernorm_1p") or get("layernorm_zero_centered_gamma")),
        "rope_scaling": bool(get("use_rope_scaling")),
        "mtp": bool(get("mtp_num_layers")),
        "linear_attention": bool(
            get("linear_attention_freq") or get("experimental_attention_variant")
        ),
        "hybrid": bool(get("is_hybrid_model") or get("hybrid_layer_pattern")),
        "untied": bool(get("untie_embeddings_and_output_weights")),
    }
    found["tied"] = not found["untied"]
    return frozenset(word for word, present in found.items() if present)


def size(arguments: Mapping[str, Any], name: str) -> int:
    value = arguments.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise CheckpointError(f"the arguments say {name}={value!r}, expected a positive number")
    return value
