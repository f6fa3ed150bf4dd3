"""A family as a TOML file, for parameters that only a private Megatron has.

name = "mine"
decoder_block = "llama2"
layers = "stack"                       # or pairs, cycle, dense_then_moe
requires = ["qk_norm"]
allows = ["untied"]
layer = [                              # source suffix, targets, word[, when]
    ["input_layernorm.weight", ["pre_self_attention_layer_norm/scale"], "norm"],
]
top = [ ... ]
mtp = [ ... ]                          # optional, as cycle, scans, config, verified
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, get_args

from converters.errors import CheckpointError

from .family import Family, Pattern, Row
from .words import WORDS

_NEEDED = {"name": str, "decoder_block": str, "layers": str, "layer": list, "top": list}
_OPTIONAL = {
    "requires": list,
    "allows": list,
    "mtp": list,
    "cycle": int,
    "config": dict,
    "scans": bool,
    "verified": bool,
    "refusal": str,
}


def read_family(file: Path) -> Family:
    """The family that the file describes.

    Raises:
      CheckpointError: not TOML, keys missing, unknown or of another type, an unknown word; file,
        key and value are named.
    """
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{file}: not TOML: {error}") from error
    _check(file, content)
    rows = {part: _rows(file, part, content.pop(part, [])) for part in ("layer", "top", "mtp")}
    features = {key: frozenset(content.pop(key, [])) for key in ("requires", "allows")}
    fields: dict[str, Any] = {**content, **rows, **features}
    return Family(**fields)


def _check(file: Path, content: dict[str, Any]) -> None:
    kinds = {**_NEEDED, **_OPTIONAL}
    missing = sorted(_NEEDED.keys() - content.keys())
    unknown = sorted(content.keys() - kinds.keys())
    if missing or unknown:
        raise CheckpointError(f"{file}: missing keys {missing}, unknown keys {unknown}")
    for key, value in content.items():
        if type(value) is not kinds[key]:
            raise CheckpointError(f"{file}: {key}={value!r}: expected a {kinds[key].__name__}")
    if content["layers"] not in get_args(Pattern):
        known = ", ".join(get_args(Pattern))
        raise CheckpointError(f"{file}: layers={content['layers']!r}: expected one of {known}")
    if content.get("cycle", 1) < 1:
        raise CheckpointError(f"{file}: cycle={content['cycle']}: expected a positive number")


def _rows(file: Path, part: str, entries: list[Any]) -> tuple[Row, ...]:
    return tuple(_row(f"{file}: {part} row {n}", entry) for n, entry in enumerate(entries, 1))


def _row(where: str, entry: Any) -> Row:
    whole = isinstance(entry, list) and len(entry) in (3, 4)
    if not whole or not isinstance(entry[1], list) or not entry[1]:
        raise CheckpointError(
            f"{where}: {entry!r}: expected [source, [targets], word] or with when"
        )
    words = [entry[0], *entry[1], *entry[2:]]
    if not all(isinstance(word, str) for word in words):
        raise CheckpointError(f"{where}: {entry!r}: expected text")
    if entry[2] not in WORDS:
        raise CheckpointError(
            f"{where}: unknown word {entry[2]!r}: expected one of {', '.join(WORDS)}"
        )
    return Row(entry[0], tuple(entry[1]), *entry[2:])
