"""What a tiny GPT is made of, in Megatron's words. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Experts:
    """A mixture in place of the MLP.

    Attributes:
      count, chosen, ffn: experts of a layer, experts of a token, width of one.
      shared_ffn: width of the expert that every token visits, 0 for none.
      dense_layers: layers at the start that keep a plain MLP.
      score: ``softmax`` or ``sigmoid`` of the router's logits.
    """

    count: int = 4
    chosen: int = 2
    ffn: int = 64
    shared_ffn: int = 0
    dense_layers: int = 0
    score: str = "softmax"


@dataclass(frozen=True)
class Latent:
    """Multi-latent attention.

    Attributes:
      query_rank, key_value_rank: of the down-projections; a query rank of None is no compression.
      plain, rotary, value: channels of a head without and with rotation, and of its value.
      yarn_factor: scaling of the rotation by yarn; None rotates as it is.
    """

    query_rank: int | None = 24
    key_value_rank: int = 16
    plain: int = 16
    rotary: int = 8
    value: int = 16
    yarn_factor: float | None = None


@dataclass(frozen=True)
class Model:
    """RMSNorm, SwiGLU, rotary positions, no biases, no dropout, float32.

    Attributes:
      name: of the registry.
      layers, hidden, heads, groups, head_size, ffn: sizes; ``groups`` are heads of key and value.
      tied: the output layer is the embedding.
      qk_norm: q and k are normalised per head.
      latent, experts: multi-latent attention and experts, None for neither.
      vocabulary: entries; padded to ``padded_vocabulary`` rows, which the softmax sees.
      sequence: tokens of a row.
      batch: rows of a step. Experts want more: a gradient of fewer tokens than columns has
        directions that are rounding alone, which Newton-Schulz blows up.
    """

    name: str
    layers: int = 2
    hidden: int = 64
    heads: int = 4
    groups: int = 2
    head_size: int = 16
    ffn: int = 128
    tied: bool = False
    qk_norm: bool = False
    latent: Latent | None = None
    experts: Experts | None = None
    vocabulary: int = 255
    padded_vocabulary: int = 256
    sequence: int = 32
    batch: int = 4
