"""Ways to damage a legacy checkpoint."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from .legacy_files import FLAT, MODEL, Edit, edit, flip, place_of, read

Damage = Callable[[Path], object]
WISE_1 = "layer_wise_optimizer_1.pt"


def model(change: Edit, rank: str = "mp_rank_00") -> Damage:
    return lambda folder: edit(folder / rank / MODEL, change)


def flat(change: Edit, rank: str = "mp_rank_00_000") -> Damage:
    return lambda folder: edit(folder / rank / FLAT, change)


def content(data: bytes, name: str = MODEL) -> Damage:
    return lambda folder: next(iter(sorted(folder.glob(f"*/{name}")))).write_bytes(data)


def cut(keep: Callable[[int], int], name: str = MODEL) -> Damage:
    def damage(folder: Path) -> None:
        file = next(iter(sorted(folder.glob(f"*/{name}"))))
        data = file.read_bytes()
        file.write_bytes(data[: keep(len(data))])

    return damage


def swap(one: str, other: str) -> Damage:
    def damage(folder: Path) -> None:
        (folder / one).rename(folder / "aside")
        (folder / other).rename(folder / one)
        (folder / "aside").rename(folder / other)

    return damage


def rename(old: str, new: str) -> Damage:
    return lambda folder: (folder / old).rename(folder / new)


def flipped(tensor: Callable[[Any], torch.Tensor], name: str = MODEL) -> Damage:
    def damage(folder: Path) -> None:
        file = next(iter(sorted(folder.glob(f"*/{name}"))))
        flip(file, place_of(file, tensor(read(file))) + 5, 3)

    return damage


def remove(name: str) -> Damage:
    def damage(folder: Path) -> None:
        target = folder / name
        for file in target.iterdir() if target.is_dir() else ():
            file.unlink()
        target.rmdir() if target.is_dir() else target.unlink()

    return damage


def compressed(folder: Path) -> None:
    file = folder / "mp_rank_00" / MODEL
    with zipfile.ZipFile(file) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in entries.items():
            archive.writestr(name, data)


def put(*path: Any, value: Any) -> Edit:
    """Replace one item deep inside."""

    def change(state: Any) -> None:
        for key in path[:-1]:
            state = state[key]
        state[path[-1]] = value

    return change


def drop(*path: Any) -> Edit:
    def change(state: Any) -> None:
        for key in path[:-1]:
            state = state[key]
        del state[path[-1]]

    return change


def fill(value: float, *path: Any) -> Edit:
    """Overwrite one element of a tensor."""

    def change(state: Any) -> None:
        for key in path:
            state = state[key]
        state.view(-1)[3] = value

    return change


def exchange(path: tuple[Any, ...], one: Any, other: Any) -> Edit:
    def change(state: Any) -> None:
        for key in path:
            state = state[key]
        state[one], state[other] = state[other], state[one]

    return change


def without(prefix: str) -> Edit:
    def change(state: Any) -> None:
        for key in [k for k in state["model"] if k.startswith(prefix)]:
            del state["model"][key]

    return change


def renamed(old: str, new: str) -> Edit:
    def change(state: Any) -> None:
        state["model"] = {k.replace(old, new): v for k, v in state["model"].items()}

    return change


def swap_files(name: str, one: str, other: str) -> Damage:
    def damage(folder: Path) -> None:
        files = [folder / rank / name for rank in (one, other)]
        first, second = (file.read_bytes() for file in files)
        files[0].write_bytes(second)
        files[1].write_bytes(first)

    return damage


def twice(folder: Path) -> None:
    first = folder / "mp_rank_00" / "layer_wise_optimizer_0.pt"
    (folder / "mp_rank_00" / WISE_1).write_bytes(first.read_bytes())


def duplicate(one: str, other: str) -> Damage:
    def damage(folder: Path) -> None:
        (folder / other).mkdir()
        for file in (folder / one).iterdir():
            (folder / other / file.name).write_bytes(file.read_bytes())

    return damage
