"""Layer-wise Muon in the legacy format: ``layer_wise_optimizer_<rank>.pt``, one of each DP rank.

Whole parameters are dealt out to data-parallel ranks, and the files say neither which nor in what
order. A parameter is recognized by its fp32 master, which rounds to its weight; where that is not
one parameter and one only, the checkpoint is refused.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from converters.errors import CheckpointError
from converters.megatron import archives, folders
from converters.megatron.archives import Stored
from converters.megatron.masters import same_bits
from converters.source import State

from .groups import (
    ADVICE,
    Owned,
    Saved,
    checked,
    children,
    group_of,
    kind_of,
    saved_groups,
    states_of,
)
from .parameters import Parameter
from .ranks import Rank, Ranks

FILES = "layer_wise_optimizer_*.pt"
_NUMBER = re.compile(r"layer_wise_optimizer_(\d+)\.pt")
# Elements that are compared first.
_GLANCE = 4096


def owned(
    rank: Rank, parameters: Sequence[Parameter], ranks: Ranks, opaque: tuple[str, ...]
) -> list[Owned]:
    """Every trained parameter of a rank with its states, from the files of all DP ranks.

    Raises:
      CheckpointError: files are missing or damaged, or parameters cannot be told apart.
    """
    found: list[Owned] = []
    left = [p for p in parameters if p.trained]
    for file in _files(rank, ranks):
        folders.require_content(file)
        saved = archives.index(file, str(file), opaque=opaque)
        for number, child in enumerate(children(saved, str(file))):
            for group in saved_groups(number, child, str(file)):
                found += _recognized(group, left, ranks, str(file))
    if left:
        raise CheckpointError(
            f"{rank.folder}: no file {FILES} has the state of {len(left)} parameters, among them "
            f"{left[0].name}: a file is missing or of another iteration; copy them all again, or "
            f"{ADVICE}"
        )
    return found


def _files(rank: Rank, ranks: Ranks) -> list[Path]:
    if ranks.sizes.expert > 1:
        raise CheckpointError(
            f"{rank.folder}: layer-wise optimizer state of expert-parallel ranks is not decoded "
            f"from this format: {ADVICE}"
        )
    numbered = {
        int(match[1]): file
        for file in rank.folder.glob(FILES)
        if (match := _NUMBER.fullmatch(file.name))
    }
    expected = ranks.arguments.get("data_parallel_size")
    expected = expected if isinstance(expected, int) else len(numbered)
    wrong = sorted(set(numbered) ^ set(range(expected)))
    if wrong or not numbered:
        number = wrong[0] if wrong else 0
        raise CheckpointError(
            f"{rank.folder / f'layer_wise_optimizer_{number}.pt'}: "
            + ("missing" if number not in numbered else "one too many")
            + f", data_parallel_size is {expected}: the optimizer's state needs all of them"
        )
    return [numbered[number] for number in sorted(numbered)]


def _recognized(saved: Saved, left: list[Parameter], ranks: Ranks, file: str) -> list[Owned]:
    """The group's parameters, which are taken from those that are left."""
    if not saved.states:
        return []
    group = kind_of(saved, ranks.arguments, file)
    if len(saved.masters) != len(saved.states):
        raise CheckpointError(
            f"{file}: a group of {len(saved.states)} parameters has {len(saved.masters)} fp32 "
            f"masters, so nothing tells which parameters they are: {ADVICE}"
        )
    found = []
    for state, master in zip(saved.states, saved.masters, strict=True):
        fitting = [p for p in left if group_of(p, ranks.arguments) == group]
        parameter = _one(master, fitting, file)
        kept = states_of(parameter, state, file)
        kept[State.MASTER] = checked(parameter, "fp32_param", master, file)
        found.append(Owned(parameter, kept))
        left.remove(parameter)
    return found


def _one(master: Stored, candidates: Sequence[Parameter], file: str) -> Parameter:
    """The only candidate whose weight the master rounds to."""
    fitting = [p for p in candidates if p.tensor.shape == master.shape and _glance(master, p)]
    fitting = [p for p in fitting if _is_master(master, p)] if len(fitting) > 1 else fitting
    if len(fitting) != 1:
        seen = ", ".join(p.name for p in fitting[:3]) or "no weight"
        raise CheckpointError(
            f"{file}: an fp32 master of shape {master.shape} rounds to {seen}, expected one: "
            f"a file is of another iteration, or its parameters cannot be told apart: {ADVICE}"
        )
    return fitting[0]


def _glance(master: Stored, parameter: Parameter) -> bool:
    weight = parameter.tensor.load().reshape(-1)[:_GLANCE]
    return same_bits(master.read().reshape(-1)[:_GLANCE].astype(weight.dtype), weight)


def _is_master(master: Stored, parameter: Parameter) -> bool:
    weight = parameter.tensor.load()
    return same_bits(np.asarray(master.read()).astype(weight.dtype), weight)
