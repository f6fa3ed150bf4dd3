"""The token batches of a run, mapped from their file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .errors import RunError

Tokens = npt.NDArray[np.integer[Any]]
# Tokens looked at in one go.
_BLOCK = 1 << 22


def read_tokens(path: Path) -> Tokens:
    """Integers [steps, batch, sequence + 1], memory-mapped.

    Raises:
      RunError: missing, no .npy file, or of another shape or type.
    """
    if not path.is_file():
        raise RunError(f"{path}: no such file: the run needs the batch of every step")
    try:
        tokens = np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError as error:
        raise RunError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (ValueError, EOFError) as error:
        raise RunError(f"{path}: not a NumPy array on disk (.npy), or cut off: {error}") from error
    if not isinstance(tokens, np.ndarray):
        raise RunError(f"{path}: an archive of arrays, expected one array (.npy)")
    if tokens.ndim != 3 or 0 in tokens.shape or tokens.shape[2] < 2:
        raise RunError(
            f"{path}: tokens have shape {list(tokens.shape)}, expected [steps, batch, sequence + 1]"
        )
    if tokens.dtype.kind not in "iu":
        raise RunError(f"{path}: tokens are {tokens.dtype}, expected integers")
    return tokens


def require_fit(path: Path, tokens: Tokens, vocabulary: int, arguments: dict[str, Any]) -> None:
    """Raise RunError unless the tokens can be those of a run with these arguments.

    Args:
      vocabulary: rows of the embedding.
      arguments: Megatron's; those that are missing are not compared.
    """
    for name, axis, extra in (("seq_length", 2, 1), ("global_batch_size", 1, 0)):
        wanted = arguments.get(name)
        found = tokens.shape[axis] - extra
        if isinstance(wanted, int) and wanted != found:
            raise RunError(
                f"{path}: tokens have shape {list(tokens.shape)}, so {name} is {found}, the "
                f"checkpoint's run has {wanted}: expected [steps, batch, sequence + 1]"
            )
    true = arguments.get("vocab_size")
    limit = min(vocabulary, true) if isinstance(true, int) and true > 0 else vocabulary
    rows = max(1, _BLOCK // (tokens.shape[1] * tokens.shape[2]))
    for start in range(0, len(tokens), rows):
        block = tokens[start : start + rows]
        low, high = int(block.min()), int(block.max())
        if low < 0 or high >= limit:
            bad = low if low < 0 else high
            step = start + int(np.argwhere(block == bad)[0][0])
            raise RunError(
                f"{path}: token {bad} in batch {step}, the model's vocabulary is 0 to {limit - 1}"
            )
