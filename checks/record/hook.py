"""Record a Megatron-LM run as it trains: every batch of tokens and every loss, in full precision.

Two lines in the training script, before ``pretrain(...)``:

    from checks.record.hook import record
    record("RUN")

``RUN`` is then what ``muon-check parity --run`` reads, with the checkpoints that the run saves.
With several data-parallel ranks each writes its own rows: ``muon-check record`` joins them.

Needs NumPy alone, and Megatron as the script has already imported it. Nothing that Megatron
computes is changed: its ``train_step`` is wrapped, and the ``__next__`` of its data iterator.
"""

from __future__ import annotations

import functools
import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from .appending import TokenFile, append_row

LOSSES, TOKENS, DESCRIPTION = "losses.jsonl", "tokens.npy", "run.json"
_LOSS_KEYS = ("lm loss", "loss")
_NEVER = "is not imported yet: call record() after `from megatron.training import pretrain`"


def record(folder: str | Path, training: ModuleType | None = None) -> None:
    """Record into ``folder`` from the next step on.

    A run that goes on in the same folder adds to it; steps that are trained again count as they
    were last.

    Args:
      training: the module with ``train_step``; ``megatron.training.training`` by default.

    Raises:
      RuntimeError: Megatron is not imported yet, or it is recorded already.
    """
    module = training or sys.modules.get("megatron.training.training")
    if module is None:
        raise RuntimeError(f"megatron.training {_NEVER}")
    if hasattr(module.train_step, "recorder"):
        raise RuntimeError(f"already recording into {module.train_step.recorder.folder}")
    recorder = Recorder(Path(folder).absolute(), module)
    module.train_step = recorder.around(module.train_step)  # type: ignore[attr-defined]


class Recorder:
    """Keeps the batches of the step that runs, and writes them with its loss when it is done."""

    def __init__(self, folder: Path, training: ModuleType) -> None:
        self.folder = folder
        self.training = training
        self.place = Place()
        self.tokens: TokenFile | None = None
        self.rows: list[np.ndarray[Any, Any]] = []
        self.inside = False
        self.is_first = True
        self.is_on = True

    def around(self, train_step: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(train_step)
        def recorded(forward_step: Any, data_iterator: Any, *rest: Any, **named: Any) -> Any:
            if not self.is_on:
                return train_step(forward_step, data_iterator, *rest, **named)
            arguments = self.training.get_args()
            step = named.get("iteration")
            step = int(arguments.curr_iteration if step is None else step)
            self._watch(data_iterator)
            self.rows, self.inside = [], True
            try:
                answer = train_step(forward_step, data_iterator, *rest, **named)
            finally:
                self.inside = False
            self._keep(step, answer[0], bool(answer[1]), arguments)
            return answer

        recorded.recorder = self  # type: ignore[attr-defined]
        return recorded

    def _watch(self, data_iterator: Any) -> None:
        """Let the iterator's class tell which batches it gives; virtual stages have several."""
        several = data_iterator if isinstance(data_iterator, list) else [data_iterator]
        for kind in {type(one) for one in several if one is not None}:
            if not hasattr(kind.__next__, "recorder"):
                kind.__next__ = _watched(kind.__next__)
            kind.__next__.recorder = self

    def _keep(self, step: int, losses: dict[str, Any], skipped: bool, arguments: Any) -> None:
        """Write the step. A first step that cannot be is an error, a later one ends recording."""
        if skipped and self.is_first:
            return  # Loss scaling looks for its start; so does the recording.
        try:
            if skipped:
                raise ValueError(f"step {step} was skipped, so there is no comparison past it")
            if self.is_first:
                self._begin(step, arguments)
            if self.tokens is not None:
                self.tokens.write(step, self._batch(arguments))
            if losses and self.place.writes_losses:
                row = {"step": step, "loss": _loss_of(losses)}
                append_row(self.folder / LOSSES, row)
        except (OSError, ValueError) as error:
            if self.is_first:
                raise
            self.is_on = False
            warnings.warn(f"recording ended before step {step}: {error}", stacklevel=3)
        self.is_first = False

    def _begin(self, step: int, arguments: Any) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        described = self.folder / DESCRIPTION
        first = step
        if described.exists():
            first = int(json.loads(described.read_text()).get("first_step", 0))
        elif self.place.writes_losses or self.place.writes_tokens:
            told = {
                "first_step": step,
                "checkpoints": _checkpoints(arguments),
                "notes": ["recorded by checks.record.hook"],
            }
            described.write_text(json.dumps(told, indent=1) + "\n")
        if self.place.writes_tokens:
            self.tokens = TokenFile(self.folder / self.place.token_file, first)

    def _batch(self, arguments: Any) -> np.ndarray[Any, Any]:
        """This rank's rows of the global batch; a step that Megatron ran again counts once."""
        if not self.rows:
            raise ValueError("the data iterator gave no batch")
        rows = np.concatenate(self.rows)
        wanted = int(arguments.global_batch_size) // self.place.ranks
        if len(rows) < wanted or len(rows) % wanted:
            raise ValueError(f"{len(rows)} sequences in a step, expected {wanted}")
        return rows[-wanted:]


class Place:
    """Where this process stands among the ranks: alone, unless Megatron's groups are set up."""

    def __init__(self) -> None:
        self.state = sys.modules.get("megatron.core.parallel_state")

    def _ask(self, what: str, alone: int, **named: Any) -> int:
        asked = getattr(self.state, what, None)
        is_set_up = getattr(self.state, "model_parallel_is_initialized", lambda: False)()
        return int(asked(**named)) if asked is not None and is_set_up else alone

    @property
    def ranks(self) -> int:
        """Data-parallel ranks, which share the batch."""
        return self._ask("get_data_parallel_world_size", 1)

    @property
    def writes_tokens(self) -> bool:
        """The first process of each data-parallel rank's."""
        others = ("get_tensor_model_parallel_rank", "get_context_parallel_rank")
        is_first = not any(self._ask(what, 0) for what in others)
        return is_first and not self._ask("get_pipeline_model_parallel_rank", 0)

    @property
    def writes_losses(self) -> bool:
        """One of the processes that have the loss, where the pipeline ends."""
        others = ("get_tensor_model_parallel_rank", "get_context_parallel_rank")
        return not any(self._ask(what, 0) for what in (*others, "get_data_parallel_rank"))

    @property
    def token_file(self) -> str:
        if self.ranks == 1:
            return TOKENS
        return f"tokens-{self._ask('get_data_parallel_rank', 0)}.npy"


def _watched(give: Callable[[Any], Any]) -> Any:
    """``__next__`` that also gives its batches to the recorder whose step runs."""

    @functools.wraps(give)
    def given(iterator: Any) -> Any:
        batch = give(iterator)
        recorder: Recorder = given.recorder  # type: ignore[attr-defined]
        if recorder.inside and recorder.is_on:
            recorder.rows.append(_rows_of(batch))
        return batch

    return given


def _rows_of(batch: Any) -> np.ndarray[Any, Any]:
    """int [sequences, length + 1] of a batch with ``tokens`` and ``labels``.

    Raises:
      ValueError: the labels are not the tokens shifted by one.
    """
    tokens, labels = (_as_array(batch[name]) for name in ("tokens", "labels"))
    if tokens.shape != labels.shape or not np.array_equal(tokens[:, 1:], labels[:, :-1]):
        raise ValueError("labels are not the tokens shifted by one: such data cannot be repeated")
    return np.concatenate([tokens, labels[:, -1:]], axis=1)


def _checkpoints(arguments: Any) -> list[str]:
    """Where the run saves, and where it was loaded from if iterations lie there."""
    save, load = (getattr(arguments, name, None) for name in ("save", "load"))
    places = [load] if load and any(Path(load).glob("iter_*")) else []
    return sorted({str(Path(place).absolute()) for place in (*places, save) if place})


def _as_array(values: Any) -> np.ndarray[Any, Any]:
    array = np.asarray(values.cpu() if hasattr(values, "cpu") else values)
    return array.reshape(-1, array.shape[-1])


def _loss_of(losses: dict[str, Any]) -> float:
    for key in _LOSS_KEYS:
        if key in losses:
            return float(losses[key])
    raise ValueError(f"no 'lm loss' among {sorted(losses)}")
