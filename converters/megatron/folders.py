"""Which folder holds the checkpoint, in which of Megatron's formats, are its files all there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from converters.errors import CheckpointError

TRACKER = "latest_checkpointed_iteration.txt"
# First bytes of the small text files that stand for content kept elsewhere.
_POINTERS = (
    (b"version https://git-lfs.github.com/spec/", "git lfs pull"),
    (b"/annex/objects/", "git annex get"),
)
Format = Literal["torch_dist", "torch", "dcp"]
_DESCRIPTIONS = {
    "torch": "the legacy 'torch' format (mp_rank_*)",
    "dcp": "'torch_dcp' or 'fsdp_dtensor' (.metadata without metadata.json)",
}


def resolve(path: Path, iteration: int | None = None) -> Path:
    """The iteration's folder: ``path`` itself, or the one in it that is asked for or is the latest.

    Args:
      path: ``iter_XXXXXXX``, or the folder above with its tracker file.
      iteration: one that is not the latest.

    Raises:
      CheckpointError: no such folder or iteration, or a tracker that names none.
    """
    if not path.is_dir():
        raise CheckpointError(f"{path}: no such folder")
    found = sorted(child.name for child in path.glob("iter_*") if child.is_dir())
    if iteration is not None:
        return _numbered(path, iteration, found)
    tracker = path / TRACKER
    if not tracker.is_file():
        if found:
            raise CheckpointError(
                f"{tracker}: missing, so no save here was finished; name one of "
                f"{', '.join(found)} itself if you know that it was"
            )
        return path
    text = read(tracker).decode("utf-8", "replace").strip()
    if text != "release" and not (text.isascii() and text.isdecimal() and len(text) < 19):
        raise CheckpointError(f"{tracker}: {text[:40]!r} is neither an iteration nor 'release'")
    folder = path / ("release" if text == "release" else f"iter_{int(text):07d}")
    if not folder.is_dir():
        raise CheckpointError(f"{tracker} says {text}, but {folder.name} is not in {path}")
    return folder


def _numbered(path: Path, iteration: int, found: list[str]) -> Path:
    name = f"iter_{iteration:07d}"
    if path.name == name and not found:
        return path
    if name not in found:
        there = f"there are {', '.join(found)}" if found else "there is none"
        raise CheckpointError(f"{path}: no {name}; {there}")
    return path / name


def format_of(folder: Path) -> Format:
    """The format of an iteration's folder, from its files; ``dcp`` covers both FSDP back ends.

    Raises:
      CheckpointError: not a checkpoint, of a format that is not known, or incomplete.
    """
    if (folder / "metadata.json").is_file():
        backend = _backend(folder / "metadata.json")
        if backend != "torch_dist":
            raise CheckpointError(
                f"{folder / 'metadata.json'}: format {backend!r} cannot be read: load it with the "
                "Megatron that wrote it and save it with --ckpt-format torch_dist"
            )
        if not (folder / ".metadata").is_file():
            raise CheckpointError(f"{folder}: .metadata is missing, the copy is incomplete")
        return "torch_dist"
    if any(folder.glob("mp_rank_*")):
        return "torch"
    if (folder / ".metadata").is_file():
        return "dcp"
    raise CheckpointError(f"{folder}: no Megatron checkpoint: metadata.json is missing")


def require_torch_dist(folder: Path) -> None:
    """Raise CheckpointError, naming the format found, unless the folder holds ``torch_dist``."""
    found = format_of(folder)
    if found != "torch_dist":
        raise CheckpointError(
            f"{folder}: {_DESCRIPTIONS[found]}, only torch_dist can be read: save it again with "
            "--ckpt-format torch_dist"
        )


def read(file: Path) -> bytes:
    """The content of a small file.

    Raises:
      CheckpointError: missing, unreadable, or only a pointer to the content.
    """
    require_content(file)
    try:
        return file.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read: {error.strerror}") from error


def require_content(file: Path) -> None:
    """Raise CheckpointError unless the file is there with its content."""
    if not file.is_file():
        raise CheckpointError(f"{file}: missing, the copy of the checkpoint is incomplete")
    try:
        with file.open("rb") as stream:
            head = stream.read(64)
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read: {error.strerror}") from error
    for mark, command in _POINTERS:
        if head.startswith(mark):
            raise CheckpointError(f"{file}: only a pointer to its content: run `{command}` first")


def inside(folder: Path, relative: Any) -> Path:
    """A file that the metadata names, which must lie directly in the checkpoint's folder."""
    name = str(relative)
    if not name or name in (".", "..") or Path(name).name != name:
        raise CheckpointError(f"{folder / '.metadata'}: names the file {name!r} outside its folder")
    return folder / name


def _backend(file: Path) -> Any:
    try:
        described = json.loads(read(file))
        return described["sharded_backend"]
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{file}: not the description of a checkpoint: {error!r}") from error
