"""The words by which a row says how its targets are made, and what each means for a model."""

from __future__ import annotations

from collections.abc import Callable

from converters.splits import GroupedHeads, Halves, Whole
from converters.steps import (
    Axes,
    Flip,
    Heads,
    Offset,
    RopeOrder,
    Rows,
    Scale,
    Step,
    Transpose,
)
from converters.transforms import Transform

from .model import Model

# [heads, size, in] as MaxText's [in, heads, size].
_IN_FIRST = Axes((2, 0, 1))


def _one(*steps: Step) -> Transform:
    return Transform(Whole(), (steps,))


def _copy(model: Model) -> Transform:
    return _one()


def _norm(model: Model) -> Transform:
    return _one(*([Offset(1.0)] if model.zero_centered else []))


def _qk_norm(model: Model) -> Transform:
    return Transform(Whole(), ((*_norm(model).chains[0], *_rope(model, 0)),))


def _embedding(model: Model) -> Transform:
    scale = model.dimensions.embedding_scale
    return _one(*_vocabulary(model), *([Scale(scale)] if scale != 1.0 else []))


def _output(model: Model) -> Transform:
    return _one(*_vocabulary(model), Transpose())


def _vocabulary(model: Model) -> list[Step]:
    return [] if model.vocabulary is None else [Rows(model.vocabulary)]


def _rope(model: Model, axis: int, start: int = 0) -> list[Step]:
    order = model.rope.reorder
    return [] if order is None else [RopeOrder(axis, order, start)]


def _grouped(model: Model) -> GroupedHeads:
    d = model.dimensions
    return GroupedHeads(d.num_kv_heads, d.num_query_heads // d.num_kv_heads, d.head_dim)


def _query_scale(model: Model) -> list[Step]:
    scale = model.dimensions.query_scale
    return [Scale(scale)] if scale != 1.0 else []


def _qkv(model: Model) -> Transform:
    rope = _rope(model, 1)
    query = (*rope, *_query_scale(model), _IN_FIRST)
    return Transform(_grouped(model), (query, (*rope, _IN_FIRST), (_IN_FIRST,)))


def _qkv_bias(model: Model) -> Transform:
    rope = tuple(_rope(model, 1))
    return Transform(_grouped(model), ((*rope, *_query_scale(model)), rope, ()))


def _gate_up(model: Model) -> Transform:
    return Transform(Halves(-2), ((Transpose(),), (Transpose(),)))


def _gate_up_bias(model: Model) -> Transform:
    return Transform(Halves(-1), ((), ()))


def _transpose(model: Model) -> Transform:
    return _one(Transpose())


def _to_heads(model: Model) -> Transform:
    return _one(Heads(model.dimensions.num_query_heads), _IN_FIRST)


def _from_heads(model: Model) -> Transform:
    return _one(Transpose(), Heads(model.dimensions.num_query_heads))


def _fused_heads(model: Model) -> Transform:
    return _one(Heads(3 * model.dimensions.num_query_heads), _IN_FIRST)


def _mla_query(model: Model) -> Transform:
    d = model.dimensions
    return _one(Heads(d.num_query_heads), *_rope(model, 1, d.qk_nope_head_dim), _IN_FIRST)


def _mla_kv_down(model: Model) -> Transform:
    return _one(*_rope(model, 0, model.kv_lora_rank), Transpose())


def _convolution(model: Model) -> Transform:
    return _one(Axes((2, 1, 0)))


def _convolution_flipped(model: Model) -> Transform:
    return _one(Flip(2), Axes((2, 1, 0)))


WORDS: dict[str, Callable[[Model], Transform]] = {
    "copy": _copy,
    "buffer": _copy,  # kept outside Megatron's optimizer: no momentum, no moments
    "norm": _norm,  # [n]; stored as W - 1 by a zero-centered run
    "qk_norm": _qk_norm,  # [head_dim], rotary channels in order
    "embedding": _embedding,  # [vocabulary, hidden]
    "output": _output,  # [vocabulary, hidden] to [hidden, vocabulary]
    "qkv": _qkv,  # rows per query group to three [in, heads, head_dim]
    "qkv_bias": _qkv_bias,
    "gate_up": _gate_up,  # [..., 2 ffn, in] to two [..., in, ffn]
    "gate_up_bias": _gate_up_bias,  # [..., 2 ffn] to two [..., ffn]
    "transpose": _transpose,  # [..., out, in] to [..., in, out]
    "to_heads": _to_heads,  # [heads * size, in] to [in, heads, size]
    "from_heads": _from_heads,  # [out, heads * size] to [heads, size, out]
    "fused_heads": _fused_heads,  # all Q, all K, all V heads to [in, 3 heads, size]
    "mla_query": _mla_query,  # to_heads, rotary channels last
    "mla_kv_down": _mla_kv_down,  # [rank + rope, in] to [in, rank + rope]
    "convolution": _convolution,  # [channels, 1, taps] to [taps, 1, channels]
    "convolution_flipped": _convolution_flipped,  # the same, for x[t - k] kernels
}
