"""The distributed optimizer's state in the legacy format: ``distrib_optim.pt`` of each rank."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from converters.errors import CheckpointError
from converters.megatron import archives, folders, pickles
from converters.megatron.archives import Stored

from . import flat
from .groups import Owned, group_of
from .kept import part
from .parameters import Parameter
from .ranks import Rank, Ranks

FLAT_FILE = "distrib_optim.pt"
_COALESCED = "buckets_coalesced"


def owned(
    rank: Rank, parameters: Sequence[Parameter], ranks: Ranks, opaque: tuple[str, ...]
) -> list[Owned]:
    """Every trained parameter of a rank with its master and moments.

    Raises:
      CheckpointError: the file is missing or damaged, or its buffers do not fit the parameters.
    """
    file = rank.folder / FLAT_FILE
    folders.require_content(file)
    saved = archives.index(file, str(file), opaque=opaque)
    if ranks.arguments.get("overlap_param_gather_with_optimizer_step"):
        raise CheckpointError(
            f"{file}: overlap_param_gather_with_optimizer_step divides the optimizer in a way that "
            f"is not decoded: {flat.ADVICE}"
        )
    trained = [p for p in parameters if p.trained]
    kinds = [
        [p for p in trained if group_of(p, ranks.arguments).expert == expert]
        for expert in (False, True)
    ]
    kinds = [kind for kind in kinds if kind]
    chain = saved if isinstance(saved, list) else [saved]
    if len(chain) != len(kinds):
        raise CheckpointError(
            f"{file}: the state of {len(chain)} optimizers, but the parameters make {len(kinds)} "
            f"(dense, experts): {flat.ADVICE}"
        )
    found: list[Owned] = []
    for state, kind in zip(chain, kinds, strict=True):
        if state is None and len(chain) > 1:
            # This rank is not the first of its data-parallel group: another one's file has it.
            found += [Owned(parameter, {}) for parameter in kind]
        else:
            found += _of_buffers(state, kind, ranks, str(file))
    return found


def _of_buffers(
    state: Any, parameters: Sequence[Parameter], ranks: Ranks, file: str
) -> list[Owned]:
    if not isinstance(state, dict) or state.get(_COALESCED) is not True:
        raise CheckpointError(
            f"{file}: buckets are not coalesced, as in old versions: load it and {flat.ADVICE}"
        )
    buffers = _buffers(parameters)
    numbers = sorted(k for k in state if k != _COALESCED)
    if numbers != list(range(len(buffers))):
        raise CheckpointError(
            f"{file}: buffers {numbers}, but the parameters make {len(buffers)}: {flat.ADVICE}"
        )
    found: list[Owned] = []
    for number, members in enumerate(buffers):
        found += _of_buffer(state[number], members, ranks, f"{file}: buffer {number}")
    return found


def _buffers(parameters: Sequence[Parameter]) -> list[list[Parameter]]:
    """One for each dtype of each model chunk, as they first appear."""
    buffers: dict[tuple[int, str], list[Parameter]] = {}
    for parameter in parameters:
        key = parameter.chunk, parameter.tensor.dtype.name
        buffers.setdefault(key, []).append(parameter)
    return [buffers[key] for key in sorted(buffers, key=lambda k: k[0])]


def _of_buffer(
    by_dtype: Any, members: Sequence[Parameter], ranks: Ranks, source: str
) -> list[Owned]:
    tensors = _tensors(by_dtype, members, source)
    layout = flat.lay_out(
        [math.prod(p.tensor.shape) for p in members],
        [_is_shared(p, ranks) for p in members],
        _bucket_size(members[0], ranks),
    )
    length = tensors["param"].shape[0]
    if sum(layout.lengths) != length:
        raise CheckpointError(
            f"{source} has {length} elements, the parameters call for {sum(layout.lengths)}, so "
            f"which is which is not certain: {flat.ADVICE}"
        )
    starts = [sum(layout.lengths[: slot.bucket]) + slot.start for slot in layout.slots]
    found = []
    for parameter, start in zip(members, starts, strict=True):
        states = {
            state: part(
                tensors[name],
                start,
                parameter.tensor.shape,
                f"{source} {name}[{start}:] ({parameter.key})",
            )
            for name, state in flat.FLAT_STATES.items()
        }
        found.append(Owned(parameter, states))
    return found


def _tensors(by_dtype: Any, members: Sequence[Parameter], source: str) -> dict[str, Stored]:
    """The flat tensors of a buffer, all of one length."""
    if not isinstance(by_dtype, dict) or len(by_dtype) != 1:
        raise CheckpointError(f"{source} is not of one dtype: {flat.ADVICE}")
    (dtypes, state), *_ = by_dtype.items()
    written = dtypes[0] if isinstance(dtypes, tuple) and dtypes else None
    if not isinstance(written, pickles.DType) or written.name != members[0].tensor.dtype.name:
        raise CheckpointError(
            f"{source} is of {dtypes}, its parameters are {members[0].tensor.dtype}: {flat.ADVICE}"
        )
    tensors = {k: v for k, v in state.items() if isinstance(v, Stored)}
    if set(tensors) != set(flat.FLAT_STATES):
        raise CheckpointError(
            f"{source} keeps {sorted(tensors)}, expected {sorted(flat.FLAT_STATES)}: only Adam's "
            f"state is decoded; {flat.ADVICE}"
        )
    shapes = {tensor.shape for tensor in tensors.values()}
    if len(shapes) != 1 or len(next(iter(shapes))) != 1:
        raise CheckpointError(f"{source} has tensors of shapes {sorted(shapes)}: damaged")
    return tensors


def _is_shared(parameter: Parameter, ranks: Ranks) -> bool:
    """Embeddings that the first and the last stage both hold have a bucket to themselves."""
    tied = not ranks.arguments.get("untie_embeddings_and_output_weights")
    ends = parameter.name.endswith(("word_embeddings.weight", "output_layer.weight"))
    return tied and ranks.sizes.pipeline > 1 and ends


def _bucket_size(parameter: Parameter, ranks: Ranks) -> int | None:
    """Elements after which Megatron closes a bucket; None where it makes only one."""
    arguments: Mapping[str, Any] = ranks.arguments
    first = parameter.place.pipeline == 0 and parameter.chunk == 0
    if not arguments.get("overlap_grad_reduce") or not first:
        return None
    if arguments.get("ddp_num_buckets"):
        raise CheckpointError(
            f"{ranks.folder}: ddp_num_buckets={arguments['ddp_num_buckets']}: how the optimizer's "
            f"buffers were cut is not known; {flat.ADVICE}"
        )
    size = arguments.get("ddp_bucket_size")
    if size is None:
        groups = (arguments.get("data_parallel_size") or 1) * (
            arguments.get("context_parallel_size") or 1
        )
        size = max(40_000_000, 1_000_000 * groups)
    return int(size)
