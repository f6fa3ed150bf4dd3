"""muon-convert orbax2megatron: a MaxText train state in the form of a Megatron checkpoint."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from converters import checking, commit, conversion, report
from converters.budget import Stopped
from converters.errors import CheckpointError
from converters.estimate import estimate, require
from converters.maxtext.plan import Options, Plan, plan_target
from converters.maxtext.reverse import plan_source
from converters.maxtext.versions import NEWEST_RELEASE
from converters.megatron.legacy.writer import write_legacy
from converters.megatron.open import open_source
from converters.megatron.write_torch_dist import write_torch_dist
from converters.orbax import runtime
from converters.progress import progress
from converters.source import Array, Key, Source, State
from converters.target import Path as KeyPath

if TYPE_CHECKING:
    from converters.orbax.reader import Saved

# The last release that saves the Linen layout by default.
_LINEN_RELEASE = "0.2.3"
# Leaves that MaxText keeps for itself: random numbers of dropout.
_OWN = "nnx_aux"
_STEP = ("step",)
_CACHE_BYTES = 1 << 30


@dataclass(frozen=True)
class Request:
    """What the user asked for.

    Attributes:
      checkpoint: items, its step, or the folder of steps.
      like: the Megatron checkpoint whose names, pieces and arguments the result takes over.
      out: folder of the result.
      chosen: fields of Options; others are those of the conversion, or seen in the checkpoint.
      like_iteration: None is the latest.
      opaque: classes in ``like`` to read as inert values.
      force: replace an earlier result.
      command_line: for the report.
      quiet: no progress.
    """

    checkpoint: Path
    like: Path
    out: Path
    chosen: Mapping[str, Any]
    like_iteration: int | None = None
    opaque: tuple[str, ...] = ()
    force: bool = False
    command_line: tuple[str, ...] = ()
    quiet: bool = False


def convert_back(request: Request, stop: threading.Event) -> dict[str, Any]:
    """Write the state, and return the report that lies in the result as conversion.json.

    Raises:
      CheckpointError: the state is not one of ``like``'s model, or one of the two cannot be read;
        nothing is left behind.
      Stopped: ``stop`` was set; nothing is left behind.
    """
    runtime.start()
    from converters.orbax.reader import open_saved

    saved = open_saved(request.checkpoint)
    options = options_for(saved, request)
    source = open_source(request.like, iteration=request.like_iteration, opaque=request.opaque)
    if not options.optimizer and any(key.state is not State.WEIGHT for key in source.tensors):
        raise CheckpointError(
            f"{saved.folder}: has weights only, and {source.folder} an optimizer's state, which "
            "would no longer belong to them: orbax2safetensors writes weights alone"
        )
    inputs = (request.checkpoint, saved.folder, request.like, source.folder)
    commit.check_output(request.out, inputs, request.force)
    plan = plan_target(source, options)
    unused = require_tree(plan, saved)
    step = int(saved.tensors[_STEP].read())
    sizes = [tensor.dtype.itemsize * _count(tensor.shape) for tensor in source.tensors.values()]
    require(estimate(sizes), request.out.absolute().parent)
    leaves = Leaves(saved, max(_CACHE_BYTES, 4 * max(t.bytes for t in saved.tensors.values())))
    with (
        progress("writing", sum(sizes), request.quiet) as advance,
        commit.growing(request.out) as folder,
    ):
        hashes = Hashes(source, plan_source(plan, source, leaves.read), stop, advance)
        writer_for(source)(
            request.like,
            folder,
            hashes.values(),
            like_iteration=request.like_iteration,
            iteration=step,
            opaque=request.opaque,
        )
        hashes.require_same(open_source(folder, opaque=request.opaque))
        result = _report(request, saved, source, plan, step, hashes, unused)
        report.write(folder / commit.REPORT, result)
    return result


def writer_for(source: Source) -> Callable[..., Path]:
    """What writes checkpoints of this format; the others are refused by the first."""
    return write_legacy if source.format.partition("+")[0] == "torch" else write_torch_dist


def options_for(saved: Saved, request: Request) -> Options:
    """What the conversion was told, else what the saved tree shows, below what was chosen now."""
    said = conversion.recorded(saved.folder).get("options")
    if said is not None:
        return replace(checking.options_of(said), **request.chosen)
    linen = bool(saved.lists)
    seen = Options(
        maxtext_version=_LINEN_RELEASE if linen else NEWEST_RELEASE,
        layout="linen" if linen else "nnx",
        scan=bool(saved.metadata.get("scan_layers", _scanned(saved))),
        optimizer=any(path[0] == "opt_state" for path in saved.tensors),
    )
    return replace(seen, **request.chosen)


def _scanned(saved: Saved) -> bool:
    """No layer has a name of its own."""
    names = {key for path in saved.tensors for key in path}
    return not any(name.endswith("layers_0") for name in names)


def require_tree(plan: Plan, saved: Saved) -> list[str]:
    """Raise CheckpointError unless every leaf that is needed is there; returns those that are not.

    The counts need not be what ``like`` would give: the run has gone on since.
    """
    needed = {record.path: record for record in plan.records}
    for path, record in needed.items():
        name, stored = "/".join(path), saved.tensors.get(path)
        if stored is None:
            raise CheckpointError(
                f"{saved.folder}: {name} is missing: not a state of {plan.family} as --like has "
                "it, or of another --maxtext-version, --layout or --scan"
            )
        if stored.shape != record.shape:
            raise CheckpointError(
                f"{saved.folder}: {name} has shape {list(stored.shape)}, of --like it would have "
                f"{list(record.shape)}"
            )
    unused = saved.tensors.keys() - needed.keys()
    for path in sorted(unused):
        if path[0] != _OWN:
            raise CheckpointError(f"{saved.folder}: {'/'.join(path)} has no place in --like")
    return ["/".join(path) for path in sorted(unused)]


class Leaves:
    """Reads leaves, and keeps the last ones: layers of one leaf are asked for one by one."""

    def __init__(self, saved: Saved, limit: int) -> None:
        self._saved = saved
        self._limit = limit
        self._held: OrderedDict[KeyPath, Array] = OrderedDict()

    def read(self, path: KeyPath) -> Array:
        if path not in self._held:
            self._held[path] = self._saved.tensors[path].read()
            while len(self._held) > 1 and sum(a.nbytes for a in self._held.values()) > self._limit:
                self._held.popitem(last=False)
        self._held.move_to_end(path)
        return self._held[path]


@dataclass(frozen=True)
class Hashes:
    """The values to write, hashed as they are made, and the check that they arrived."""

    source: Source
    makers: Mapping[Key, Callable[[], Array]]
    stop: threading.Event
    advance: Callable[[int], None]
    found: dict[Key, str] = field(default_factory=dict)

    def values(self) -> dict[Key, Callable[[], Array]]:
        return {key: lambda key=key: self._make(key) for key in self.makers}  # type: ignore[misc]

    def _make(self, key: Key) -> Array:
        from converters.orbax.arrays import digest

        if self.stop.is_set():
            raise Stopped
        value = self.makers[key]().astype(self.source.tensors[key].dtype, copy=False)
        if key not in self.found:
            self.found[key] = digest(value)
            self.advance(value.nbytes)
        return value

    def require_same(self, written: Source) -> None:
        """Raise CheckpointError unless ``written`` has exactly the tensors that were made."""
        from converters.orbax.arrays import digest

        for key, expected in self.found.items():
            if digest(written.tensors[key].load()) != expected:
                raise CheckpointError(f"{written.folder}: {key} was read back differently")


def _count(shape: tuple[int, ...]) -> int:
    size = 1
    for length in shape:
        size *= length
    return size


def _report(
    request: Request,
    saved: Saved,
    source: Source,
    plan: Plan,
    step: int,
    hashes: Hashes,
    unused: list[str],
) -> dict[str, Any]:
    rows = [
        {
            "target": str(key),
            "shape": list(tensor.shape),
            "dtype": tensor.dtype.name,
            "sha256": hashes.found.get(key),
        }
        for key, tensor in source.tensors.items()
    ]
    dropped = [{"name": name, "reason": "MaxText's own random numbers"} for name in unused]
    return {
        "checkpoint": str(request.out.absolute().resolve()),
        "source": {"folder": str(saved.folder), "format": "orbax", "iteration": step},
        "like": report.source_record(source),
        "command": list(request.command_line),
        "family": plan.family,
        "step": step,
        "tensors": rows,
        "dropped": dropped,
        "created": [],
        "notes": list(plan.notes),
        "versions": report.versions(),
    }
