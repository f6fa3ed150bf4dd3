"""Look at the first tensors of a checkpoint while the libraries that write are being loaded.

Loading them is one core's work. On another the bytes that will be needed come into the system's
cache and their checksums are found, which readers do not compute twice.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from converters.errors import CheckpointError
from converters.source import Source
from converters.target import TargetTensor


@contextmanager
def reading_ahead(source: Source, targets: Sequence[TargetTensor]) -> Iterator[None]:
    """Load the sources of ``targets``, in order and one at a time, until the block is left."""
    stop = threading.Event()
    thread = threading.Thread(target=_read, args=(source, targets, stop), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _read(source: Source, targets: Sequence[TargetTensor], stop: threading.Event) -> None:
    for key in dict.fromkeys(key for target in targets for key in target.sources):
        if stop.is_set():
            return
        try:
            source.tensors[key].load()
        except CheckpointError:
            return  # told by whoever needs the tensor
