"""Megatron's tensors as MaxText-shaped arrays: for each key, the leaves that hold the same numbers.

Everything here is a permutation of entries, so it serves weights, momentum and second moments
alike. Stored scales (llama query) are the caller's. Stacked keys ``[layers, ...]`` become scanned
leaves with the layer axis at position 1; numbered keys become numbered layers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from converters.errors import CheckpointError

from .model import Model

Array = NDArray[Any]
Cut = Callable[[Array, Model], Array]

_LAYER = re.compile(r"decoder\.layers\.(?:(\d+)\.)?(.+)")


@dataclass(frozen=True)
class View:
    """One leaf: its path in MaxText's parameter tree, and how it is cut from Megatron's tensor."""

    path: tuple[str, ...]
    cut: Callable[[Array], Array]


def views(key: str, model: Model, keys: Collection[str]) -> tuple[View, ...]:
    """The leaves of one of the checkpoint's model tensors.

    Args:
      key: Megatron's key, without optimizer prefix.
      model: of the checkpoint.
      keys: all model keys; they tell MoE layers from dense ones.

    Raises:
      CheckpointError: no MaxText leaf is known for the key.
    """
    layer = _LAYER.fullmatch(key)
    if layer is None:
        if key not in _TOP:
            raise CheckpointError(f"no MaxText shape is known for {key}")
        path, cut = _TOP[key]
        return (View(path, _bound(cut, model)),)
    number, suffix = layer.groups()
    if model.dimensions.is_mla:
        suffix = _MLA_NAMES.get(suffix, suffix)
    rows = _LAYER_ROWS.get(suffix)
    if rows is None:
        raise CheckpointError(f"no MaxText shape is known for {key}")
    home = ("decoder", _layer_name(number, model, keys))
    found = []
    for place, path, cut in rows:
        cut_one = _bound(cut, model)
        whole = cut_one if number is not None else _per_layer(cut_one)
        found.append(View((*home, *_inner(place, model), *path), whole))
    return tuple(found)


def _layer_name(number: str | None, model: Model, keys: Collection[str]) -> str:
    if not model.apart:
        return "layers" if number is None else f"layers_{number}"
    if number is None:
        has_router = any(_LAYER.fullmatch(k) and k.endswith(".mlp.router.weight") for k in keys)
        return "moe_layers" if has_router else "dense_layers"
    moe = {int(m[1]) for k in keys if (m := _LAYER.fullmatch(k)) and m[2] == "mlp.router.weight"}
    alike = moe if int(number) in moe else set(range(int(number))) - moe
    before = sum(other < int(number) for other in alike)
    return f"{'moe' if alike is moe else 'dense'}_layers_{before}"


def _inner(place: str, model: Model) -> tuple[str, ...]:
    return {"": (), "experts": model.experts, "shared": model.shared}[place]


def _bound(cut: Cut, model: Model) -> Callable[[Array], Array]:
    return lambda tensor: cut(tensor, model)


def _per_layer(cut: Callable[[Array], Array]) -> Callable[[Array], Array]:
    return lambda stacked: np.stack([cut(layer) for layer in stacked], axis=1)


def _same(tensor: Array, _model: Model) -> Array:
    return tensor


def _transposed(tensor: Array, _model: Model) -> Array:
    return np.swapaxes(tensor, -1, -2)


def _half(which: int) -> Cut:
    """Gate (0) or up (1) of ``[..., 2 ffn, in]``, as ``[..., in, ffn]``."""

    def cut(tensor: Array, model: Model) -> Array:
        return _transposed(np.split(tensor, 2, axis=-2)[which], model)

    return cut


def _projection(which: int) -> Cut:
    """Query (0), key (1) or value (2) of grouped rows, ``[in, heads, head_dim]``; biases too."""

    def cut(tensor: Array, model: Model) -> Array:
        d = model.dimensions
        per_group = d.num_query_heads // d.num_kv_heads
        grouped = tensor.reshape(d.num_kv_heads, per_group + 2, d.head_dim, *tensor.shape[1:])
        edges = (per_group, per_group + 1)
        part = np.split(grouped, edges, axis=1)[which]
        heads = part.reshape(-1, d.head_dim, *tensor.shape[1:])
        return np.moveaxis(heads, -1, 0) if tensor.ndim == 2 else heads

    return cut


def _to_heads(tensor: Array, model: Model) -> Array:
    """``[heads * size, in]`` as ``[in, heads, size]``."""
    heads = model.dimensions.num_query_heads
    return tensor.T.reshape(tensor.shape[1], heads, -1)


def _from_heads(tensor: Array, model: Model) -> Array:
    """``[out, heads * size]`` as ``[heads, size, out]``."""
    heads = model.dimensions.num_query_heads
    return tensor.T.reshape(heads, -1, tensor.shape[0])


_TOP: dict[str, tuple[tuple[str, ...], Cut]] = {
    "embedding.word_embeddings.weight": (("token_embedder", "embedding"), _same),
    "embedding.position_embeddings.weight": (("position_embedder", "embedding"), _same),
    "decoder.final_layernorm.weight": (("decoder", "decoder_norm", "scale"), _same),
    "output_layer.weight": (("decoder", "logits_dense", "kernel"), _transposed),
}

Row = tuple[str, tuple[str, ...], Cut]


def _attention(name: str, cut: Cut, leaf: str = "kernel") -> tuple[Row, ...]:
    return (("", ("self_attention", name, leaf), cut),)


def _qkv(leaf: str) -> tuple[Row, ...]:
    return (
        *_attention("query", _projection(0), leaf),
        *_attention("key", _projection(1), leaf),
        *_attention("value", _projection(2), leaf),
    )


def _norm(name: str) -> tuple[Row, ...]:
    return (("", (name, "scale"), _same),)


def _feed_forward(place: str, block: tuple[str, ...], leaf: tuple[str, ...]) -> dict[str, Any]:
    return {
        "linear_fc1.weight": (
            (place, (*block, "wi_0", *leaf), _half(0)),
            (place, (*block, "wi_1", *leaf), _half(1)),
        ),
        "linear_fc2.weight": ((place, (*block, "wo", *leaf), _transposed),),
    }


_BEFORE_ATTENTION = _norm("pre_self_attention_layer_norm")
_BEFORE_MLP = _norm("post_self_attention_layer_norm")
# Suffix of a layer's key: (which block of a MoE layer, path inside it, cut) by leaf.
_LAYER_ROWS: dict[str, tuple[Row, ...]] = {
    "input_layernorm.weight": _BEFORE_ATTENTION,
    "self_attention.linear_qkv.layer_norm_weight": _BEFORE_ATTENTION,
    "pre_mlp_layernorm.weight": _BEFORE_MLP,
    "mlp.linear_fc1.layer_norm_weight": _BEFORE_MLP,
    "self_attention.linear_qkv.weight": _qkv("kernel"),
    "self_attention.linear_qkv.bias": _qkv("bias"),
    "self_attention.linear_proj.weight": _attention("out", _from_heads),
    "self_attention.linear_q_proj.weight": _attention("query", _to_heads),
    "self_attention.linear_q_down_proj.weight": _attention("wq_a", _transposed),
    "self_attention.linear_q_up_proj.weight": _attention("wq_b", _to_heads),
    "self_attention.linear_kv_down_proj.weight": _attention("wkv_a", _transposed),
    "self_attention.linear_kv_up_proj.weight": _attention("wkv_b", _to_heads),
    "self_attention.linear_q_up_proj.layer_norm_weight": _attention("q_norm", _same, "scale"),
    "self_attention.linear_kv_up_proj.layer_norm_weight": _attention("kv_norm", _same, "scale"),
    "self_attention.kv_layernorm.weight": _attention("kv_norm", _same, "scale"),
    "self_attention.q_layernorm.weight": _attention("query_norm", _same, "scale"),
    "self_attention.k_layernorm.weight": _attention("key_norm", _same, "scale"),
    "mlp.router.weight": (("experts", ("gate", "kernel"), _transposed),),
    **{f"mlp.{k}": v for k, v in _feed_forward("", ("mlp",), ("kernel",)).items()},
    **{f"mlp.experts.experts.{k}": v for k, v in _feed_forward("experts", (), ()).items()},
    **{f"mlp.shared_experts.{k}": v for k, v in _feed_forward("shared", (), ("kernel",)).items()},
}
# MLA's norm of the compressed query, under the name that says so.
_MLA_NAMES = {
    "self_attention.q_layernorm.weight": "self_attention.linear_q_up_proj.layer_norm_weight"
}
