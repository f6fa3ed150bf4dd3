"""What each rank's model holds, in Megatron's order, under names that hold for the whole model."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from converters.errors import CheckpointError
from converters.megatron import names
from converters.megatron.archives import Stored
from converters.source import SetAside

from .kept import Kept, kept
from .ranks import Place, Rank, Ranks

_LAYER = re.compile(r"decoder\.layers\.(\d+)\.(.+)")
# Experts of older versions, all of a rank in one matrix.
_GROUPED = re.compile(r"(.+\.mlp\.experts)\.weight([12])")


@dataclass(frozen=True)
class Parameter:
    """One parameter, or a buffer, of one rank.

    Attributes:
      place: the rank.
      chunk: model chunk of its pipeline stage.
      key: as in the file.
      name: canonical name of the whole model's parameter (``converters.source``).
      expert: which of the rank's experts; None if it is no expert, or all of them in one tensor.
      grouped: 1 or 2 for such a tensor, ``weight1`` or ``weight2``.
      tensor: the rank's part.
      trained: whether an optimizer owns it.
    """

    place: Place
    chunk: int
    key: str
    name: str
    expert: int | None
    grouped: int
    tensor: Kept
    trained: bool

    @property
    def is_expert(self) -> bool:
        return ".mlp.experts." in f".{self.name}"


def parameters(ranks: Ranks) -> tuple[dict[Place, tuple[Parameter, ...]], tuple[SetAside, ...]]:
    """Of every rank, in the order of its ``named_parameters()``; and what is no tensor.

    A state dict keeps that order. Layers are numbered afresh in every chunk; the chunks follow each
    other as the model runs through them, so counting their layers gives the global numbers however
    the stages were cut.

    Raises:
      CheckpointError: chunks or layers are missing, or entries of unknown kind.
    """
    chunks = {(rank.place, n): _chunk(rank, n, ranks) for rank in ranks.ranks for n in _each(ranks)}
    offsets = _offsets(ranks, chunks)
    found: dict[Place, tuple[Parameter, ...]] = {}
    aside: list[SetAside] = []
    for rank in ranks.ranks:
        own: list[Parameter] = []
        for number in _each(ranks):
            for key, value in chunks[rank.place, number].items():
                if isinstance(value, Stored) and not key.endswith("_extra_state"):
                    first = offsets[rank.place.pipeline, number]
                    own.append(_parameter(rank, number, key, value, first))
                elif reason := _reason(rank, key, value):
                    aside.append(SetAside(f"{rank.folder.name}: {key}", reason))
        found[rank.place] = tuple(own)
    _require_ends(ranks, found)
    return found, tuple(aside)


def _each(ranks: Ranks) -> range:
    return range(ranks.sizes.virtual)


def _chunk(rank: Rank, number: int, ranks: Ranks) -> Mapping[str, Any]:
    key = f"model{number}" if ranks.sizes.virtual > 1 else "model"
    chunk = rank.state.get(key)
    if not isinstance(chunk, dict):
        raise CheckpointError(
            f"{rank.file}: has no {key!r}; its arguments say {ranks.sizes.virtual} model chunks "
            "for each pipeline stage: the file is incomplete"
        )
    if f"model{ranks.sizes.virtual}" in rank.state:
        raise CheckpointError(f"{rank.file}: has more model chunks than its arguments say")
    if "language_model" in chunk:
        raise CheckpointError(
            f"{rank.file}: the model is of Megatron before its core library ('language_model'): "
            "convert it with Megatron's tools/checkpoint/convert.py to --ckpt-format torch_dist"
        )
    return chunk


def _offsets(
    ranks: Ranks, chunks: Mapping[tuple[Place, int], Mapping[str, Any]]
) -> dict[tuple[int, int], int]:
    """Global number of the first layer of every (stage, chunk)."""
    offsets, total = {}, 0
    stages = [(p, n) for n in _each(ranks) for p in range(ranks.sizes.pipeline)]
    for pipeline, number in stages:
        counts = {
            _layers(rank, chunks[rank.place, number])
            for rank in ranks.ranks
            if rank.place.pipeline == pipeline
        }
        if len(counts) != 1:
            raise CheckpointError(
                f"{ranks.folder}: ranks of pipeline stage {pipeline} hold {sorted(counts)} layers"
            )
        offsets[pipeline, number] = total
        total += counts.pop()
    expected = ranks.arguments.get("num_layers")
    if total != expected:
        raise CheckpointError(
            f"{ranks.folder}: the stages hold {total} layers, num_layers is {expected}: layers "
            "were lost, or files of another run are among them"
        )
    return offsets


def _layers(rank: Rank, chunk: Iterable[str]) -> int:
    numbers = {int(match[1]) for key in chunk if (match := _LAYER.fullmatch(key))}
    if numbers != set(range(len(numbers))):
        raise CheckpointError(f"{rank.file}: layers {sorted(numbers)} of a chunk: one was lost")
    return len(numbers)


def _parameter(rank: Rank, chunk: int, key: str, tensor: Stored, first_layer: int) -> Parameter:
    match = _LAYER.fullmatch(key)
    full = f"decoder.layers.{int(match[1]) + first_layer}.{match[2]}" if match else key
    grouped = _GROUPED.fullmatch(full)
    if grouped:
        name, expert = f"{grouped[1]}.linear_fc{grouped[2]}.weight", None
    else:
        name, expert, half = names.parse(full)
        if half is not None:
            raise CheckpointError(f"{rank.file}: {key} is half a tensor, unknown in this format")
    return Parameter(
        rank.place,
        chunk,
        key,
        name,
        expert,
        int(grouped[2]) if grouped else 0,
        kept(tensor, f"{rank.file}: {key}"),
        not any(name.endswith(f".{buffer}") for buffer in names.BUFFERS),
    )


def _reason(rank: Rank, key: str, value: Any) -> str:
    """Why an entry is no parameter; empty if there is nothing to say about it."""
    if key.endswith("_extra_state"):
        return "" if value is None else "scales of a quantized format: weights are read in full"
    raise CheckpointError(f"{rank.file}: {key} of the model is a {type(value).__name__}")


def _require_ends(ranks: Ranks, found: Mapping[Place, tuple[Parameter, ...]]) -> None:
    """The first chunk embeds and the last one ends; otherwise stages were swapped."""
    for place, own in found.items():
        names_of = {(p.name, p.chunk) for p in own}
        if place.pipeline == 0 and ("embedding.word_embeddings.weight", 0) not in names_of:
            raise CheckpointError(
                f"{_file(ranks, place)}: the first pipeline stage has no embedding: files of two "
                "ranks were swapped, or are of another run"
            )
        last = place.pipeline == ranks.sizes.pipeline - 1
        # A stage of its own may hold the loss alone, or predict further tokens.
        ends = ("decoder.final_layernorm.weight", "output_layer.weight")
        if last and not any((name, ranks.sizes.virtual - 1) in names_of for name in ends):
            raise CheckpointError(
                f"{_file(ranks, place)}: the last pipeline stage has no decoder.final_layernorm: "
                "files of two ranks were swapped, or are of another run"
            )


def _file(ranks: Ranks, place: Place) -> str:
    return str(next(rank.file for rank in ranks.ranks if rank.place == place))
