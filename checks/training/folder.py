"""The folder of a recorded Megatron run: checkpoints, losses, tokens.

    DIR/iter_0000020/            checkpoints of any format that muon-convert reads
    DIR/losses.txt               or another format and name: see ``LOSS_NAMES``
    DIR/tokens.npy               integers [steps, batch, sequence + 1]
    DIR/run.json                 optional, overrides what is found

Losses and tokens may also lie in the folder above, where several runs share them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from converters.errors import CheckpointError
from converters.megatron.open import open_source
from converters.source import Key, Source, State

from .description import Description, read_description
from .errors import RunError
from .loss_formats import FORMATS
from .losses import Losses, read_losses
from .tokens import Tokens, read_tokens, require_fit

# Where losses are looked for, in DIR and then above it; the first that is there wins.
LOSS_NAMES = (
    "losses.txt",
    "losses.jsonl",
    "metrics.jsonl",
    "events.out.tfevents.*",
    "tensorboard",
    "*.log",
)
TOKEN_NAMES = ("tokens.npy",)
_ITERATION = re.compile(r"iter_(\d+)")
_EMBEDDING = Key("embedding.word_embeddings.weight", State.WEIGHT)


@dataclass(frozen=True)
class RecordedRun:
    """A run of another trainer, checked to be whole.

    Attributes:
      folder: as it was named.
      checkpoints: folder of each checkpoint from which a step with a known batch follows, by its
        iteration: the number of finished steps, hence the index of the next; ascending.
      losses: of the run.
      tokens: integers [steps, batch, sequence + 1], memory-mapped; ``tokens[s - first_batch]`` is
        the batch of step s.
      tokens_path: their file.
      first_batch: step of ``tokens[0]``.
      floor: losses of the same run with every weight moved by one unit in the last place at its
        start, over some of the same steps; None where it was not recorded.
      notes: what was assumed, left out or found beside.
      spec: MuonSpec fields that the checkpoint's arguments do not record.
    """

    folder: Path
    checkpoints: Mapping[int, Path]
    losses: Losses
    tokens: Tokens
    tokens_path: Path
    first_batch: int = 0
    floor: Losses | None = None
    notes: tuple[str, ...] = ()
    spec: Mapping[str, Any] = field(default_factory=dict)

    @property
    def first_step(self) -> int:
        """The step of the first loss."""
        return self.losses.first_step

    @property
    def end_step(self) -> int:
        """The step after the last that has both a loss and a batch."""
        return min(self.losses.end_step, self.first_batch + len(self.tokens))


def open_run(folder: Path) -> RecordedRun:
    """Find, read and check everything but the tensors of the checkpoints.

    Raises:
      RunError: something is missing, damaged, or of another run; the message names the file, the
        value and what to do.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise RunError(f"{folder}: no such folder")
    folder = folder.absolute()
    only = [folder] if _ITERATION.fullmatch(folder.name) else None
    folder = folder.parent if only else folder
    told = read_description(folder)
    losses_path = told.losses or _find(folder, LOSS_NAMES, "losses")
    losses = read_losses(losses_path, told.first_step, FORMATS)
    tokens_path = told.tokens or _find(folder, TOKEN_NAMES, "tokens")
    tokens = read_tokens(tokens_path)
    _require_batches(losses_path, losses, tokens_path, tokens, told.first_step)
    checkpoints, notes = _checkpoints(folder, only or told.checkpoints, losses, losses_path)
    sources = {path: _open(path) for path in checkpoints.values()}
    for path, source in sources.items():
        vocabulary = _vocabulary(path, source, losses, losses_path, told)
        if path == next(iter(sources)):
            require_fit(tokens_path, tokens, vocabulary, dict(source.run.arguments))
    floor = read_losses(told.floor, told.first_step, FORMATS) if told.floor else None
    if floor is not None:
        _require_overlap(told.floor, floor, losses_path, losses)
    return RecordedRun(
        folder,
        checkpoints,
        losses,
        tokens,
        tokens_path,
        told.first_step,
        floor,
        (*told.notes, *losses.notes, *notes),
        told.spec,
    )


def _find(folder: Path, names: tuple[str, ...], what: str) -> Path:
    for place in (folder, folder.parent):
        for name in names:
            found = sorted(place.glob(name))
            if found and name.startswith("events"):
                return place
            if len(found) > 1:
                listed = ", ".join(path.name for path in found)
                raise RunError(
                    f"{place}: several files may hold the {what} ({listed}): name one in "
                    f'{folder / "run.json"}: {{"{what}": "{found[0].name}"}}'
                )
            if found:
                return found[0]
    shares = sorted(folder.glob("tokens-*.npy")) if what == "tokens" else []
    if shares:
        listed = " ".join(f"--tokens {path.name}" for path in shares)
        raise RunError(f"{folder}: the tokens lie in shares: muon-check record {listed} ...")
    raise RunError(
        f"{folder}: no {what} in it or in the folder above: expected {' or '.join(names)}, or "
        f'"{what}" in run.json'
    )


def _require_batches(
    losses_path: Path, losses: Losses, tokens_path: Path, tokens: Tokens, first_batch: int
) -> None:
    """Every loss needs its batch; more batches than losses do no harm."""
    if losses.first_step < first_batch or losses.end_step > first_batch + len(tokens):
        raise RunError(
            f"{losses_path} has the losses of the steps {losses.first_step} to "
            f"{losses.end_step - 1}, {tokens_path} the batches of {first_batch} to "
            f"{first_batch + len(tokens) - 1}: every loss needs its batch; cut the losses, or say "
            'in run.json which step comes first: {"first_step": ...}'
        )


def _checkpoints(
    folder: Path, given: list[Path] | None, losses: Losses, losses_path: Path
) -> tuple[dict[int, Path], list[str]]:
    """Usable checkpoints by iteration, and what was found besides."""
    found = {int(p.name.removeprefix("iter_")): p for p in iterations(given or [folder])}
    usable = {i: p for i, p in sorted(found.items()) if losses.first_step <= i < losses.end_step}
    outside = sorted(found.keys() - usable.keys())
    if not usable:
        raise RunError(
            f"{found[outside[0]]}: after it comes step {outside[0]}, but {losses_path} has the "
            f"losses of the steps {losses.first_step} to {losses.end_step - 1}"
        )
    listed = ", ".join(map(str, outside))
    return usable, [f"checkpoints outside the losses: {listed}"] if outside else []


def iterations(places: list[Path]) -> list[Path]:
    """Folders of iterations: each place is one, or holds some.

    Raises:
      RunError: a place is neither.
    """
    found = []
    for place in places:
        inside = [p for p in sorted(place.glob("iter_*")) if _ITERATION.fullmatch(p.name)]
        if not (inside or _ITERATION.fullmatch(place.name)):
            raise RunError(f"{place}: no checkpoint in it: expected a folder such as iter_0000020")
        found += inside or [place]
    return found


def _open(path: Path) -> Source:
    try:
        return open_source(path)
    except CheckpointError as error:
        raise RunError(str(error)) from error


def _vocabulary(
    path: Path, source: Source, losses: Losses, losses_path: Path, told: Description
) -> int:
    """Rows of the embedding, which take part in the softmax, so they must be those of the run."""
    if _EMBEDDING not in source.tensors:
        raise RunError(f"{path}: no {_EMBEDDING.parameter}: not a checkpoint of a language model")
    rows = source.tensors[_EMBEDDING].shape[0]
    claims = (
        (losses.padded_vocab_size, str(losses_path)),
        (told.padded_vocab_size, str(told.file)),
        (source.run.arguments.get("padded_vocab_size"), "its own arguments"),
    )
    for claimed, where in claims:
        if claimed and claimed != rows:
            raise RunError(
                f"{path}: the vocabulary is padded to {rows} rows, but to {claimed} in the run of "
                f"{where}: padding takes part in the softmax, so the losses are of another model"
            )
    return rows


def _require_overlap(
    floor_path: Path | None, floor: Losses, losses_path: Path, losses: Losses
) -> None:
    if floor.end_step <= losses.first_step or losses.end_step <= floor.first_step:
        raise RunError(
            f"{floor_path}: losses of the steps {floor.first_step} to {floor.end_step - 1}, none "
            f"of them in {losses_path}"
        )
