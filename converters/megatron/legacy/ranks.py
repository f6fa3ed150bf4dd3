"""The folders ``mp_rank_*`` of a legacy checkpoint: which rank wrote which, and are all there."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from converters.errors import CheckpointError
from converters.megatron import archives, folders, pickles

MODEL_FILE = "model_optim_rng.pt"
_FOLDER = re.compile(r"mp_rank_(\d{2,})((?:_\d{3,}){0,2})")
# Arguments on which every rank's file must agree, beside the iteration: they settle the layout.
_SHARED = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "virtual_pipeline_model_parallel_size",
    "expert_model_parallel_size",
    "expert_tensor_parallel_size",
    "world_size",
    "num_layers",
    "hidden_size",
    "num_experts",
    "padded_vocab_size",
    "optimizer",
    "bf16",
    "fp16",
    "use_distributed_optimizer",
)


class Place(NamedTuple):
    """Position of a rank in the grids of tensor, pipeline and expert parallelism."""

    tensor: int
    pipeline: int
    expert: int


@dataclass(frozen=True)
class Sizes:
    """How many ways the model was cut.

    Attributes:
      tensor, pipeline, expert: sizes of the three grids.
      expert_tensor: ways in which each expert was cut.
      virtual: model chunks of each pipeline stage.
    """

    tensor: int
    pipeline: int
    expert: int
    expert_tensor: int
    virtual: int

    def expert_part(self, place: Place) -> int:
        """Which of the cuts of its experts a rank holds."""
        return place.tensor % self.expert_tensor


@dataclass(frozen=True)
class Rank:
    """What one rank wrote: its folder, and the opened ``model_optim_rng.pt``."""

    place: Place
    folder: Path
    state: Mapping[str, Any]

    @property
    def file(self) -> Path:
        return self.folder / MODEL_FILE


@dataclass(frozen=True)
class Ranks:
    """Every rank of a checkpoint, and what all of them say.

    Attributes:
      folder: ``iter_XXXXXXX``.
      arguments: ``args`` of the training script.
      iteration: finished steps.
    """

    folder: Path
    sizes: Sizes
    arguments: Mapping[str, Any]
    iteration: int
    ranks: tuple[Rank, ...]


def open_ranks(folder: Path, opaque: tuple[str, ...] = ()) -> Ranks:
    """Open the files of every rank; no tensor is read.

    Raises:
      CheckpointError: a rank is missing or one too many, files of different runs or iterations, or
        a file that cannot be read.
    """
    names = sorted(f.name for f in folder.iterdir() if f.name.startswith("mp_rank_"))
    if not names:
        raise CheckpointError(f"{folder}: no folder mp_rank_*: not a checkpoint of format 'torch'")
    states = {name: _state(folder / name / MODEL_FILE, opaque) for name in names}
    first = folder / names[0] / MODEL_FILE
    arguments = arguments_of(states[names[0]], first)
    sizes = sizes_of(arguments, first)
    _require_agreement(folder, states)
    places = {name: _place(folder / name, sizes) for name in names}
    _require_complete(folder, places, sizes)
    _require_order(folder, places, states, sizes)
    ranks = tuple(
        Rank(place, folder / name, states[name])
        for name, place in sorted(places.items(), key=lambda item: item[1])
    )
    return Ranks(folder, sizes, arguments, _iteration(states[names[0]], first), ranks)


def arguments_of(state: Mapping[str, Any], file: Path) -> Mapping[str, Any]:
    """The arguments in one rank's file."""
    arguments = state.get("args")
    if not isinstance(arguments, pickles.Record) or not arguments.attributes:
        raise CheckpointError(f"{file}: has no 'args', so its layout is unknown: not of Megatron")
    return arguments.attributes


def _state(file: Path, opaque: tuple[str, ...]) -> Mapping[str, Any]:
    folders.require_content(file)
    value = archives.index(file, str(file), opaque=opaque)
    if not isinstance(value, dict):
        raise CheckpointError(f"{file}: holds no dictionary: not a checkpoint of Megatron")
    version = value.get("checkpoint_version", 0)
    if version != 3.0:
        raise CheckpointError(
            f"{file}: checkpoint_version is {version!r}, expected 3.0: load and save it once with "
            "a Megatron of 2021 or later, which reorders the attention weights"
        )
    return value


def sizes_of(arguments: Mapping[str, Any], file: Path) -> Sizes:
    """How many ways the arguments in a file say that the model was cut."""

    def size(name: str, default: int) -> int:
        value = arguments.get(name)
        value = default if value is None else value
        if not isinstance(value, int) or value < 1:
            raise CheckpointError(f"{file}: its arguments say {name}={value!r}")
        return value

    tensor = size("tensor_model_parallel_size", 1)
    expert_tensor = size("expert_tensor_parallel_size", tensor)
    if arguments.get("num_experts") and tensor % expert_tensor:
        raise CheckpointError(
            f"{file}: expert_tensor_parallel_size {expert_tensor} does not divide "
            f"tensor_model_parallel_size {tensor}, so the files cannot hold every part of the "
            "experts: save with --ckpt-format torch_dist"
        )
    return Sizes(
        tensor,
        size("pipeline_model_parallel_size", 1),
        size("expert_model_parallel_size", 1),
        expert_tensor if arguments.get("num_experts") else tensor,
        size("virtual_pipeline_model_parallel_size", 1),
    )


def _iteration(state: Mapping[str, Any], file: Path) -> int:
    value = state.get("iteration")
    if not isinstance(value, int):
        raise CheckpointError(f"{file}: 'iteration' is {value!r}")
    return value


def _require_agreement(folder: Path, states: Mapping[str, Mapping[str, Any]]) -> None:
    first, *others = states
    wanted = arguments_of(states[first], folder / first / MODEL_FILE)
    iteration = _iteration(states[first], folder / first / MODEL_FILE)
    for name in others:
        file = folder / name / MODEL_FILE
        seen = _iteration(states[name], file)
        if seen != iteration:
            raise CheckpointError(
                f"{file}: iteration {seen}, but {first} is of iteration {iteration}: the folder "
                "mixes two checkpoints, copy all ranks of one again"
            )
        arguments = arguments_of(states[name], file)
        for argument in _SHARED:
            if arguments.get(argument) != wanted.get(argument):
                raise CheckpointError(
                    f"{file}: {argument}={arguments.get(argument)!r}, but {first} says "
                    f"{wanted.get(argument)!r}: the folder mixes two runs"
                )


def _place(folder: Path, sizes: Sizes) -> Place:
    """The rank behind a folder's name; two numbers mean pipeline or expert, by the arguments."""
    match = _FOLDER.fullmatch(folder.name)
    numbers = [int(n) for n in match[2].split("_")[1:]] if match else []
    expected = (sizes.pipeline > 1) + (sizes.expert > 1)
    if match is None or len(numbers) != expected:
        raise CheckpointError(
            f"{folder}: {len(numbers) + 1} numbers in the name, but its arguments (pipeline "
            f"{sizes.pipeline}, expert {sizes.expert}) call for {expected + 1}: wrong set of files"
        )
    pipeline = numbers.pop(0) if sizes.pipeline > 1 else 0
    return Place(int(match[1]), pipeline, numbers.pop(0) if sizes.expert > 1 else 0)


def _require_complete(folder: Path, places: Mapping[str, Place], sizes: Sizes) -> None:
    """Every rank that writes must be there, and none beyond."""
    writers = range(max(sizes.tensor, sizes.expert_tensor * sizes.expert))
    wanted = {
        Place(rank % sizes.tensor, stage, rank // sizes.expert_tensor % sizes.expert)
        for rank in writers
        for stage in range(sizes.pipeline)
    }
    missing = sorted(wanted - set(places.values()))
    if missing:
        raise CheckpointError(
            f"{folder}: {len(missing)} of {len(wanted)} ranks are missing, first that of "
            f"{_described(missing[0], sizes)}: copy the whole checkpoint"
        )
    for name, place in places.items():
        if place not in wanted:
            raise CheckpointError(
                f"{folder / name}: no rank of this run (tensor {sizes.tensor}, pipeline "
                f"{sizes.pipeline}, expert {sizes.expert}) writes it: it is of another checkpoint, "
                "remove it"
            )


def _described(place: Place, sizes: Sizes) -> str:
    name = f"mp_rank_{place.tensor:02d}"
    name += f"_{place.pipeline:03d}" if sizes.pipeline > 1 else ""
    return name + (f"_{place.expert:03d}" if sizes.expert > 1 else "")


def _require_order(
    folder: Path,
    places: Mapping[str, Place],
    states: Mapping[str, Mapping[str, Any]],
    sizes: Sizes,
) -> None:
    """Compare each folder's name with the rank that its file says it is from.

    Tools that write every rank from one process leave one number in all files: then there is
    nothing to compare.
    """
    seen = {name: states[name]["args"].attributes.get("rank") for name in places}
    if len(set(seen.values())) < len(seen) or not all(isinstance(r, int) for r in seen.values()):
        return
    attributes = states[next(iter(places))]["args"].attributes
    for name, place in places.items():
        wanted = _position(seen[name], sizes, attributes)
        if any(w not in (None, p) for w, p in zip(wanted, place, strict=True)):
            raise CheckpointError(
                f"{folder / name / MODEL_FILE}: written by rank {seen[name]}, whose folder is not "
                f"{name}: the files of two ranks were swapped, copy the checkpoint again"
            )


def _position(
    rank: int, sizes: Sizes, arguments: Mapping[str, Any]
) -> tuple[int, int | None, int | None]:
    """Tensor, pipeline and expert position of a global rank; None where it is not known."""
    world = arguments.get("world_size")
    stage = 0
    if sizes.pipeline > 1:
        if not isinstance(world, int) or world % sizes.pipeline:
            return rank % sizes.tensor, None, None
        if arguments.get("use_tp_pp_dp_mapping"):
            return rank % sizes.tensor, None, None
        stage, rank = divmod(rank, world // sizes.pipeline)
    return rank % sizes.tensor, stage, rank // sizes.expert_tensor % sizes.expert
